"""Sums, extremes and norms over axes."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, dtype_of, is_float

# Kinds whose axes became an input in opset 13; those of the others did in opset 18.
_EARLY = ("ReduceSum",)
# Kinds that take roots and logarithms: integers go through float64 there.
_OF_FLOATS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


def _axes(node: Node) -> list[int] | None:
    """The axes to reduce, all if none are given; None if nothing is to be reduced."""
    rank = node.data.ty.ndim
    axes = node.attrs.get("axes") if node.opset < (13 if node.kind in _EARLY else 18) else node.value(1)
    if axes is None or len(axes) == 0:
        return None if node.attrs.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({int(axis) % rank for axis in axes})


def _reduce(reduce: Callable, node: Node) -> relax.Expr:
    """`reduce(node, data, over)`, where `over(operator, data)` applies a reduction."""
    axes, keepdims = _axes(node), bool(node.attrs.get("keepdims", 1))

    def over(operator: Callable, data: relax.Expr, keep: bool = keepdims) -> relax.Expr:
        return data if not axes else node.emit(operator(data, axes, keepdims=keep))

    if node.kind in _OF_FLOATS and not is_float(node.data):
        wide = node.emit(op.astype(node.data, "float64"))
        return op.astype(node.emit(reduce(node, wide, over)), node.dtype)
    return reduce(node, node.data, over)


def _extreme(operator: Callable, node: Node, data: relax.Expr, over: Callable) -> relax.Expr:
    """Of booleans too: the larger of two is whether one of them holds."""
    if node.dtype == "bool":
        return op.astype(over(operator, node.emit(op.astype(data, "uint8"))), "bool")
    return over(operator, data)


def _mean(node: Node, data: relax.Expr, over: Callable) -> relax.Expr:
    if is_float(data):
        return over(op.mean, data)
    total = over(op.sum, data)
    count = _size(node.shape) // max(_size(tuple(int(d) for d in total.ty.shape.values)), 1)
    return op.divide(total, relax.const(max(count, 1), node.dtype))


def _size(shape: tuple[int, ...]) -> int:
    return functools.reduce(lambda a, b: a * b, shape, 1)


def _square(node: Node, data: relax.Expr) -> relax.Expr:
    return node.emit(op.multiply(data, data))


def _log_sum_exp(node: Node, data: relax.Expr, over: Callable) -> relax.Expr:
    """The largest is taken out of the exponentials, unless it is infinite: of inf - inf nothing is left."""
    zero = relax.const(0.0, dtype_of(data))

    def finite(largest: relax.Expr) -> relax.Expr:
        return node.emit(op.where(op.isinf(largest), zero, largest))

    exponentials = node.emit(op.exp(node.emit(op.subtract(data, finite(over(op.max, data, True))))))
    return op.add(node.emit(op.log(over(op.sum, exponentials))), finite(over(op.max, data)))


_KINDS: dict[str, Callable[[Node, relax.Expr, Callable], relax.Expr]] = {
    "ReduceL1": lambda node, x, over: over(op.sum, node.emit(op.abs(x))),
    "ReduceL2": lambda node, x, over: op.sqrt(over(op.sum, _square(node, x))),
    "ReduceLogSum": lambda node, x, over: op.log(over(op.sum, x)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": functools.partial(_extreme, op.max),
    "ReduceMean": _mean,
    "ReduceMin": functools.partial(_extreme, op.min),
    "ReduceProd": lambda node, x, over: over(op.prod, x),
    "ReduceSum": lambda node, x, over: over(op.sum, x),
    "ReduceSumSquare": lambda node, x, over: over(op.sum, _square(node, x)),
}

CONVERTERS: dict[str, Converter] = {kind: functools.partial(_reduce, reduce) for kind, reduce in _KINDS.items()}
