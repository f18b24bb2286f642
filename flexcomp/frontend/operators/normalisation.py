"""Operators that scale values by statistics of their neighbours."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node


def _lrn(node: Node) -> relax.Expr | None:
    """Local response normalisation, x / (bias + alpha / size · Σ x²)^beta over neighbouring channels.

    The sum over a window of channels is a 1×1 convolution with a band matrix, which runs in the
    convolution kernel; the importer makes a 3-D average pooling of it.
    """
    data, attrs = node.data, node.attrs
    if data.ty.ndim != 4 or node.dtype != "float32":
        return None
    channels, size = node.shape[1], attrs["size"]
    alpha, beta, bias = attrs.get("alpha", 1e-4), attrs.get("beta", 0.75), attrs.get("bias", 1.0)
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]  # input channel - output channel
    band = (offset >= -((size - 1) // 2)) & (offset <= size // 2)
    weight = relax.const((band * (alpha / size)).astype("float32")[:, :, None, None])
    square = node.emit(op.multiply(data, data))
    scale = node.emit(op.add(node.emit(op.nn.conv2d(square, weight)), relax.const(bias, "float32")))
    if beta == 1:
        return op.divide(data, scale)
    if beta == 0.5:
        return op.multiply(data, node.emit(op.rsqrt(scale)))
    if beta == 0.75:  # s^(-3/4) = s^(-1/2) · s^(-1/4): two square roots, no pow
        root = node.emit(op.rsqrt(scale))
        return op.multiply(node.emit(op.multiply(data, root)), node.emit(op.sqrt(root)))
    return op.multiply(data, node.emit(op.power(scale, relax.const(-beta, "float32"))))


CONVERTERS: dict[str, Converter] = {"LRN": _lrn}
