"""Compute attention over caches, of which just the first rows are valid, by kernels of their own."""

from __future__ import annotations

import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules.operators.attention_spec import Access, AttentionSpec
from ..schedules.registry import Machine
from .fuse_attention import kernel_of
from .ir import bindings, operator, shape, uses
from .layers import scalar
from .module_pass import module_pass
from .rebuild import MainRewriter, permuted_axes
from .views import View, access_of, view_of

_FUNCTION = "flexcomp.attention"


def attention_over(
    q: ir.Expr, k: ir.Expr, v: ir.Expr, lengths: ir.Expr, scale: float, is_causal: bool
) -> relax.Call:
    """Attention as an operator that passes carry on: float32[batch, heads, queries, depth of v].

    q, k and v are float32[batch, heads, rows, depth], of k and v with as many heads or a divisor, where groups of heads
    have one in common. `lengths`, int64[batch], says how many of the keys are valid; the last of them is the last query's own
    with `is_causal`. Queries that see no key get 0.
    """
    (batch, heads, queries, _), depth = shape(q), shape(v)[-1]
    wanted = relax.TensorType((batch, heads, queries, depth), "float32")
    settings = ir.StringImm(f"{scale!r} {int(is_causal)}")
    return op.call_pure_packed(_FUNCTION, q, k, v, lengths, settings, ty_args=wanted)


@module_pass(opt_level=0)
class LowerAttention:
    """Call a kernel for every attention over a cache.

    y = attention_over(q, k, v, n)   →   y = call_tir(cached_attention_0, (q, k, v, n))

    As in FuseAttention: q, k and v are read in place out of the viewed tensors, and y is written in the order of a
    permutation that follows.
    """

    def __init__(self, unit: Machine) -> None:
        self.unit = unit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        found = any(_is_attention(binding.value) for binding in bindings(mod["main"]))
        return _Lowerer(mod, self.unit).rewrite() if found else mod


def _is_attention(value: ir.Expr) -> bool:
    return operator(value) == "call_pure_packed" and value.args[0].global_symbol == _FUNCTION


class _Lowerer(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: Machine) -> None:
        super().__init__(mod)
        self.unit = unit
        self.bound = {binding.var: binding.value for binding in bindings(self.main)}
        self.kernels: dict[AttentionSpec, ir.GlobalVar] = {}
        self.joins: dict[relax.Var, relax.Call] = {}  # by the permutation that joins the heads of an attention, that
        readers = uses(self.main)
        for var, value in self.bound.items():
            behind = readers.get(var, []) if _is_attention(value) else []
            follower = self.bound.get(behind[0]) if len(behind) == 1 else None
            if operator(follower) == "permute_dims" and permuted_axes(follower) == [0, 2, 1, 3]:
                self.joins[behind[0]] = value

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        if var in self.joins:
            return self._call(self.joins[var], joined=True)
        if not _is_attention(value):
            return self.substitute(value)
        return None if any(value.same_as(one) for one in self.joins.values()) else self._call(value, joined=False)

    def _call(self, call: relax.Call, joined: bool) -> ir.Expr:
        _, *operands, lengths, settings = call.args
        scale, is_causal = settings.value.split()
        (q, of_q), (k, of_k), (v, of_v) = (self._operand(operand, scaled=i < 2) for i, operand in enumerate(operands))
        (batch, heads, queries, depth), (_, shared, keys, value_depth) = q.shape, v.shape
        y = Access.dense(batch, heads, queries, value_depth)
        if joined:
            y = Access((batch, queries, heads, value_depth), 0, y.batch, value_depth, heads * value_depth)
        spec = AttentionSpec(
            batch, heads, queries, keys, depth, value_depth,
            of_q, of_k, of_v, y,
            scale=float(scale) * q.scale * k.scale, causal=bool(int(is_causal)), has_lengths=True,
            group=heads // shared,
        )  # fmt: skip
        if spec not in self.kernels:
            name = f"cached_attention_{len(self.kernels)}"
            self.kernels[spec] = self.builder.add_func(kernel_of(spec, self.unit, name), name)
        args = [*(self.substitute(view.source) for view in (q, k, v)), self.substitute(lengths)]
        return relax.call_tir(self.kernels[spec], args, relax.TensorType(y.buffer, "float32"))

    def _operand(self, operand: relax.Var, scaled: bool) -> tuple[View, Access]:
        """The place of queries, keys or values, in the viewed tensor if that can be read."""
        view = view_of(operand, self.bound, scalar)
        found = access_of(view, view.shape[:2]) if scaled or view.scale == 1.0 else None
        if found is None or found[1] != 1:
            view = View.whole(operand)
            found = access_of(view, view.shape[:2])
        return view, found[0]
