"""Operators that compute every element of the result on its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, is_float, scalar


def _chain(binary: Callable) -> Converter:
    """An n-ary elementwise operator as a chain; the importer broadcasts, stacks and reduces."""
    return lambda node: functools.reduce(lambda a, b: node.emit(binary(a, b)), node.inputs)


def _mean(node: Node) -> relax.Expr:
    if len(node.inputs) == 1:
        return node.data
    total = _chain(op.add)(node)
    return op.multiply(total, relax.const(1 / len(node.inputs), node.dtype))


def _clip(node: Node) -> relax.Expr | None:
    """Bounds are attributes before opset 11, constant inputs after. A NaN bound is no bound."""
    data, *given = node.inputs
    if not is_float(data):
        return None
    bounds = []
    for i, (key, unbounded) in enumerate((("min", -math.inf), ("max", math.inf))):
        bound = node.attrs.get(key)
        if i < len(given) and given[i] is not None:
            bound = scalar(given[i])
            if bound is None:
                return None
        bounds.append(unbounded if bound is None or math.isnan(bound) else bound)
    low, high = bounds
    if math.isinf(low) and math.isinf(high):
        return data if low < 0 < high else None
    if math.isinf(high):
        return op.nn.relu(data) if low == 0 else op.maximum(data, relax.const(low, node.dtype))
    if math.isinf(low):
        return op.minimum(data, relax.const(high, node.dtype))
    return op.clip(data, low, high)


def _pow(node: Node) -> relax.Expr | None:
    """Powers with a constant exponent that need no `pow`."""
    base, exponent = node.data, scalar(node.inputs[1])
    if not is_float(base) or node.inputs[1].ty.ndim > base.ty.ndim:
        return None
    if exponent == 1:
        return base
    if exponent == 2:
        return op.multiply(base, base)
    if exponent == 3:
        return op.multiply(node.emit(op.multiply(base, base)), base)
    if exponent == 0.5:
        return op.sqrt(base)
    if exponent == -0.5:
        return op.rsqrt(base)
    if exponent == -1:
        return op.divide(relax.const(1.0, node.dtype), base)
    return None


CONVERTERS: dict[str, Converter] = {
    "Clip": _clip,
    "Max": _chain(op.maximum),
    "Mean": _mean,
    "Min": _chain(op.minimum),
    "Pow": _pow,
    "Sum": _chain(op.add),
}
