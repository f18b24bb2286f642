"""Sum large broadcast values while making them, instead of a matrix product of a tensor that exists whole."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .layers import ELEMENTWISE
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

# A tensor of so many times its operands shall not exist.
_LARGER = 2.0


@module_pass(opt_level=0)
class ReduceBroadcasts:
    """Make a product with one column of weights a sum, if its rows are computed from smaller tensors.

    t = tanh(add(q, k))                  float32[queries, keys, width], of q [queries, 1, width] and k [1, keys, width]
    y = matmul(t, w)                →    y = sum(multiply(t, w), axis=-1)        w: float32[width, 1]

    A sum is fused with the elementwise operators before it, and t is never in memory: so additive attention takes as much as
    its scores.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        return rewriter.rewrite() if rewriter.sums else mod


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.readers = uses(self.main)
        self.from_weights = weight_vars(self.main)
        # Products by their variable, and the computed rows.
        self.sums = {var: rows for var, value in self.old.items() if (rows := self._rows(value)) is not None}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        rows = self.sums.get(var)
        if rows is None:
            return self.substitute(value)
        weight = self.emit(self.reshape(self.substitute(value.args[1]), (shape(rows)[-1],)))
        total = self.emit(op.sum(self.emit(op.multiply(self.substitute(rows), weight)), [-1]))
        return self.reshape(total, shape(var))

    def _rows(self, value: ir.Expr) -> relax.Var | None:
        if operator(value) != "matmul":
            return None
        rows, weight = value.args
        is_column = weight in self.from_weights and shape(weight)[1:] == (1,) and dtype(weight) == "float32"
        while is_column and (made := self._only(rows)) is not None and operator(made) == "reshape":
            if shape(made.args[0])[-1:] != shape(rows)[-1:]:
                return None
            rows = made.args[0]
        if not is_column or self._only(rows) is None or operator(self._only(rows)) not in ELEMENTWISE:
            return None
        return rows if math.prod(shape(rows)) > _LARGER * self._operand_elements(rows) else None

    def _only(self, var: ir.Expr) -> relax.Call | None:
        """The expression of a variable with one reader, if that is float32."""
        alone = isinstance(var, relax.Var) and len(self.readers.get(var, [])) == 1
        value = self.old.get(var) if alone and static_tensor(var) and dtype(var) == "float32" else None
        return value if isinstance(value, relax.Call) else None

    def _operand_elements(self, var: relax.Var) -> int:
        """Elements of all tensors that a tensor is computed from, elementwise."""
        found: dict[relax.Var, int] = {}
        ahead, seen = [var], {var}
        while ahead:
            call = self._made(ahead.pop(), seen)
            for arg in call.args:
                if not isinstance(arg, relax.Var) or arg in seen:
                    continue
                seen.add(arg)
                if self._made(arg, seen) is None:
                    found[arg] = math.prod(shape(arg))
                else:
                    ahead.append(arg)
        return sum(found.values())

    def _made(self, var: relax.Var, members: set[relax.Var]) -> relax.Call | None:
        """The elementwise operator that makes a tensor, if nothing but members of the chain may need it."""
        value = self.old.get(var)
        is_elementwise = operator(value) in (*ELEMENTWISE, "broadcast_to") and dtype(var) == "float32"
        inside = all(reader in members or len(self.readers[var]) == 1 for reader in self.readers.get(var, []))
        return value if is_elementwise and inside else None
