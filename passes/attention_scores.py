"""Reading attention: from the last product back to queries and keys, with the operations on scores between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tvm import ir, relax

from ..schedules.operators.attention_spec import Access
from .ir import dtype, operator, shape, static_tensor, uses, values_of
from .layers import scalar
from .rebuild import permuted_axes
from .views import View, access_of, factor_of, place_of, view_of
from .weights import function_of, weight_vars


@dataclass(frozen=True)
class Mask:
    """Operations on scores before the softmax, or a part of these."""

    kind: str  # of ScoreMask
    # With their shapes as [batch or 1, heads or 1, queries or 1, keys]; all but the first are added besides.
    tensors: tuple[tuple[relax.Var, tuple[int, ...]], ...]
    fill: float = 0.0
    hides: bool = False  # where the tensor is true, not where it is false


@dataclass(frozen=True)
class Operand:
    """The place of queries, keys or values."""

    source: relax.Var
    access: Access
    depth: int
    scale: float = 1.0
    group: int = 1  # heads that have one in common
    transposed: bool = False  # the source is to be copied, its last two axes swapped


@dataclass(frozen=True)
class Positions:
    """Scores by position: those of every position, of which an index takes one for every query and key."""

    by: str  # of PositionScores
    x: Operand
    table: Operand
    positions: int
    index: relax.Var
    extents: tuple[int, ...]  # of the index: [batch or 1, heads or 1, keys, queries], or by query [..., queries or 1, keys]


@dataclass(frozen=True)
class Match:
    """Attention in `main`."""

    q: Operand
    k: Operand
    v: Operand
    lead: tuple[int, int]  # batch and heads
    queries: int
    keys: int
    y: Access
    scale: float = 1.0
    cap: float | None = None
    masks: tuple[Mask, ...] = ()  # in the order of the network
    nan_is_zero: bool = False
    positions: tuple[Positions, ...] = ()


@dataclass(frozen=True)
class _Gathered:
    """Scores by position in the network."""

    by: str
    product: relax.Call  # of all positions
    index: relax.Var
    of: tuple[int, ...]  # the shape of the index, before what repeats it
    scale: float


@dataclass(frozen=True)
class _Applied:
    """A mask of the network."""

    kind: str
    tensor: relax.Var
    of: tuple[int, ...]  # the shape of the masked scores
    fill: float = 0.0
    hides: bool = False
    gathered: _Gathered | None = None  # of scores by position, the tensor of which need not exist


@dataclass(frozen=True)
class _Scores:
    """The argument of a softmax: a product, its scale, its cap and its masks, the last one first."""

    product: relax.Call
    scale: float
    cap: float | None
    masks: tuple[_Applied, ...]


@dataclass
class Matcher:
    """Finds attention in `main`; `evaluate` gives the result of a function of its weights.

    `with_positions` says whether scores by position may be left to the kernel.
    """

    main: relax.Function
    evaluate: Callable[[relax.Function], Sequence[np.ndarray]]
    with_positions: bool = True
    values: dict[relax.Var, ir.Expr] = field(init=False)

    def __post_init__(self) -> None:
        self.values = values_of(self.main)
        self.readers = uses(self.main)
        self.from_weights = weight_vars(self.main)
        self.known: dict[relax.Var, np.ndarray] = {}

    def matches(self) -> dict[relax.Var, Match]:
        """Attention by its last variable."""
        found = {}
        for var, value in self.values.items():
            if operator(value) == "matmul" and (match := self._match(value)) is not None:
                end, y = self._end(var, match)
                found[end] = replace(match, y=y)
        return found

    def _end(self, var: relax.Var, match: Match) -> tuple[relax.Var, Access]:
        """The last permutation of the result that the kernel can write, and where; the result itself if none follows."""
        extents = (*match.lead, match.queries, match.y.buffer[-1])
        end, place = var, match.y
        view, at = View.whole(var), var
        while True:
            readers = self.readers.get(at, [])
            # A returned value counts as its own reader.
            follower = self.values.get(readers[0]) if len(readers) == 1 and readers[0] != at else None
            if operator(follower) == "permute_dims":
                at, view = readers[0], view.permuted(permuted_axes(follower))
                found = place_of(view, shape(at), extents)
                if found is not None:
                    end, place = at, found
            elif operator(follower) == "reshape" and (reshaped := view.reshaped(shape(follower))) is not None:
                at, view = readers[0], reshaped
            else:
                return end, place

    def _only(self, var: ir.Expr, readers: int = 1) -> ir.Expr | None:
        """The expression bound to `var`, if that is float32 and has no other reader."""
        alone = isinstance(var, relax.Var) and len(self.readers.get(var, [])) == readers
        return self.values.get(var) if alone and static_tensor(var) and dtype(var) == "float32" else None

    def _unviewed(self, var: ir.Expr, readers: int = 1) -> ir.Expr | None:
        """The expression bound to `var`, before reshapes that keep its matrices."""
        value = self._only(var, readers)
        while operator(value) == "reshape" and shape(value)[-2:] == shape(value.args[0])[-2:]:
            value = self._only(value.args[0])
        return value

    def _match(self, mix: relax.Call) -> Match | None:
        probabilities, v = mix.args
        softmax = self._unviewed(probabilities)
        nan_is_zero = operator(softmax) == "where"
        if nan_is_zero:
            softmax = self._guarded(softmax)
        if operator(softmax) != "softmax" or not _is_float(v):
            return None
        full = shape(softmax)
        if int(softmax.attrs.axis) % len(full) != len(full) - 1 or len(full) < 2:
            return None
        scores = self._scores(softmax.args[0])
        if scores is None:
            return None
        match = self._with_scores(scores, full, mix)
        if match is None and any(mask.gathered for mask in scores.masks):
            tensors = tuple(replace(mask, gathered=None) for mask in scores.masks)
            match = self._with_scores(replace(scores, masks=tensors), full, mix)
        return match and replace(match, nan_is_zero=nan_is_zero)

    def _with_scores(self, scores: _Scores, full: tuple[int, ...], mix: relax.Call) -> Match | None:
        q, k = scores.product.args
        if not _is_float(q) or not _is_float(k) or (q in self.from_weights and k in self.from_weights):
            return None
        leads = list(self._leads(full, scores.product, mix))
        for may_copy in (False, True):
            for lead in leads:
                match = self._with_lead(lead, scores, mix, may_copy)
                if match is not None:
                    return match
        return None

    def _guarded(self, where: relax.Call) -> ir.Expr | None:
        """The softmax in where(isnan(softmax), 0, softmax)."""
        condition, instead, result = where.args
        asked = self.values.get(condition) if len(self.readers.get(condition, [])) == 1 else None
        if operator(asked) != "isnan" or asked.args[0] is None or scalar(instead) != 0.0:
            return None
        return self._unviewed(result, readers=2) if asked.args[0].same_as(result) else None

    def _leads(self, full: tuple[int, ...], product: relax.Call, mix: relax.Call) -> Iterator[tuple[int, int]]:
        """Batch and heads in the order of trial: those of the softmax, or any two factors in a row."""
        if len(full) <= 4:
            yield ((1,) * (4 - len(full)) + full[:-2])
        finest = max((full, shape(product), shape(mix), *map(self._finest, (*product.args, mix.args[1]))), key=len)[:-2]
        if math.prod(finest) == math.prod(full[:-2]):
            for at in range(len(finest) + 1):
                yield math.prod(finest[:at]), math.prod(finest[at:])

    def _finest(self, var: relax.Var) -> tuple[int, ...]:
        """A tensor's shape, with axes of several strides as several."""
        view = view_of(var, self.values, scalar)
        return (*(extent for axis in view.axes[:-2] for extent, _ in axis), *view.shape[-2:])

    def _with_lead(self, lead: tuple[int, int], scores: _Scores, mix: relax.Call, may_copy: bool) -> Match | None:
        of_scores, of_mix = shape(scores.product)[:-2], shape(mix)[:-2]
        q = self._operand(scores.product.args[0], lead, of_scores, may_copy)
        k = self._operand(scores.product.args[1], lead, of_scores, may_copy, is_key=True)
        v = self._operand(mix.args[1], lead, of_mix, may_copy, is_scaled=False)
        tensors = [mask for mask in reversed(scores.masks) if mask.gathered is None]
        extents = [self._mask_shape(mask.tensor, mask.of, lead) for mask in tensors]
        gathered = [mask.gathered for mask in reversed(scores.masks) if mask.gathered is not None]
        full = (math.prod(lead), *shape(scores.product)[-2:])
        positions = [self._positions(one, lead, full, may_copy) for one in gathered]
        if None in (q, k, v, *extents, *positions) or q.group != 1 or k.group != v.group:
            return None
        queries, keys = shape(scores.product)[-2:]
        y = Access.dense(*lead, queries, v.depth)
        masks = _grouped(scores.masks[::-1], dict(zip(tensors, extents, strict=True)))
        return Match(q, k, v, lead, queries, keys, y, scores.scale, scores.cap, masks, positions=tuple(positions))

    def _positions(self, gathered: _Gathered, lead: tuple[int, int], full: tuple[int, ...], may_copy: bool) -> Positions | None:
        """`full` are batches times heads, queries and keys."""
        x, table = gathered.product.args
        by_query, of_product = gathered.by == "query", shape(gathered.product)[:-2]
        *batches, rows, columns = gathered.of
        if (math.prod(batches), *((rows, columns) if by_query else (columns, rows))) != full:
            return None
        left = self._operand(x, lead, of_product, may_copy)
        # A copy of weights is made by the build.
        right = self._operand(table, lead, of_product, may_copy or table in self.from_weights, is_key=by_query)
        extents = self._mask_shape(gathered.index, gathered.of, lead)
        if None in (left, right, extents) or left.group != 1 or right.group != 1:
            return None
        if not by_query and extents[-2] != rows:
            return None
        left = replace(left, scale=left.scale * gathered.scale)
        return Positions(gathered.by, left, right, shape(gathered.product)[-1], gathered.index, extents)

    def _operand(
        self,
        var: relax.Var,
        lead: tuple[int, int],
        wanted: tuple[int, ...],
        may_copy: bool,
        *,
        is_key=False,
        is_scaled=True,
    ) -> Operand | None:
        """Queries, keys or values, read in place where possible; the product has keys transposed."""
        swapped = (*range(len(shape(var)) - 2), len(shape(var)) - 1, len(shape(var)) - 2)
        view = view_of(var, self.values, scalar)
        if is_key:
            view = view.permuted(swapped)
        if is_scaled or view.scale == 1.0:
            found = self._access(view, lead, wanted)
            if found is not None and (not may_copy or found[1] == 1):
                return Operand(view.source, found[0], view.shape[-1], view.scale, found[1])
        if not may_copy:
            return None
        extents = tuple(shape(var)[axis] for axis in swapped) if is_key else shape(var)
        view = View.dense(var, extents)
        found = self._access(view, lead, wanted)
        return found and Operand(var, replace(found[0], buffer=extents), view.shape[-1], transposed=is_key)

    def _access(self, view: View, lead: tuple[int, int], wanted: tuple[int, ...]) -> tuple[Access, int] | None:
        if math.prod(view.shape[:-2]) != math.prod(lead):
            repeated = view.repeated((*wanted, *view.shape[-2:]))
            return repeated and access_of(repeated, lead)
        return access_of(view, lead)

    def _scores(self, var: ir.Expr) -> _Scores | None:
        value, scale, cap, masks = self._unviewed(var), 1.0, None, []
        while value is not None:
            name = operator(value)
            if name == "matmul":
                return _Scores(value, scale, cap, tuple(masks))
            if (found := factor_of(value, scalar)) is not None:
                inner, factor = found
                scale *= factor
            elif name == "tanh" and cap is None:
                inner, cap, scale = value.args[0], scale, 1.0
            else:
                # A factor found before the mask was applied after the mask.
                found = self._masked(value) if scale == 1.0 and cap is None else None
                if found is None:
                    return None
                inner, mask = found
                masks += self._parts(mask, masks)
            value = self._unviewed(inner)
        return None

    def _parts(self, mask: _Applied, later: Sequence[_Applied]) -> list[_Applied]:
        """A mask as scores by position and others, where an added tensor is their sum; `later` are those applied after it."""
        first = next((place for place, one in enumerate(later) if one.gathered), len(later))
        if self.with_positions and mask.kind == "add" and all(one.kind == "add" for one in later[first:]):
            terms = [(term, self._gathered(term)) for term in self._terms(mask.tensor)]
            if any(gathered for _, gathered in terms):
                parts = [replace(mask, tensor=term, gathered=gathered) for term, gathered in terms]
                return sorted(parts, key=lambda part: part.gathered is not None)
        return [replace(mask, tensor=self._smallest(mask.tensor))]

    def _terms(self, tensor: relax.Var) -> list[relax.Var]:
        """The tensors of one shape that nothing but `tensor` is the sum of."""
        value = self._only(tensor)
        if operator(value) != "add" or any(not _is_tensor(arg) or shape(arg) != shape(tensor) for arg in value.args):
            return [tensor]
        return [term for arg in value.args for term in self._terms(arg)]

    def _gathered(self, var: relax.Var) -> _Gathered | None:
        """Scores by position: elements of the rows of a product, transposed or not, scaled or not. Known ones are a bias."""
        if var in self.from_weights:
            return None
        value, scale, by, index, of = self._unviewed(var), 1.0, "query", None, ()
        while value is not None:
            name = operator(value)
            if (found := factor_of(value, scalar)) is not None:
                inner, factor = found
                scale *= factor
            elif name == "permute_dims" and by == "query" and index is None and _swaps_last(value):
                inner, by = value.args[0], "key"
            elif name == "gather_elements" and index is None and _takes_of_rows(value):
                inner, index, of = value.args[0], self._smallest(value.args[1]), shape(value)
            else:
                is_whole = name == "matmul" and index is not None and shape(value)[:-1] == of[:-1]
                return _Gathered(by, value, index, of, scale) if is_whole else None
            value = self._unviewed(inner) if index is None else self._only(inner)
        return None

    def _smallest(self, mask: relax.Var) -> relax.Var:
        """The source of a repeated mask, before broadcasting and conjunctions with conditions that always hold."""
        while True:
            value = self.values.get(mask)
            inner = None
            if operator(value) == "broadcast_to":
                (inner, _) = value.args
            elif operator(value) == "logical_and":
                inner = next(
                    (a for a, b in (value.args, value.args[::-1]) if _is_tensor(a) and self._is_all_true(b)), None
                )
            if inner is None or not _is_tensor(inner):
                return mask
            mask = inner

    def _is_all_true(self, var: ir.Expr) -> bool:
        return var in self.from_weights and bool(self.value(var).all())

    def value(self, var: relax.Var) -> np.ndarray:
        """The value of a variable that depends on weights only."""
        if var not in self.known:
            self.known[var] = self.evaluate(function_of(self.main, self.values, var))[0]
        return self.known[var]

    def _masked(self, call: relax.Call) -> tuple[ir.Expr, _Applied] | None:
        """The masked scores, and the mask."""
        name, args = operator(call), getattr(call, "args", ())
        if name == "add":
            if (blended := self._blended(call)) is not None:
                return blended
            for inner, tensor in (args, reversed(args)):
                if self._reaches_product(inner) and _is_tensor(tensor) and dtype(tensor) == "float32":
                    return inner, _Applied("add", tensor, shape(call))
        elif name == "where" and _is_tensor(args[0]):
            for inner, fill, hides in ((args[1], args[2], False), (args[2], args[1], True)):
                if (value := scalar(fill)) is not None and self._reaches_product(inner):
                    return inner, _Applied("where", args[0], shape(call), value, hides)
        return None

    def _blended(self, call: relax.Call) -> tuple[ir.Expr, _Applied] | None:
        """scores · m + (1 - m) · fill, where m is 0 or 1."""
        for product, rest in (call.args, reversed(call.args)):
            value = self._only(product)
            if operator(value) != "multiply" or not _is_tensor(rest):
                continue
            for inner, mask in (value.args, reversed(value.args)):
                if (
                    _is_tensor(mask)
                    and self._reaches_product(inner)
                    and (choice := self._choice(mask, rest)) is not None
                ):
                    return inner, _Applied("blend", choice[0], shape(call), choice[1])
        return None

    def _choice(self, mask: relax.Var, rest: relax.Var) -> tuple[relax.Var, float] | None:
        """The condition under which `mask` is 1, and the number of `rest` where `mask` is 0, if `rest` is 0 elsewhere."""
        if {mask, rest} <= self.from_weights:
            chosen, others = self.value(mask), self.value(rest)
            if chosen.shape != others.shape or not np.isin(chosen, (0, 1)).all() or (others[chosen == 1] != 0).any():
                return None
            fills = np.unique(others[chosen == 0])
            return (mask, float(fills[0])) if len(fills) == 1 and np.isfinite(fills[0]) else None
        seen, (hidden, fill) = self.values.get(mask), factor_of(self.values.get(rest), scalar) or (None, 0.0)
        hidden = self.values.get(hidden)
        if operator(seen) != "astype" or operator(hidden) != "astype" or dtype(seen.args[0]) != "bool":
            return None
        inverse = self.values.get(hidden.args[0])
        return (
            (seen.args[0], fill)
            if operator(inverse) == "logical_not" and inverse.args[0].same_as(seen.args[0])
            else None
        )

    def _reaches_product(self, var: ir.Expr) -> bool:
        value = self._unviewed(var)
        if operator(value) in ("add", "where"):
            return any(map(self._reaches_product, value.args))
        if operator(value) == "tanh":
            return self._reaches_product(value.args[0])
        if operator(value) == "multiply" and scalar(value.args[0]) is None and scalar(value.args[1]) is None:
            return False
        if (found := factor_of(value, scalar)) is not None:
            return self._reaches_product(found[0])
        return operator(value) == "matmul"

    def _mask_shape(self, tensor: relax.Var, full: tuple[int, ...], lead: tuple[int, int]) -> tuple[int, ...] | None:
        """A mask's shape as [batch or 1, heads or 1, queries or 1, keys]; None if the mask has another form."""
        extents = (1,) * (len(full) - len(shape(tensor))) + shape(tensor)
        if len(extents) != len(full) or extents[-1] != full[-1] or extents[-2] not in (1, full[-2]):
            return None
        rest, of = extents[:-2], full[:-2]
        if math.prod(rest) == 1:
            return (1, 1, *extents[-2:])
        if rest == of:
            return (*lead, *extents[-2:])
        for at in range(len(of) + 1):
            if math.prod(of[:at]) == lead[0]:
                parts = [(rest[:at], of[:at]), (rest[at:], of[at:])]
                if all(part == whole or math.prod(part) == 1 for part, whole in parts):
                    return (*(math.prod(part) for part, _ in parts), *extents[-2:])
        return None


def _grouped(masks: Sequence[_Applied], extents: Mapping[_Applied, tuple[int, ...]]) -> tuple[Mask, ...]:
    """Masks of scores in order; added masks are joined where their sum is as small as one of them, scores by position always."""
    result: list[Mask] = []
    for mask in masks:
        if mask.gathered:
            if not any(one.kind == "positions" for one in result):
                result.append(Mask("positions", ()))
            continue
        part = (mask.tensor, extents[mask])
        if result and result[-1].kind == mask.kind == "add":
            tensors = (*result[-1].tensors, part)
            shapes = [of for _, of in tensors]
            if math.prod(map(max, *shapes)) == max(map(math.prod, shapes)):
                result[-1] = replace(result[-1], tensors=tensors)
                continue
        result.append(Mask(mask.kind, (part,), mask.fill, mask.hides))
    return tuple(result)


def _swaps_last(call: relax.Call) -> bool:
    *lead, rows, columns = permuted_axes(call)
    return lead == list(range(len(lead))) and (rows, columns) == (len(lead) + 1, len(lead))


def _takes_of_rows(call: relax.Call) -> bool:
    """Whether elements of rows are taken, of every row some."""
    data, index = call.args
    rank = len(shape(data))
    return _is_tensor(index) and int(call.attrs.axis) % rank == rank - 1 and shape(data)[:-1] == shape(index)[:-1]


def _is_tensor(expr: ir.Expr) -> bool:
    return isinstance(expr, relax.Var) and static_tensor(expr)


def _is_float(expr: ir.Expr) -> bool:
    return _is_tensor(expr) and dtype(expr) == "float32" and len(shape(expr)) >= 2
