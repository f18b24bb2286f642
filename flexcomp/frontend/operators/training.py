"""Operators that do something else in training than in inference."""

from __future__ import annotations

import numpy as np
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


def _dropout(node: Node) -> relax.Expr:
    """The data itself, and a mask that keeps everything; in training it is random, unless nothing is to be dropped."""
    training = node.value(2)
    ratio = node.value(1) if node.input(1) is not None else node.attrs.get("ratio", 0.5)
    if node.input(2) is not None and (training is None or (training.item() and (ratio is None or float(ratio) != 0))):
        raise node.refuse("in training mode its result is random; export the network for inference")
    if node.outputs == 1:
        return node.data
    mask = np.ones(node.shape, "bool" if node.opset >= 10 else node.dtype)
    return relax.Tuple([node.data, relax.const(mask)])


CONVERTERS: dict[str, Converter] = {"BatchNormalization": _batch_normalization, "Dropout": _dropout}
