"""Operators that scale values by statistics of their neighbours."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, require_spread, shape_of, spreads
from flexcomp.passes.ir import operator


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


def _layer_normalization(node: Node) -> relax.Expr | relax.Tuple:
    """Over the axes from `axis` on. Mean and inverse deviation are results of their own, where they are asked for."""
    data, scale, bias = node.data, node.inputs[1], node.input(2)
    rank, epsilon = data.ty.ndim, node.attrs.get("epsilon", 1e-5)
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    row, neutral = node.shape[axes[0] :], [relax.const(np.full(node.shape[axes[0] :], n), node.dtype) for n in (1, 0)]
    require_spread(node, 1, node.shape)
    require_spread(node, 2, node.shape)
    if all(x is None or spreads(x, row) for x in (scale, bias)):
        given = (scale, neutral[1] if bias is None else bias)
        inside = (x if shape_of(x) == row else node.emit(op.broadcast_to(x, row)) for x in given)
        result = node.emit(op.nn.layer_norm(data, *inside, axes, epsilon))
    else:  # they differ between rows
        result = node.emit(op.multiply(node.emit(op.nn.layer_norm(data, *neutral, axes, epsilon)), scale))
        result = result if bias is None else node.emit(op.add(result, bias))
    if node.outputs == 1:
        return result
    mean = node.emit(op.mean(data, axes, keepdims=True))
    variance = _mean_square(node, node.emit(op.subtract(data, mean)), axes)
    inverse = node.emit(op.rsqrt(node.emit(op.add(variance, relax.const(epsilon, node.dtype)))))
    return relax.Tuple([result, mean, inverse][: node.outputs])


def _instance_normalization(node: Node) -> relax.Expr | None:
    """Of groups of an image's channels, which is how exporters write a group norm, by statistics of the channels.

    So the image stays one, in the layout that convolutions want. Statistics of a group are those of its channels and of how far
    their means lie from its own.
    """
    image = _image_of(node)
    if image is None:
        return None
    (batch, channels, *spatial), groups = shape_of(image), node.shape[1]
    emit, inside = node.emit, list(range(2, 2 + len(spatial)))
    by_channel, by_group = (batch, channels, *[1] * len(spatial)), (batch, groups, channels // groups)

    def of_channels(x: relax.Expr) -> relax.Expr:
        """What groups have, [batch, groups, 1], for every channel."""
        return emit(op.reshape(emit(op.broadcast_to(x, by_group)), by_channel))

    means = emit(op.reshape(emit(op.mean(image, inside)), by_group))
    variances = emit(op.reshape(emit(op.variance(image, inside)), by_group))
    mean = emit(op.mean(means, [2], keepdims=True))
    apart = emit(op.subtract(means, mean))
    variance = emit(op.mean(emit(op.add(variances, emit(op.multiply(apart, apart)))), [2], keepdims=True))
    root = emit(op.sqrt(emit(op.add(variance, relax.const(node.attrs.get("epsilon", 1e-5), node.dtype)))))
    result = emit(op.divide(emit(op.subtract(image, of_channels(mean))), of_channels(root)))
    for i, name, neutral in ((1, op.multiply, 1), (2, op.add, 0)):
        value = node.value(i)
        if value is None or (value != neutral).any():
            result = emit(name(result, of_channels(emit(op.reshape(node.inputs[i], (1, groups, 1))))))
    return op.reshape(result, node.shape)


def _image_of(node: Node) -> relax.Expr | None:
    """The float32 tensor of which the channels are groups in the node's first input."""
    made = node.bb.lookup_binding(node.data) if isinstance(node.data, relax.Var) else None
    if not isinstance(made, relax.Call) or operator(made) != "reshape" or len(node.shape) != 3 or node.dtype != "float32":
        return None
    extents = shape_of(made.args[0])
    fits = len(extents) > 3 and extents[0] == node.shape[0] and extents[1] % node.shape[1] == 0 and 0 not in extents
    return made.args[0] if fits else None


def _mean_square(node: Node, data: relax.Expr, axes: list[int]) -> relax.Expr:
    return node.emit(op.mean(node.emit(op.multiply(data, data)), axes, keepdims=True))


def _rms_normalization(node: Node) -> relax.Expr | None:
    """TVM's operator takes a scale of the normalised axes, and cannot reduce all axes: then the tensor is one row of a matrix."""
    rank, scale, epsilon = node.data.ty.ndim, node.inputs[1], node.attrs.get("epsilon", 1e-5)
    axis = node.attrs.get("axis", -1) % rank
    row = node.shape[axis:]
    require_spread(node, 1, node.shape)
    if spreads(scale, row) and shape_of(scale) != row:
        scale = node.inputs[1] = node.emit(op.broadcast_to(scale, row))
    if axis == 0 and node.dtype == "float32":
        count = math.prod(node.shape)
        line, scale = node.emit(op.reshape(node.data, (1, count))), node.emit(op.reshape(scale, (count,)))
        return op.reshape(node.emit(op.nn.rms_norm(line, scale, [1], epsilon)), node.shape)
    if shape_of(scale) == row:
        return None
    stashed = "float32" if node.attrs.get("stash_type", 1) == 1 else node.dtype
    data, ones = node.emit(op.astype(node.data, stashed)), relax.const(np.ones(row), stashed)
    result = node.emit(op.nn.rms_norm(data, ones, list(range(axis, rank)), epsilon))
    return op.multiply(node.emit(op.astype(result, node.dtype)), scale)


def _mean_variance_normalization(node: Node) -> relax.Expr:
    """The variance is that of the differences from the mean: of squares and their mean nothing may be left."""
    axes = [axis % node.data.ty.ndim for axis in node.attrs.get("axes", (0, 2, 3))]
    centred = node.emit(op.subtract(node.data, node.emit(op.mean(node.data, axes, keepdims=True))))
    deviation = node.emit(op.sqrt(_mean_square(node, centred, axes)))
    return op.divide(centred, node.emit(op.add(deviation, relax.const(1e-9, node.dtype))))


def _lp_normalization(node: Node) -> relax.Expr:
    """Rows of zeros stay what they are."""
    axis, p = node.attrs.get("axis", -1), node.attrs.get("p", 2)
    if p not in (1, 2):
        raise node.refuse(f"p is {p}, where ONNX knows 1 and 2: correct the attribute")
    data, zero = node.data, relax.const(0.0, node.dtype)
    powers = op.abs(data) if p == 1 else op.multiply(data, data)
    norm = node.emit(op.sum(node.emit(powers), [axis], keepdims=True))
    norm = norm if p == 1 else node.emit(op.sqrt(norm))
    return op.divide(data, node.emit(op.where(op.equal(norm, zero), relax.const(1.0, node.dtype), norm)))


CONVERTERS: dict[str, Converter] = {
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _rms_normalization,
}
