"""Which keys a mask of scores may show: those between two numbers that are known at run time only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, relax
from tvm.relax import op

from .ir import dtype, operator, shape, static_tensor
from .layers import scalar

# A comparison of keys on its left with numbers: what it is of exchanged operands, and what its negation is.
_EXCHANGED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_NEGATED = {"less": "greater_equal", "less_equal": "greater", "greater": "less_equal", "greater_equal": "less"}
_ENDS = {"less": 0, "less_equal": 1}  # after the compared number, the first key that is hidden
_BEGINS = {"greater": 1, "greater_equal": 0}  # or the first one that is not
_INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class Bound:
    """Keys from `number` + `added` on are hidden, or those before if `lower`; the number is integers, repeated and reshaped to
    each of `shapes`.
    """

    number: relax.Var
    added: int
    shapes: tuple[tuple[int, ...], ...] = ()  # of masks, with 1 in the place of the keys
    fill: float | None = None  # the score of hidden keys, or what is added to it; None of a condition
    lower: bool = False


@dataclass(frozen=True)
class Bounds:
    """Reads masks of `main`: comparisons of places, which are constants, with numbers that are the same for all keys."""

    values: Mapping[relax.Var, ir.Expr]
    known: Callable[[relax.Var], np.ndarray | None]  # the value of a variable that depends on weights only

    def of_condition(self, mask: ir.Expr, hides: bool, lower: bool = False) -> Bound | None:
        """The bound of the keys for which a mask is true, or false if it `hides`."""
        value = self.values.get(mask) if isinstance(mask, relax.Var) else None
        name = operator(value)
        if name == "logical_not":
            return self.of_condition(value.args[0], not hides, lower)
        if name in ("reshape", "broadcast_to"):
            return self._viewed(value, self.of_condition(value.args[0], hides, lower))
        if name == ("logical_or" if hides else "logical_and"):
            found = next(filter(None, (self.of_condition(part, hides, lower) for part in value.args)), None)
            return self._viewed(value, found)
        return self._compared(value, hides, lower) if name in _NEGATED else None

    def of_added(self, mask: ir.Expr, lower: bool = False) -> Iterator[Bound]:
        """Bounds of the keys but those whose scores get a number added where a condition says so."""
        value = self.values.get(mask) if isinstance(mask, relax.Var) else None
        if operator(value) in ("reshape", "broadcast_to"):
            yield from filter(None, (self._viewed(value, end) for end in self.of_added(value.args[0], lower)))
        elif operator(value) == "where":
            condition, *choices = value.args
            for choice, hides in zip(choices, (True, False), strict=True):
                fill, end = scalar(choice), self.of_condition(condition, hides, lower)
                end = self._viewed(value, end)
                if fill is not None and end is not None:
                    yield replace(end, fill=fill)

    def _viewed(self, value: relax.Call, end: Bound | None) -> Bound | None:
        """The bound of a mask that another one is repeated or reshaped to."""
        keys = {shape(arg)[-1] for arg in value.args if static_tensor(arg) and shape(arg)} - {1}
        is_same = end is not None and len(keys) == 1 and shape(value)[-1:] == tuple(keys)
        return replace(end, shapes=(*end.shapes, (*shape(value)[:-1], 1))) if is_same else None

    def _compared(self, value: relax.Call, hides: bool, lower: bool) -> Bound | None:
        name, (left, right), after = operator(value), value.args, _BEGINS if lower else _ENDS
        for keys, number, kind in ((left, right, name), (right, left, _EXCHANGED[name])):
            kind = _NEGATED[kind] if hides else kind
            first = self._first_of_places(keys, shape(value)[-1])
            if first is None or kind not in after or not _is_number(number):
                continue
            return Bound(number, after[kind] - first, ((*shape(value)[:-1], 1),), lower=lower)
        return None

    def _first_of_places(self, keys: ir.Expr, extent: int) -> int | None:
        """The first of numbers that count along the last axis alone."""
        known = self.known(keys) if isinstance(keys, relax.Var) and static_tensor(keys) and dtype(keys) in _INTEGERS else None
        if known is None or known.size != extent or extent < 2 or known.shape[-1:] != (extent,):
            return None
        places = known.reshape(-1).astype(np.int64)
        return int(places[0]) if (np.diff(places) == 1).all() else None


def _is_number(expr: ir.Expr) -> bool:
    """Whether integers are the same for all keys."""
    is_whole = isinstance(expr, relax.Var) and static_tensor(expr) and dtype(expr) in _INTEGERS
    return is_whole and shape(expr)[-1:] in ((), (1,))


def written(end: Bound, number: ir.Expr, emit: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """int64 of the last of a bound's shapes: the keys before it, at least one before an upper one."""
    number = number if dtype(number) == "int64" else emit(op.astype(number, "int64"))
    if end.added:
        number = emit(op.add(number, relax.const(end.added, "int64")))
    number = emit(op.maximum(number, relax.const(0 if end.lower else 1, "int64")))
    for extents in end.shapes:
        if np.prod(extents) == np.prod(shape(number)):
            number = emit(op.reshape(number, extents)) if shape(number) != extents else number
        else:
            number = emit(op.broadcast_to(number, extents))
    return number
