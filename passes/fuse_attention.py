"""Compute attention by one kernel, without a tensor of queries × keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax import op

from ..schedules import machines
from ..schedules.operators import attention
from ..schedules.operators.attention_spec import AttentionSpec, PositionScores, ScoreMask
from ..schedules.registry import Machine
from .attention_scores import Mask, Match, Matcher, Operand, Positions
from .attributes import ATTENTION, BY_ROWS, kernel_attributes, with_told
from .ir import dtype, shape
from .module_pass import module_pass
from .rebuild import MainRewriter
from .visible_keys import Bound, Bounds, written

# Hides a score for certain: no score comes near this number, nor with a small number added.
_HIDDEN = -1e30
_SMALL = 1e20

Evaluate = Callable[[relax.Function], Sequence[np.ndarray]]


@module_pass(opt_level=0)
class FuseAttention:
    """Replace the products around a softmax by one call of an attention kernel.

    s = matmul(q, k)                 float32[…, queries, keys]
    s = where(m, s * 0.125, -inf)    or add(s, m), or nothing        →   y = call_tir(attention_0, (q, k, v, m))
    y = matmul(softmax(s), v)

    q, k and v are read in place out of the tensors that they are slices, reshapes and permutations of, and y is written
    in the order of a permutation that follows. Masks are transposed; of several that are added one after the other
    the kernel gets the sum, unless the sum is larger than each. A mask known to be causal needs no tensor, and if such a mask is
    the last one and certain, hidden scores take no work. `evaluate` gives the result of a function of the weights of `main`.
    Where a mask compares keys with a number that is known at run time only, the kernel gets that number (`visible_keys.py`), and
    leaves out the keys beyond. A window's first key is another such number. Of `padded` inputs there is also a kernel that is
    told how many queries and keys are valid.

    Scores by position that are added, gather_elements(matmul(q, table), index) and the same of keys, transposed, are no
    tensors either: the kernel takes q, the table and the index. Indices are safe already.
    """

    def __init__(self, unit: Machine, evaluate: Evaluate, padded: bool = False) -> None:
        self.unit, self.evaluate, self.padded = unit, evaluate, padded

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        fuser = _Fuser(mod, self.unit, self.evaluate, self.padded)
        return fuser.rewrite() if fuser.matches else mod


class _Fuser(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: Machine, evaluate: Evaluate, padded: bool) -> None:
        super().__init__(mod)
        self.unit, self.padded = unit, padded
        self.matcher = Matcher(self.main, evaluate, machines.adds_positions(unit))
        self.matches = self.matcher.matches()
        self.kernels: dict[AttentionSpec, ir.GlobalVar] = {}
        self.hiding: dict[tuple, bool] = {}
        self.masks: dict[Mask, ir.Expr] = {}
        self.indices: dict[tuple, ir.Expr] = {}
        matcher = self.matcher
        self.bounds = Bounds(matcher.values, lambda var: matcher.value(var) if var in matcher.from_weights else None)
        self.lengths: dict[tuple, ir.Expr] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        match = self.matches.get(var)
        return self.substitute(value) if match is None else self._call(match, shape(var))

    def _call(self, match: Match, result: tuple[int, ...]) -> ir.Expr:
        q, k, v = match.q, match.k, match.v
        args = [self._source(operand) for operand in (q, k, v)]
        skips = self._skips(match)
        masks = []
        for mask in match.masks[:-1] if skips else match.masks:
            if mask.kind == "positions":
                masks.append(ScoreMask("positions"))
            elif mask.kind == "where" and self._hides_later(mask, match.queries, match.keys):
                masks.append(ScoreMask("causal", fill=mask.fill))
            else:
                args.append(self._mask(mask))
                masks.append(ScoreMask(mask.kind, shape(args[-1]), mask.fill))
        positions = []
        for term in match.positions:
            args += [self._source(term.x), self._source(term.table), self._index(term)]
            extents, scale = shape(args[-1]), term.x.scale * term.table.scale
            x, table = term.x.access, term.table.access
            positions.append(PositionScores(term.by, x, table, extents, term.x.depth, term.positions, scale))
        lengths = None if skips else self._bound(match, lower=False)
        begins = None if skips or not machines.skips_hidden_keys(self.unit) else self._bound(match, lower=True)
        args += [one for one in (lengths, begins) if one is not None]
        spec = AttentionSpec(
            *match.lead, match.queries, match.keys, q.depth, v.depth,
            q=q.access, k=k.access, v=v.access, y=match.y,
            scale=match.scale * q.scale * k.scale, group=k.group, cap=match.cap, nan_is_zero=match.nan_is_zero,
            masks=tuple(masks), causal=skips, has_lengths=lengths is not None, has_begins=begins is not None,
            positions=tuple(positions),
        )  # fmt: skip
        out = relax.call_tir(self._kernel(spec), args, relax.TensorType(match.y.buffer, "float32"))
        return out if match.y.buffer == result else op.reshape(self.emit(out), result)

    def _source(self, operand: Operand) -> ir.Expr:
        source = self.substitute(operand.source)
        if not operand.transposed:
            return source
        rank = len(shape(source))
        return self.emit(self.permute(source, [*range(rank - 2), rank - 1, rank - 2]))

    def _mask(self, mask: Mask) -> ir.Expr:
        """A mask as float32[batch or 1, heads or 1, keys, queries or 1]; layers with the same mask read one."""
        if mask not in self.masks:
            self.masks[mask] = self._transposed(mask)
        return self.masks[mask]

    def _transposed(self, mask: Mask) -> ir.Expr:
        tensor, *others = (self.emit(self.reshape(self.substitute(one), extents)) for one, extents in mask.tensors)
        for other in others:
            tensor = self.emit(op.add(tensor, other))
        if mask.hides:
            tensor = self.emit(op.logical_not(tensor))
        if dtype(tensor) != "float32":
            tensor = self.emit(op.astype(tensor, "float32"))
        return self.emit(self.permute(tensor, [0, 1, 3, 2]))

    def _bound(self, match: Match, lower: bool) -> ir.Expr | None:
        """int64[batch]: how many keys some query may see, or the first one if `lower`, the masks hiding all others; None if
        nothing bounds them.
        """
        for mask in match.masks:
            for end in self._bounds(mask, lower):
                if end.fill == -np.inf or (end.fill <= _HIDDEN and self._hides_alone(mask, match)):
                    key = (mask, end, match.lead[0])
                    if key not in self.lengths:
                        self.lengths[key] = self._length(mask, end, match)
                    return self.lengths[key]
        return None

    def _bounds(self, mask: Mask, lower: bool) -> list[Bound]:
        if mask.kind == "add":
            return [end for tensor, _ in mask.tensors for end in self.bounds.of_added(tensor, lower)]
        end = self.bounds.of_condition(mask.tensors[0][0], mask.hides, lower) if mask.kind == "where" else None
        return [replace(end, fill=mask.fill)] if end is not None else []

    def _hides_alone(self, mask: Mask, match: Match) -> bool:
        """Whether no other mask hides anything, which may be all that this one leaves."""
        return all(other is mask or self._is_small(other) for other in match.masks)

    def _length(self, mask: Mask, end: Bound, match: Match) -> ir.Expr:
        number = written(end, self.substitute(end.number), self.emit)
        batch = mask.tensors[0][1][0]
        numbers = self.emit(op.reshape(number, (batch, math.prod(shape(number)) // batch)))
        number = self.emit((op.min if end.lower else op.max)(numbers, [1]))
        if end.fill != -np.inf:
            # Of a query that sees nothing all scores are alike, and so all keys count.
            most = self.emit(op.max(self._mask(mask), [2]))
            seen = op.greater(self.emit(op.min(most)), relax.const(-_SMALL if mask.kind == "add" else 0.5, "float32"))
            number = self.emit(op.where(self.emit(seen), number, relax.const(0 if end.lower else match.keys, "int64")))
        return self.emit(op.broadcast_to(number, (match.lead[0],))) if batch < match.lead[0] else number

    def _index(self, term: Positions) -> ir.Expr:
        """Positions as integers [batch or 1, heads or 1, keys, queries or 1]; layers with the same ones read one tensor."""
        key = (term.index, term.extents, term.by, term.positions)
        if key not in self.indices:
            wanted = PositionScores.dtype_of(term.positions)
            index = self.emit(self.reshape(self.substitute(term.index), term.extents))
            index = self.emit(op.astype(index, wanted)) if dtype(index) != wanted else index
            self.indices[key] = self.emit(self.permute(index, [0, 1, 3, 2])) if term.by == "query" else index
        return self.indices[key]

    def _skips(self, match: Match) -> bool:
        """Whether the last mask hides of every query just the keys that come later, for certain, and no other hides anything."""
        *others, last = match.masks or (None,)
        if last is None or (last.kind != "add" and last.fill > _HIDDEN):
            return False
        return self._hides_later(last, match.queries, match.keys) and all(map(self._is_small, others))

    def _is_small(self, mask: Mask) -> bool:
        """Whether a mask is known to be added numbers, none of which comes near to hiding a score."""
        tensors = [tensor for tensor, _ in mask.tensors]
        known = mask.kind == "add" and all(tensor in self.matcher.from_weights for tensor in tensors)
        return known and all(bool((np.abs(self.matcher.value(tensor)) < _SMALL).all()) for tensor in tensors)

    def _hides_later(self, mask: Mask, queries: int, keys: int) -> bool:
        """Whether the mask is known, and hides of every query just the keys that come later."""
        (tensor, extents), *others = mask.tensors
        known = tensor in self.matcher.from_weights and not others
        if not known or keys < queries:
            return False
        key = (tensor, extents, mask.kind, mask.hides, queries, keys)
        if key not in self.hiding:
            found = self.matcher.value(tensor).reshape(extents)
            if mask.kind == "add":
                visible, certain = found == 0, bool(((found == 0) | (found <= _HIDDEN)).all())
            else:
                visible, certain = (found != 0) != mask.hides, True
            wanted = np.tril(np.ones((queries, keys), bool), keys - queries)
            same = visible.shape[-2:] == wanted.shape and bool((visible == wanted).all())
            self.hiding[key] = certain and same
        return self.hiding[key]

    def _kernel(self, spec: AttentionSpec) -> ir.GlobalVar:
        if spec not in self.kernels:
            name = f"attention_{len(self.kernels)}"
            self.kernels[spec] = self.builder.add_func(kernel_of(spec, self.unit, name, self.padded), name)
        return self.kernels[spec]


def kernel_of(spec: AttentionSpec, unit: Machine, name: str, padded: bool = False) -> tirx.PrimFunc:
    """The kernel with all that the lowering wants to know."""
    func, implementation, scratch = machines.attention_of(spec, unit)
    work = attention.work(spec, machines.vectors(unit))
    described = kernel_attributes("attention", implementation, str(spec), spec.flops, scratch=scratch, work=work)
    rows = {BY_ROWS: [0]} if spec.follows_queries else {}
    if padded and spec.follows_keys:
        func = with_told(func, attention.kernel(spec, machines.vectors(unit), told=True), spec.queries, [0, 1, 2])
    return func.with_attrs({**described, **rows, ATTENTION: spec.encode(), "global_symbol": name})
