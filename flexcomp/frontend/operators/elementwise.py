"""Operators that compute every element of the result on its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, dtype_of, is_float, require_spread, scalar, shape_of


def _chain(binary: Callable) -> Converter:
    """An n-ary elementwise operator as a chain; the importer broadcasts, stacks and reduces."""
    return lambda node: functools.reduce(lambda a, b: node.emit(binary(a, b)), node.inputs)


def _mean(node: Node) -> relax.Expr:
    if len(node.inputs) == 1:
        return node.data
    total = _chain(op.add)(node)
    return op.multiply(total, relax.const(1 / len(node.inputs), node.dtype))


def _bounds(node: Node) -> list[relax.Expr | float]:
    """The bounds of Clip: numbers where they are known, infinite where there are none. A NaN bound is no bound."""
    bounds = []
    for i, (key, unbounded) in enumerate((("min", -math.inf), ("max", math.inf))):
        bound = node.attrs.get(key, unbounded) if node.opset < 11 else node.input(i + 1)
        if isinstance(bound, relax.Expr):
            value = scalar(bound)
            bound = bound if value is None else value
        bounds.append(unbounded if bound is None or (isinstance(bound, float) and math.isnan(bound)) else bound)
    return bounds


def _clip(node: Node) -> relax.Expr:
    """Bounds are attributes before opset 11, inputs after. The upper one has the last word."""
    data = node.data
    low, high = bounds = _bounds(node)
    computed = [bound for bound in bounds if isinstance(bound, relax.Expr)]
    if computed or not is_float(data):
        # Of a computed bound that is NaN no comparison holds, so it bounds nothing.
        if low != -math.inf:
            low = low if isinstance(low, relax.Expr) else relax.const(low, node.dtype)
            data = node.emit(op.where(op.less(data, low), low, data))
        if high != math.inf:
            high = high if isinstance(high, relax.Expr) else relax.const(high, node.dtype)
            data = node.emit(op.where(op.greater(data, high), high, data))
        return data
    if low == -math.inf and high == math.inf:
        return data
    if high == math.inf and low != math.inf:
        return op.nn.relu(data) if low == 0 else op.maximum(data, relax.const(low, node.dtype))
    if low == -math.inf:
        return op.minimum(data, relax.const(high, node.dtype))
    # With a lower bound above the upper one the result is the upper one, but for NaN.
    return op.clip(data, min(low, high), high)


def _pow(node: Node) -> relax.Expr | None:
    """Powers have the type of their base. Those with a constant exponent need no `pow`, if it is a small one."""
    base, exponent = node.data, node.inputs[1]
    number = scalar(exponent) if exponent.ty.ndim <= base.ty.ndim else None
    if number == 1:
        return base
    if number == 2:
        return op.multiply(base, base)
    if number == 3:
        return op.multiply(node.emit(op.multiply(base, base)), base)
    if not is_float(base):
        wide = [node.emit(op.astype(x, "float64")) for x in (base, exponent)]
        return op.astype(node.emit(op.power(*wide)), node.dtype)
    if number == 0.5:
        return op.sqrt(base)
    if number == -0.5:
        return op.rsqrt(base)
    if number == -1:
        return op.divide(relax.const(1.0, node.dtype), base)
    if dtype_of(exponent) != node.dtype:
        return op.power(base, node.emit(op.astype(exponent, node.dtype)))
    return None


def _float_mod(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """What is left of a / b, with the sign of b; `truncmod` has the sign of a. Both are exact."""

    def element(x, y):
        rest = tirx.truncmod(x, y)
        zero = tirx.const(0, x.ty.dtype)
        other_sign = tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero))
        return tirx.Select(other_sign, rest + y, rest)

    return te.compute(a.shape, lambda *i: element(a(*i), b(*i)), name="mod")


def _mod(node: Node) -> relax.Expr | None:
    a, b = node.inputs
    if not is_float(a):
        return _unless_zero(node, op.mod if node.attrs.get("fmod", 0) else op.floor_mod)
    if node.attrs.get("fmod", 0):
        return None
    result = np.broadcast_shapes(shape_of(a), shape_of(b))
    a, b = (node.emit(op.broadcast_to(x, result)) if shape_of(x) != result else x for x in (a, b))
    return node.bb.emit_te(_float_mod, a, b, primfunc_name_hint="mod")


def _divide(node: Node) -> relax.Expr | None:
    return None if is_float(node.data) else _unless_zero(node, op.divide)


def _unless_zero(node: Node, operator: Callable) -> relax.Expr | None:
    """Integer division, with 0 for what ONNX does not define and processors end the program at: a divisor of 0.

    The other such case is the smallest number divided by -1, which is its own negative.
    """
    a, b = node.inputs
    known = node.value(1)
    if known is not None and not np.isin(known, (0, -1)).any():
        return None
    kind = dtype_of(b)
    is_zero, is_minus_one = (node.emit(op.equal(b, relax.const(n, kind))) for n in (0, -1 if kind[0] == "i" else 0))
    harmless = node.emit(op.where(node.emit(op.logical_or(is_zero, is_minus_one)), relax.const(1, kind), b))
    result = node.emit(operator(a, harmless))
    if kind[0] == "i":
        by_minus_one = node.emit(op.negative(a)) if operator is op.divide else relax.const(0, kind)
        result = node.emit(op.where(is_minus_one, by_minus_one, result))
    return op.where(is_zero, relax.const(0, kind), result)


def _bit_shift(node: Node) -> relax.Expr | None:
    """Shifts by as many bits as there are, or more, leave nothing but the sign; processors shift by the rest of a division."""
    a, b = node.inputs
    bits, kind = tvm.DataType(node.dtype).bits, dtype_of(b)
    known = node.value(1)
    if known is not None and ((known >= 0) & (known < bits)).all():
        return None
    right = node.text("direction", "") == "RIGHT"
    # A negative number of bits is a large one, as it is without a sign.
    small = node.emit(op.less(b, relax.const(bits, kind)))
    if kind.startswith("int"):
        small = node.emit(op.logical_and(small, node.emit(op.greater_equal(b, relax.const(0, kind)))))
    shift = op.right_shift if right else op.left_shift
    shifted = node.emit(shift(a, node.emit(op.where(small, b, relax.const(0, kind)))))
    signs = right and node.dtype.startswith("int")
    nothing = node.emit(op.right_shift(a, relax.const(bits - 1, node.dtype))) if signs else relax.const(0, node.dtype)
    return op.where(small, shifted, nothing)


def _is_inf(node: Node) -> relax.Expr | None:
    signs = [s for s, key in ((math.inf, "detect_positive"), (-math.inf, "detect_negative")) if node.attrs.get(key, 1)]
    if len(signs) == 2:
        return None
    if not signs:
        return op.zeros(relax.ShapeExpr(node.shape), "bool")
    return op.equal(node.data, relax.const(signs[0], node.dtype))


def _cosh(node: Node) -> relax.Expr:
    """(e^|x| + e^-|x|) / 2, by t = e^(|x|/2), whose square does not overflow before the result does."""
    return op.add(*_half_exponentials(node))


def _sinh(node: Node) -> relax.Expr:
    """Like cosh; below 1, where the difference would cancel, by the series."""
    x, one = node.data, relax.const(1.0, node.dtype)
    large = node.emit(op.multiply(op.sign(x), op.subtract(*_half_exponentials(node))))
    square, series = node.emit(op.multiply(x, x)), one
    for n in range(11 if node.dtype == "float64" else 6, 0, -1):
        factor = relax.const(1 / ((2 * n) * (2 * n + 1)), node.dtype)
        series = node.emit(op.add(one, op.multiply(node.emit(op.multiply(square, factor)), series)))
    return op.where(op.less(node.emit(op.abs(x)), one), op.multiply(x, series), large)


def _half_exponentials(node: Node) -> tuple[relax.Expr, relax.Expr]:
    """e^|x| / 2 and e^-|x| / 2."""
    half = relax.const(0.5, node.dtype)
    t = node.emit(op.exp(node.emit(op.multiply(node.emit(op.abs(node.data)), half))))
    return node.emit(op.multiply(op.multiply(t, half), t)), node.emit(op.divide(half, op.multiply(t, t)))


def _sign(node: Node) -> relax.Expr | None:
    """NaN has no sign; TVM gives 0, and compares with -1 what has no sign either."""
    if node.dtype.startswith("uint"):
        return op.minimum(node.data, relax.const(1, node.dtype))
    if not is_float(node.data):
        return None
    return op.where(op.isnan(node.data), node.data, op.sign(node.data))


def _elu(node: Node) -> relax.Expr:
    return _exponential_unit(node, node.attrs.get("alpha", 1.0))


def _selu(node: Node) -> relax.Expr:
    older = node.opset < 6
    alpha = node.attrs.get("alpha", 1.6732 if older else 1.67326319217681884765625)
    gamma = node.attrs.get("gamma", 1.0507 if older else 1.05070102214813232421875)
    return op.multiply(relax.const(gamma, node.dtype), node.emit(_exponential_unit(node, alpha)))


def _celu(node: Node) -> relax.Expr:
    alpha = node.attrs.get("alpha", 1.0)
    if alpha == 0:
        raise node.refuse("its alpha is 0, by which it divides: make it another number")
    exponent = node.emit(op.divide(node.data, relax.const(alpha, node.dtype)))
    return _exponential_unit(node, alpha, exponent, op.minimum if alpha > 0 else op.maximum)  # min(alpha · (e^exponent - 1), 0)


def _shrink(node: Node) -> relax.Expr:
    """x + bias below -lambd, else x - bias above lambd, else 0. Integers are compared and moved as floats."""
    wide = node.data if is_float(node.data) else node.emit(op.astype(node.data, "float64"))
    bias, lambd, below, zero = (
        relax.const(number, dtype_of(wide))
        for number in (node.attrs.get("bias", 0.0), node.attrs.get("lambd", 0.5), -node.attrs.get("lambd", 0.5), 0.0)
    )
    above = node.emit(op.where(node.emit(op.greater(wide, lambd)), node.emit(op.subtract(wide, bias)), zero))
    result = node.emit(op.where(node.emit(op.less(wide, below)), node.emit(op.add(wide, bias)), above))
    return result if is_float(node.data) else op.astype(result, node.dtype)


def _exponential_unit(
    node: Node, alpha: float, exponent: relax.Expr | None = None, bound: Callable[..., relax.Expr] = op.minimum
) -> relax.Expr:
    """max(x, 0) + alpha · bound(e^exponent - 1, 0)."""
    zero, one = relax.const(0.0, node.dtype), relax.const(1.0, node.dtype)
    power = node.emit(op.exp(node.data if exponent is None else exponent))
    below = node.emit(bound(node.emit(op.subtract(power, one)), zero))
    return op.add(node.emit(op.multiply(relax.const(alpha, node.dtype), below)), node.emit(op.nn.relu(node.data)))


def _thresholded_relu(node: Node) -> relax.Expr:
    """The importer multiplies by the comparison, which makes NaN of infinities."""
    zero, alpha = relax.const(0.0, node.dtype), relax.const(node.attrs.get("alpha", 1.0), node.dtype)
    return op.where(op.greater(node.data, alpha), node.data, zero)


def _prelu(node: Node) -> relax.Expr | None:
    """Before opset 7 a slope belongs to a channel; since then it broadcasts to the operand."""
    slope, rank = node.inputs[1], node.data.ty.ndim
    if node.opset >= 7:
        require_spread(node, 1, node.shape)
    elif math.prod(shape_of(slope)) not in (1, *node.shape[min(1, rank - 1) :][:1]):
        raise node.refuse(f"its slope has {math.prod(shape_of(slope))} values, its operand {list(node.shape)}: correct its shape")
    if not is_float(node.data):
        zero = relax.const(0, node.dtype)
        return op.where(op.less(node.data, zero), node.emit(op.multiply(node.data, slope)), node.data)
    if node.opset >= 7 or math.prod(shape_of(slope)) == 1:
        return None
    return op.nn.prelu(node.data, node.emit(op.reshape(slope, (math.prod(shape_of(slope)),))), min(1, rank - 1))


def _equal(node: Node) -> relax.Expr | None:
    if node.dtype != "bool":
        return None
    return op.logical_not(node.emit(op.logical_xor(*node.inputs)))


CONVERTERS: dict[str, Converter] = {
    "BitShift": _bit_shift,
    "Celu": _celu,
    "Shrink": _shrink,
    "Clip": _clip,
    "Cosh": _cosh,
    "Div": _divide,
    "Elu": _elu,
    "Equal": _equal,
    "IsInf": _is_inf,
    "Max": _chain(op.maximum),
    "Mean": _mean,
    "Min": _chain(op.minimum),
    "Mod": _mod,
    "PRelu": _prelu,
    "Pow": _pow,
    "Selu": _selu,
    "Sign": _sign,
    "Sinh": _sinh,
    "Sum": _chain(op.add),
    "ThresholdedRelu": _thresholded_relu,
}
