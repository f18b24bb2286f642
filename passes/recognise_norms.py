"""Find normalisations that are written out, and make one operator of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .layers import scalar
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars


@module_pass(opt_level=0)
class RecogniseNorms:
    """Replace the operators of a written-out layer norm or root-mean-square norm by that norm.

    c = x - mean(x)
    d = sqrt(mean(c · c) + eps)       →   y = layer_norm(x, w, b, eps)
    y = c / d · w + b

    Or x · (1 / d) · w + (b - mean(x) · (1 / d) · w); without c: rms_norm. Rows span the last axes; w and b are weights of a
    row's shape, or left out. This comes after layouts are chosen: rows of pixels are none in NHWC.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        return rewriter.rewrite() if rewriter.norms else mod


@dataclass(frozen=True)
class _Norm:
    kind: str  # "layer_norm" or "rms_norm"
    data: relax.Var
    axes: int  # how many of the last axes are a row
    epsilon: float
    scale: relax.Var | None = None
    bias: relax.Var | None = None


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.readers = uses(self.main)
        self.from_weights = weight_vars(self.main)
        self.norms: dict[relax.Var, _Norm] = {}
        for var in self.old:
            if static_tensor(var) and dtype(var) == "float32" and var not in self.from_weights and 0 not in shape(var):
                found = self._affine(var) or self._core(var) or self._shifted(var)
                if found is not None:
                    self.norms[var] = found

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        norm = self.norms.get(var)
        return self.substitute(value) if norm is None else self._call(norm)

    def _call(self, norm: _Norm) -> ir.Expr:
        data = self.substitute(norm.data)
        rank = len(shape(data))
        row, axes = shape(data)[rank - norm.axes :], list(range(rank - norm.axes, rank))
        scale, bias = (
            relax.const(np.full(row, value, "float32")) if one is None else self.emit(self.reshape(self.substitute(one), row))
            for one, value in ((norm.scale, 1.0), (norm.bias, 0.0))
        )
        if norm.kind == "rms_norm":
            return op.nn.rms_norm(data, scale, axes, norm.epsilon)
        return op.nn.layer_norm(data, scale, bias, axes, norm.epsilon)

    # -- expressions of variables ---------------------------------------------------------------------

    def _made(self, expr: ir.Expr, name: str) -> relax.Call | None:
        value = self.old.get(expr) if isinstance(expr, relax.Var) else None
        return value if operator(value) == name else None

    def _pairs(self, expr: ir.Expr, name: str) -> list[tuple[ir.Expr, ir.Expr]]:
        """The operands of a commutative operator, both ways round."""
        call = self._made(expr, name)
        return [] if call is None else [tuple(call.args), tuple(call.args)[::-1]]

    # -- from the end of a norm to its beginning ---------------------------------------------------------

    def _affine(self, var: relax.Var) -> _Norm | None:
        """A norm that nothing else reads, times or plus a weight."""
        for inner, weight in self._pairs(var, "multiply"):
            norm = self._inner(inner)
            if norm is not None and norm.scale is None and norm.bias is None and self._is_row(weight, norm):
                return replace(norm, scale=weight)
        for inner, weight in self._pairs(var, "add"):
            norm = self._inner(inner)
            if norm is not None and norm.kind == "layer_norm" and norm.bias is None and self._is_row(weight, norm):
                return replace(norm, bias=weight)
        return None

    def _inner(self, var: ir.Expr) -> _Norm | None:
        return self.norms.get(var) if isinstance(var, relax.Var) and len(self.readers.get(var, [])) == 1 else None

    def _is_row(self, weight: ir.Expr, norm: _Norm) -> bool:
        if weight not in self.from_weights or dtype(weight) != "float32":
            return False
        row, extents = shape(norm.data)[len(shape(norm.data)) - norm.axes :], shape(weight)
        return extents[len(extents) - norm.axes :] == row and math.prod(extents) == math.prod(row)

    def _core(self, var: relax.Var) -> _Norm | None:
        """The normalised value over its deviation, without weights."""
        quotient = self._made(var, "divide")
        found = [] if quotient is None else [(quotient.args[0], self._deviation(quotient.args[1]))]
        found += [(data, self._inverse(factor)) for data, factor in self._pairs(var, "multiply")]
        for data, spread in found:
            if spread is None or not isinstance(data, relax.Var):
                continue
            square, epsilon = spread
            if (norm := self._of(data, square, epsilon)) is not None and shape(norm.data) == shape(var):
                return norm
        return None

    def _of(self, data: relax.Var, square: ir.Expr, epsilon: float) -> _Norm | None:
        """A norm of which `data` is over the root of `square` + epsilon."""
        centred = self._made(data, "subtract")
        if centred is not None and (axes := self._mean_of(centred.args[1], centred.args[0])):
            variance = self._made(square, "variance")
            same = variance is not None and variance.args[0].same_as(centred.args[0]) and _last_axes(variance) == axes
            if same or self._mean_square(square, data) == axes:
                return _Norm("layer_norm", centred.args[0], axes, epsilon)
        axes = self._mean_square(square, data)
        return _Norm("rms_norm", data, axes, epsilon) if axes else None

    def _shifted(self, var: relax.Var) -> _Norm | None:
        """x · r + (b - mean(x) · r), where r is one over the deviation, with a weight or without."""
        for product, shift in self._pairs(var, "add"):
            for data, factor in self._pairs(product, "multiply"):
                found = self._weighted_inverse(factor)
                if found is None or not isinstance(data, relax.Var):
                    continue
                square, epsilon, scale = found
                bias, mean = self._shift(shift, factor)
                axes = self._mean_of(mean, data)
                if axes and self._variance_axes(square, data) == axes:
                    norm = _Norm("layer_norm", data, axes, epsilon)
                    if all(one is None or self._is_row(one, norm) for one in (scale, bias)) and shape(data) == shape(var):
                        return replace(norm, scale=scale, bias=bias)
        return None

    def _shift(self, shift: ir.Expr, factor: ir.Expr) -> tuple[ir.Expr | None, ir.Expr | None]:
        """b and mean of b - mean · factor, which may be written as b + -mean · factor."""
        difference = self._made(shift, "subtract")
        if difference is not None:
            return difference.args[0], self._other(difference.args[1], factor)
        for product, bias in [(shift, None), *self._pairs(shift, "add")]:
            negative = self._made(self._other(product, factor), "negative")
            if negative is not None:
                return bias, negative.args[0]
            for inner, number in self._pairs(product, "multiply"):
                if scalar(number) == -1.0:
                    return bias, self._other(inner, factor)
        return None, None

    def _other(self, product: ir.Expr, factor: ir.Expr) -> ir.Expr | None:
        return next((a for a, b in self._pairs(product, "multiply") if b.same_as(factor)), None)

    def _weighted_inverse(self, factor: ir.Expr) -> tuple[ir.Expr, float, ir.Expr | None] | None:
        if (plain := self._inverse(factor)) is not None:
            return (*plain, None)
        for inner, weight in self._pairs(factor, "multiply"):
            if weight in self.from_weights and (found := self._inverse(inner)) is not None:
                return (*found, weight)
        return None

    def _inverse(self, expr: ir.Expr) -> tuple[ir.Expr, float] | None:
        """v and epsilon of 1 / sqrt(v + epsilon)."""
        root = self._made(expr, "rsqrt")
        if root is not None:
            return self._sum(root.args[0])
        quotient = self._made(expr, "divide")
        return self._deviation(quotient.args[1]) if quotient is not None and scalar(quotient.args[0]) == 1.0 else None

    def _deviation(self, expr: ir.Expr) -> tuple[ir.Expr, float] | None:
        root = self._made(expr, "sqrt")
        return self._sum(root.args[0]) if root is not None else None

    def _sum(self, expr: ir.Expr) -> tuple[ir.Expr, float] | None:
        for square, epsilon in self._pairs(expr, "add"):
            if (value := scalar(epsilon)) is not None and scalar(square) is None:
                return square, value
        return None

    def _mean_of(self, expr: ir.Expr | None, data: ir.Expr) -> int | None:
        """How many of the last axes `expr` is the mean over, of `data`."""
        mean = self._made(expr, "mean")
        return _last_axes(mean) if mean is not None and mean.args[0].same_as(data) else None

    def _mean_square(self, expr: ir.Expr, data: ir.Expr) -> int | None:
        mean = self._made(expr, "mean")
        square = self._made(mean.args[0], "multiply") if mean is not None else None
        return _last_axes(mean) if square is not None and all(arg.same_as(data) for arg in square.args) else None

    def _variance_axes(self, expr: ir.Expr, data: ir.Expr) -> int | None:
        """How many of the last axes `expr` is the variance over, of `data`."""
        variance = self._made(expr, "variance")
        if variance is not None:
            return _last_axes(variance) if variance.args[0].same_as(data) else None
        mean = self._made(expr, "mean")
        square = self._made(mean.args[0], "multiply") if mean is not None else None
        centred = self._made(square.args[0], "subtract") if square is not None else None
        if centred is None or not square.args[1].same_as(square.args[0]) or not centred.args[0].same_as(data):
            return None
        axes = self._mean_of(centred.args[1], data)
        return axes if axes == _last_axes(mean) else None


def _last_axes(call: relax.Call) -> int | None:
    """How many axes a reduction takes, if these are the last ones and stay as axes of one element."""
    rank, axis = len(shape(call.args[0])), call.attrs.axis
    axes = sorted(range(rank) if axis is None else {int(one) % rank for one in axis})
    return len(axes) if call.attrs.keepdims and axes and axes == list(range(rank - len(axes), rank)) else None
