"""Operators that move elements between channels and pixels."""

from __future__ import annotations

import math

from tvm import relax, te, tirx
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node


def _space_to_depth(node: Node) -> relax.Expr:
    """Blocks of pixels become channels: all channels of a pixel together (DCR), or all pixels of a channel (CRD)."""
    size, mode = int(node.attrs["blocksize"]), node.text("mode", "DCR")
    n, c, h, w = node.shape
    order = {"DCR": [0, 3, 5, 1, 2, 4], "CRD": [0, 1, 3, 5, 2, 4]}.get(mode)
    if order is None:
        raise node.refuse(f"its mode is {mode}, where ONNX knows DCR and CRD: correct the attribute")
    blocks = node.emit(op.reshape(node.data, (n, c, h // size, size, w // size, size)))
    moved = node.emit(op.permute_dims(blocks, order))
    return op.reshape(moved, (n, c * size * size, h // size, w // size))


def _col_to_image(node: Node) -> relax.Expr:
    """Each pixel is the sum of the columns' entries that were taken from it."""
    image, kernel = node.value(1), node.value(2)
    if image is None or kernel is None:
        raise node.refuse("its shapes are computed, and must be known: make them constants of the model")
    image, kernel = [int(n) for n in image], [int(n) for n in kernel]
    axes = len(image)
    strides, dilations = ([int(n) for n in node.attrs.get(key, [1] * axes)] for key in ("strides", "dilations"))
    pads = [int(n) for n in node.attrs.get("pads", [0] * (2 * axes))]
    counts = [
        (image[i] + pads[i] + pads[axes + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(axes)
    ]
    n, c = node.shape[0], node.shape[1] // math.prod(kernel)

    def compute(columns: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, size), f"tap{i}") for i, size in enumerate(kernel)]

        def element(batch, channel, *pixel):
            row, column, taken = channel, tirx.const(0, "int64"), []
            for i in range(axes):
                at = pixel[i] + pads[i] - taps[i] * dilations[i]
                row, column = row * kernel[i] + taps[i], column * counts[i] + tirx.floordiv(at, strides[i])
                taken += [at >= 0, tirx.floormod(at, strides[i]) == 0, tirx.floordiv(at, strides[i]) < counts[i]]
            entry = tirx.if_then_else(tirx.all(*taken), columns[batch, row, column], tirx.const(0, columns.dtype))
            return te.sum(entry, axis=taps)

        return te.compute((n, c, *image), element, name="col2im")

    return node.bb.emit_te(compute, node.data, primfunc_name_hint="col2im")


CONVERTERS: dict[str, Converter] = {"Col2Im": _col_to_image, "SpaceToDepth": _space_to_depth}
