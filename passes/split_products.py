"""Multiply the parts of a concatenation one by one, before broadcasting, instead of a tensor of all pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

# A concatenation of so many times its parts, before broadcasting, shall not exist.
_LARGER = 2.0


@module_pass(opt_level=0)
class SplitProducts:
    """Make a product of concatenated broadcasts with weights a sum of broadcast products.

    a = broadcast_to(x, (n, n, 64))     x: float32[n, 1, 64]
    b = broadcast_to(y, (n, n, 64))     y: float32[1, n, 64]
    z = matmul(concat([a, b], -1), w)       →    z = add(matmul(x, w[:64]), matmul(y, w[64:]))

    Relation networks concatenate all pairs of objects. The products of n objects replace the products of n² pairs, and their sum
    is fused with the elementwise operators that follow. Each element stays a sum of the same numbers. A sum of broadcasts is not
    split: for a small difference of large numbers, the products of these would have lost its digits.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        return rewriter.rewrite() if rewriter.joined else mod


@dataclass(frozen=True)
class _Part:
    """An operand of a concatenation."""

    source: relax.Var  # before broadcasting
    extents: tuple[int, ...]  # of the source, with as many axes as the concatenation
    depth: int


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.readers = uses(self.main)
        self.from_weights = weight_vars(self.main)
        # By variable: the parts of products' operands, and the leading extents.
        self.joined = {var: found for var, value in self.old.items() if (found := self._joined(value)) is not None}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        found = self.joined.get(var)
        if found is None:
            return self.substitute(value)
        parts, lead = found
        weight, begin, terms = self.substitute(value.args[1]), 0, []
        for part in parts:
            rows = self.emit(op.strided_slice(weight, [0], [begin], [begin + part.depth]))
            source = self.emit(self.reshape(self.substitute(part.source), part.extents))
            terms.append(self.emit(op.matmul(source, rows)))
            begin += part.depth
        total = terms[0]
        for term in terms[1:]:
            total = self.emit(op.add(total, term))
        width = shape(var)[-1]
        if shape(total) != (*lead, width):
            total = self.emit(op.broadcast_to(total, (*lead, width)))
        return self.reshape(total, shape(var))

    def _joined(self, value: ir.Expr) -> tuple[list[_Part], tuple[int, ...]] | None:
        if operator(value) != "matmul":
            return None
        rows, weight = value.args
        if weight not in self.from_weights or len(shape(weight)) != 2 or dtype(weight) != "float32":
            return None
        made = self._only(rows)
        while operator(made) == "reshape" and shape(made.args[0])[-1:] == shape(rows)[-1:]:
            rows = made.args[0]
            made = self._only(rows)
        if operator(made) != "concat" or made.attrs.axis is None or int(made.attrs.axis) not in (-1, len(shape(made)) - 1):
            return None
        fields = made.args[0].fields
        if not all(isinstance(field, relax.Var) and static_tensor(field) for field in fields):
            return None
        parts = [self._part(field) for field in fields]
        sources = {part.source: math.prod(part.extents) for part in parts}
        return (parts, shape(made)[:-1]) if math.prod(shape(made)) > _LARGER * sum(sources.values()) else None

    def _part(self, var: relax.Var) -> _Part:
        """The parts of a concatenation, before the last broadcasts of all axes but the last."""
        source, extents, depth = var, shape(var), shape(var)[-1]
        while operator(value := self.old.get(source)) in ("broadcast_to", "tile"):
            inner = value.args[0]
            if not isinstance(inner, relax.Var) or not static_tensor(inner) or len(shape(inner)) > len(extents):
                break
            padded = (1,) * (len(extents) - len(shape(inner))) + shape(inner)
            # A tile of several elements repeats them in another order.
            if padded[-1] != depth or any(old not in (1, new) for old, new in zip(padded, extents, strict=True)):
                break
            source, extents = inner, padded
        return _Part(source, extents, depth)

    def _only(self, var: ir.Expr) -> relax.Call | None:
        """The expression of a variable with one reader, if that is float32."""
        alone = isinstance(var, relax.Var) and len(self.readers.get(var, [])) == 1
        value = self.old.get(var) if alone and static_tensor(var) and dtype(var) == "float32" else None
        return value if isinstance(value, relax.Call) else None
