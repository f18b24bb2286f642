"""BatchNormalization, which does something else in training than in inference."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node


def _batch_normalization(node: Node) -> relax.Expr | None:
    """With `training_mode` it normalises by the batch's own statistics, and gives the running ones besides."""
    if not node.attrs.get("training_mode", 0):
        return None
    data, scale, bias, mean, variance = node.inputs
    momentum, epsilon = node.attrs.get("momentum", 0.9), node.attrs.get("epsilon", 1e-5)
    axes = [axis for axis in range(data.ty.ndim) if axis != 1]
    column = (-1, *[1] * (data.ty.ndim - 2))

    def constant(value: float) -> relax.Expr:
        return relax.const(value, data.ty.dtype)

    def running(old: relax.Expr, new: relax.Expr) -> relax.Expr:
        kept = node.emit(op.multiply(old, constant(momentum)))
        return node.emit(op.add(kept, node.emit(op.multiply(new, constant(1 - momentum)))))

    batch_mean = node.emit(op.mean(data, axes, keepdims=True))
    centred = node.emit(op.subtract(data, batch_mean))
    batch_variance = node.emit(op.mean(node.emit(op.multiply(centred, centred)), axes, keepdims=True))
    inverse = node.emit(op.rsqrt(node.emit(op.add(batch_variance, constant(epsilon)))))
    factor = node.emit(op.multiply(inverse, node.emit(op.reshape(scale, column))))
    result = node.emit(op.add(node.emit(op.multiply(centred, factor)), node.emit(op.reshape(bias, column))))
    if node.outputs == 1:
        return result
    flat = [node.emit(op.reshape(statistic, (-1,))) for statistic in (batch_mean, batch_variance)]
    return relax.Tuple([result, *(running(old, new) for old, new in zip((mean, variance), flat, strict=True))])


CONVERTERS: dict[str, Converter] = {"BatchNormalization": _batch_normalization}
