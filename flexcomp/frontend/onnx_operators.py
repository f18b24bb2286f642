"""ONNX operators translated here, because TVM's importer makes slow or opaque code of them.

A converter takes (block builder, inputs, attributes, values of weights) and returns a Relax expression, or None where
the importer's own translation is as good.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

ValueOf = Callable[[relax.Expr], "np.ndarray | None"]  # the value of a constant or a weight
Converter = Callable[[relax.BlockBuilder, list, dict, ValueOf], "relax.Expr | None"]

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def resolve_auto_pad(op_name: str, inputs: list, attrs: dict) -> None:
    """Replace `auto_pad` by explicit `pads`: the importer pads by a separate operation, or wrongly."""
    mode = attrs.get("auto_pad", b"NOTSET").decode()
    if op_name not in ("Conv", "MaxPool", "AveragePool") or mode == "NOTSET":
        return
    size = [int(d) for d in inputs[0].ty.shape.values[2:]]
    kernel = attrs.get("kernel_shape") or [int(d) for d in inputs[1].ty.shape.values[2:]]
    strides = attrs.get("strides") or [1] * len(size)
    dilations = attrs.get("dilations") or [1] * len(size)
    total = [0] * len(size)
    if mode != "VALID":
        total = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
        ]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    attrs["pads"] = tuple(large + small if mode == "SAME_LOWER" else small + large)
    del attrs["auto_pad"]


def _scalar(expr: relax.Expr | None) -> float | None:
    if isinstance(expr, tvm.ir.GenericConst) and expr.value.numpy().size == 1:
        return expr.value.numpy().item()
    return None


def _is_float(expr: relax.Expr) -> bool:
    return str(expr.ty.dtype).startswith("float")


def _chain(binary: Callable) -> Converter:
    """An n-ary elementwise operator as a chain; the importer broadcasts, stacks and reduces."""
    return lambda bb, inputs, attrs, value_of: functools.reduce(lambda a, b: bb.emit(binary(a, b)), inputs)


def _mean(bb: relax.BlockBuilder, inputs: list, attrs: dict, value_of: ValueOf) -> relax.Expr:
    if len(inputs) == 1:
        return inputs[0]
    total = _chain(op.add)(bb, inputs, attrs, value_of)
    return op.multiply(total, relax.const(1 / len(inputs), inputs[0].ty.dtype))


def _clip(bb: relax.BlockBuilder, inputs: list, attrs: dict, value_of: ValueOf) -> relax.Expr | None:
    """Bounds are attributes before opset 11, constant inputs after. A NaN bound is no bound."""
    data, *given = inputs
    if not _is_float(data):
        return None
    bounds = []
    for i, (key, unbounded) in enumerate((("min", -math.inf), ("max", math.inf))):
        bound = attrs.get(key)
        if i < len(given) and given[i] is not None:
            bound = _scalar(given[i])
            if bound is None:
                return None
        bounds.append(unbounded if bound is None or math.isnan(bound) else bound)
    low, high = bounds
    if math.isinf(low) and math.isinf(high):
        return data if low < 0 < high else None
    if math.isinf(high):
        return op.nn.relu(data) if low == 0 else op.maximum(data, relax.const(low, data.ty.dtype))
    if math.isinf(low):
        return op.minimum(data, relax.const(high, data.ty.dtype))
    return op.clip(data, low, high)


def _pow(bb: relax.BlockBuilder, inputs: list, attrs: dict, value_of: ValueOf) -> relax.Expr | None:
    """Powers with a constant exponent that need no `pow`."""
    base, exponent = inputs[0], _scalar(inputs[1])
    if not _is_float(base) or inputs[1].ty.ndim > base.ty.ndim:
        return None
    if exponent == 1:
        return base
    if exponent == 2:
        return op.multiply(base, base)
    if exponent == 3:
        return op.multiply(bb.emit(op.multiply(base, base)), base)
    if exponent == 0.5:
        return op.sqrt(base)
    if exponent == -0.5:
        return op.rsqrt(base)
    if exponent == -1:
        return op.divide(relax.const(1.0, base.ty.dtype), base)
    return None


def _pad(bb: relax.BlockBuilder, inputs: list, attrs: dict, value_of: ValueOf) -> relax.Expr | None:
    """Padding as a Relax operator; the importer emits a kernel, which no later pass can look into."""
    data = inputs[0]
    mode = _PAD_MODES.get(attrs.get("mode", b"constant").decode())
    pads, fill, axes = attrs.get("pads"), attrs.get("value", 0.0), None
    if pads is None:  # since opset 11 they are inputs
        given = [value_of(i) if i is not None else None for i in inputs[1:]] + [None] * 3
        pads, axes = given[0], given[2]
        fill = 0.0 if given[1] is None else given[1].item()
    if mode is None or pads is None or not _is_float(data) or min(pads) < 0:
        return None
    before_after = np.zeros((data.ty.ndim, 2), "int64")
    before_after[slice(None) if axes is None else axes] = np.reshape(pads, (2, -1)).T
    return op.nn.pad(data, before_after.ravel().tolist(), mode, float(fill))


def _lrn(bb: relax.BlockBuilder, inputs: list, attrs: dict, value_of: ValueOf) -> relax.Expr | None:
    """Local response normalisation, x / (bias + alpha / size · Σ x²)^beta over neighbouring channels.

    The sum over a window of channels is a 1×1 convolution with a band matrix, which runs in the
    convolution kernel; the importer makes a 3-D average pooling of it.
    """
    data = inputs[0]
    if data.ty.ndim != 4 or data.ty.dtype != "float32":
        return None
    channels, size = int(data.ty.shape[1]), attrs["size"]
    alpha, beta, bias = attrs.get("alpha", 1e-4), attrs.get("beta", 0.75), attrs.get("bias", 1.0)
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]  # input channel - output channel
    band = (offset >= -((size - 1) // 2)) & (offset <= size // 2)
    weight = relax.const((band * (alpha / size)).astype("float32")[:, :, None, None])
    square = bb.emit(op.multiply(data, data))
    scale = bb.emit(op.add(bb.emit(op.nn.conv2d(square, weight)), relax.const(bias, "float32")))
    if beta == 1:
        return op.divide(data, scale)
    if beta == 0.5:
        return op.multiply(data, bb.emit(op.rsqrt(scale)))
    if beta == 0.75:  # s^(-3/4) = s^(-1/2) · s^(-1/4): two square roots, no pow
        root = bb.emit(op.rsqrt(scale))
        return op.multiply(bb.emit(op.multiply(data, root)), bb.emit(op.sqrt(root)))
    return op.multiply(data, bb.emit(op.power(scale, relax.const(-beta, "float32"))))


CONVERTERS: dict[str, Converter] = {
    "Clip": _clip,
    "LRN": _lrn,
    "Max": _chain(op.maximum),
    "Mean": _mean,
    "Min": _chain(op.minimum),
    "Pad": _pad,
    "Pow": _pow,
    "Sum": _chain(op.add),
}
