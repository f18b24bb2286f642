"""Transposed convolution: how large its result is, and where it lies."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, shape_of

_OPERATORS = {
    1: (op.nn.conv1d_transpose, "NCW", "IOW"),
    2: (op.nn.conv2d_transpose, "NCHW", "IOHW"),
    3: (op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


def _conv_transpose(node: Node) -> relax.Expr:
    data, weight, attrs = node.data, node.inputs[1], node.attrs
    axes = len(node.shape) - 2
    if axes not in _OPERATORS:
        raise node.refuse(f"it has {axes} spatial axes, and up to three can be compiled: reshape its input")
    strides, dilations = ([int(n) for n in attrs.get(key, [1] * axes)] for key in ("strides", "dilations"))
    start, end, more = _margins(node, strides, dilations)
    # Results larger than TVM allows for are made of the whole one.
    fits = all(0 <= m < s and a >= 0 and b >= 0 for a, b, m, s in zip(start, end, more, strides, strict=True))
    function, layout, kernel_layout = _OPERATORS[axes]
    result = node.emit(
        function(
            data, weight, strides=strides, padding=[*start, *end] if fits else 0, output_padding=more if fits else 0,
            dilation=dilations, groups=attrs.get("group", 1), data_layout=layout, kernel_layout=kernel_layout,
        )
    )  # fmt: skip
    if not fits:
        result = _cut_to(node, result, start, [m - b for m, b in zip(more, end, strict=True)])
    if node.input(2) is None:
        return result
    return op.add(result, node.emit(op.reshape(node.inputs[2], (1, -1, *[1] * axes))))


def _margins(node: Node, strides: list[int], dilations: list[int]) -> tuple[list[int], list[int], list[int]]:
    """For each axis, how much of the whole result is cut off at its start and its end, and how much is added there."""
    attrs, size, kernel = node.attrs, node.shape[2:], shape_of(node.inputs[1])[2:]
    axes, mode = len(size), node.text("auto_pad", "NOTSET")
    more = [int(n) for n in attrs.get("output_padding", [0] * axes)]
    wanted = attrs.get("output_shape")
    is_given = wanted is not None
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(size, strides, strict=True)]
    if wanted is None:
        pads = [0] * (2 * axes) if mode == "VALID" else [int(n) for n in attrs.get("pads", [0] * (2 * axes))]
        return pads[:axes], pads[axes:], more
    start, end = [], []
    for i, target in enumerate(list(wanted)[-axes:]):
        total = strides[i] * (size[i] - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1 - int(target)
        more[i] += max(-total, 0) if is_given else 0  # "same" only cuts
        total = max(total, 0)
        small, large = total // 2, total - total // 2
        start.append(small if mode == "SAME_UPPER" else large)
        end.append(large if mode == "SAME_UPPER" else small)
    return start, end, more


def _cut_to(node: Node, result: relax.Expr, start: list[int], more: list[int]) -> relax.Expr:
    """The result without `start` at the start and with `more` zeros at the end, cut there where `more` is negative."""
    axes = list(range(2, 2 + len(start)))
    last = [n + min(m, 0) for n, m in zip(shape_of(result)[2:], more, strict=True)]
    if min(start) < 0:
        raise node.refuse("its pads are negative: pad its result instead")
    result = node.emit(op.strided_slice(result, axes, start, last))
    if max(more) <= 0:
        return result
    zeros = np.zeros((len(start) + 2, 2), "int64")
    zeros[2:, 1] = np.maximum(more, 0)
    return node.emit(op.nn.pad(result, zeros.ravel().tolist(), "constant", 0.0))


CONVERTERS: dict[str, Converter] = {"ConvTranspose": _conv_transpose}
