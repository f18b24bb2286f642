"""Compute attention by one kernel, without a tensor of queries × keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax import op

from ..schedules import machines
from ..schedules.operators import attention
from ..schedules.operators.attention import AttentionSpec
from ..schedules.tiles.tile import VectorUnit
from .attention_scores import Mask, Match, Matcher, Operand
from .attributes import kernel_attributes
from .ir import dtype, shape
from .module_pass import module_pass
from .rebuild import MainRewriter

# What hides a score for certain: none comes near it from the other side.
_HIDDEN = -1e30

Evaluate = Callable[[relax.Function], Sequence[np.ndarray]]


@module_pass(opt_level=0)
class FuseAttention:
    """Replace the products around a softmax by one call of an attention kernel.

    s = matmul(q, k)                 float32[…, queries, keys]
    s = where(m, s * 0.125, -inf)    or add(s, m), or nothing        →   y = call_tir(attention_0, (q, k, v, m))
    y = matmul(softmax(s), v)

    q, k and v are read in place out of the tensors that they are slices, reshapes and permutations of, and y is written
    in the order in which a permutation after it wants it. A mask is transposed, of several that are added the sum; one
    that is known to be causal goes, and with it the work on what it hides. `evaluate` gives the result of a function of
    the weights of `main`.
    """

    def __init__(self, unit: VectorUnit, evaluate: Evaluate) -> None:
        self.unit, self.evaluate = unit, evaluate

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        fuser = _Fuser(mod, self.unit, self.evaluate)
        return fuser.rewrite() if fuser.matches else mod


class _Fuser(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: VectorUnit, evaluate: Evaluate) -> None:
        super().__init__(mod)
        self.unit = unit
        self.matcher = Matcher(self.main, evaluate)
        self.matches = self.matcher.matches()
        self.kernels: dict[AttentionSpec, ir.GlobalVar] = {}
        self.causal: dict[tuple, bool] = {}
        self.masks: dict[Mask, ir.Expr] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        match = self.matches.get(var)
        return self.substitute(value) if match is None else self._call(match, shape(var))

    def _call(self, match: Match, result: tuple[int, ...]) -> ir.Expr:
        q, k, v = match.q, match.k, match.v
        args = [self._source(operand) for operand in (q, k, v)]
        spec = AttentionSpec(
            *match.lead, match.queries, match.keys, q.depth, v.depth,
            q=q.access, k=k.access, v=v.access, y=match.y,
            scale=match.scale * q.scale * k.scale, group=k.group, cap=match.cap, nan_is_zero=match.nan_is_zero,
        )  # fmt: skip
        mask = match.mask
        if mask is not None and self._is_causal(mask, match.queries, match.keys):
            spec = replace(spec, mask="causal")
        elif mask is not None:
            args.append(self._mask(mask))
            spec = replace(spec, mask=mask.kind, mask_shape=shape(args[-1]), fill=mask.fill)
        out = relax.call_tir(self._kernel(spec), args, relax.TensorType(match.y.buffer, "float32"))
        return out if match.y.buffer == result else op.reshape(self.emit(out), result)

    def _source(self, operand: Operand) -> ir.Expr:
        source = self.substitute(operand.source)
        if not operand.transposed:
            return source
        rank = len(shape(source))
        return self.emit(self.permute(source, [*range(rank - 2), rank - 1, rank - 2]))

    def _mask(self, mask: Mask) -> ir.Expr:
        """A mask as float32[batch or 1, heads or 1, keys, queries or 1]; layers that have it in common read one."""
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

    def _is_causal(self, mask: Mask, queries: int, keys: int) -> bool:
        """Whether the mask is known, and hides of every query just the keys that come later."""
        (tensor, extents), *others = mask.tensors
        known = tensor in self.matcher.from_weights and not others
        if not known or keys < queries or (mask.kind != "add" and mask.fill > _HIDDEN):
            return False
        key = (tensor, extents, mask.kind, mask.hides, queries, keys)
        if key not in self.causal:
            found = self.matcher.value(tensor).reshape(extents)
            if mask.kind == "add":
                visible, certain = found == 0, bool(((found == 0) | (found <= _HIDDEN)).all())
            else:
                visible, certain = (found != 0) != mask.hides, True
            wanted = np.tril(np.ones((queries, keys), bool), keys - queries)
            same = visible.shape[-2:] == wanted.shape and bool((visible == wanted).all())
            self.causal[key] = certain and same
        return self.causal[key]

    def _kernel(self, spec: AttentionSpec) -> ir.GlobalVar:
        if spec not in self.kernels:
            name = f"attention_{len(self.kernels)}"
            self.kernels[spec] = self.builder.add_func(kernel_of(spec, self.unit, name), name)
        return self.kernels[spec]


def kernel_of(spec: AttentionSpec, unit: VectorUnit, name: str) -> tirx.PrimFunc:
    """The kernel with all that the lowering wants to know."""
    func, implementation, scratch = machines.attention_of(spec, unit)
    described = kernel_attributes(
        "attention", implementation, str(spec), spec.flops, scratch=scratch, work=attention.work(spec)
    )
    return func.with_attrs({**described, "global_symbol": name})
