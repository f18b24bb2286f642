"""The channels-last form of a transposed convolution: a convolution that computes a patch of the result for every pixel.

With a stride of s the result's pixels fall into s × s phases. A phase is a convolution of the input with every s-th of the
kernel's taps, all phases read the same pixels, and one convolution computes them as channels: (y, x, phase, channel). A
permutation puts them in place, and what lies outside the result is cut off. The products are the same, and none more but
for kernels with holes, where the holes are weights of zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax
from tvm.relax import op

from .both_layouts import BothLayouts
from .ir import dtype, shape
from .rebuild import MainRewriter


@dataclass(frozen=True)
class Axis:
    """One spatial axis: `size` pixels in and `result` out, a kernel of `kernel` taps, and where the result begins."""

    size: int
    result: int
    kernel: int
    stride: int
    start: int  # pixels of the whole result that are cut off in front

    @property
    def taps(self) -> int:
        """Of a phase; the last may be zeros."""
        return math.ceil(self.kernel / self.stride)

    @property
    def first(self) -> int:
        """The first patch that has a part in the result."""
        return self.start // self.stride

    @property
    def patches(self) -> int:
        return (self.start + self.result - 1) // self.stride + 1 - self.first

    @property
    def padding(self) -> tuple[int, int]:
        """Of the convolution; where it is negative, pixels are left out."""
        before = self.taps - 1 - self.first
        return before, self.patches - self.size - before + self.taps - 1


def conv2d_transpose(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    """A call of nn.conv2d_transpose in NCHW, channels-last; None for another layout."""
    attrs, emit = call.attrs, rewriter.emit
    data, weight = call.args
    plain = (attrs.data_layout, attrs.kernel_layout) == ("NCHW", "IOHW") and attrs.out_layout in ("", "NCHW")
    if not plain:
        return None
    weight = without_holes(rewriter, rewriter.substitute(weight), attrs.dilation)
    batch, _, height, width = shape(data)
    _, per_group, *kernel = shape(weight)
    groups = int(attrs.groups)
    top, left, bottom, right = (int(p) for p in attrs.padding)
    axes = [
        Axis(size, (size - 1) * int(stride) + taps + int(more) - before - after, taps, int(stride), before)
        for size, taps, stride, more, before, after in zip(
            (height, width), kernel, attrs.strides, attrs.output_padding, (top, left), (bottom, right), strict=True
        )
    ]
    rows, columns = axes
    phases = rows.stride * columns.stride
    flat = _phases(rewriter, weight, groups, axes)
    image = _without_border(rewriter, rewriter.channels_last(data), axes)
    (above, below), (before, after) = ([max(p, 0) for p in axis.padding] for axis in axes)
    found = emit(
        op.nn.conv2d(
            image, flat, padding=(above, before, below, after), groups=groups,
            data_layout="NHWC", kernel_layout="OHWI", out_dtype=attrs.out_dtype,
        )
    )  # fmt: skip
    if phases > 1:
        cut = (batch, rows.patches, columns.patches, groups, rows.stride, columns.stride, per_group)
        placed = emit(rewriter.permute(emit(op.reshape(found, cut)), [0, 1, 4, 2, 5, 3, 6]))
        whole = (batch, rows.patches * rows.stride, columns.patches * columns.stride, groups * per_group)
        found = emit(rewriter.reshape(placed, whole))
    start = [axis.start - axis.first * axis.stride for axis in axes]
    end = [first + axis.result for first, axis in zip(start, axes, strict=True)]
    if list(shape(found)[1:3]) == [axis.result for axis in axes]:
        return found
    return op.strided_slice(found, [1, 2], start, end)


def without_holes(rewriter: MainRewriter, weight: ir.Expr, dilation) -> ir.Expr:
    """IOHW or IODHW weights with zeros between the taps of a dilated kernel."""
    emit = rewriter.emit
    for axis, apart in enumerate(map(int, dilation), start=2):
        before = list(shape(weight))
        if apart == 1 or before[axis] == 1:
            continue
        split = (*before[: axis + 1], 1, *before[axis + 1 :])
        holes = (*before[: axis + 1], apart - 1, *before[axis + 1 :])
        spread = emit(op.concat([emit(op.reshape(weight, split)), emit(op.zeros(holes, dtype(weight)))], axis + 1))
        joined = (*before[:axis], before[axis] * apart, *before[axis + 1 :])
        taps = relax.const(np.arange((before[axis] - 1) * apart + 1))
        weight = emit(op.take(emit(op.reshape(spread, joined)), taps, axis))
    return weight


def _phases(rewriter: BothLayouts, weight: ir.Expr, groups: int, axes: list[Axis]) -> ir.Expr:
    """IOHW weights as OHWI ones of all phases, for a convolution that reads its taps forwards."""
    emit = rewriter.emit
    channels, per_group, *kernel = shape(weight)
    missing = [axis.taps * axis.stride - size for axis, size in zip(axes, kernel, strict=True)]
    for axis, count in enumerate(missing, start=2):
        if count:
            extents = list(shape(weight))
            extents[axis] = count
            weight = emit(op.concat([weight, emit(op.zeros(tuple(extents), dtype(weight)))], axis))
    (down, step_down), (across, step_across) = ((axis.taps, axis.stride) for axis in axes)
    within = channels // groups
    cut = emit(op.reshape(weight, (groups, within, per_group, down, step_down, across, step_across)))
    for axis, taps in ((3, down), (5, across)):
        if taps > 1:
            cut = emit(op.take(cut, relax.const(np.arange(taps)[::-1].copy()), axis))
    ordered = emit(op.permute_dims(cut, (0, 4, 6, 2, 3, 5, 1)))
    return emit(op.reshape(ordered, (groups * step_down * step_across * per_group, down, across, within)))


def _without_border(rewriter: BothLayouts, image: ir.Expr, axes: list[Axis]) -> ir.Expr:
    """An NHWC image without the pixels that no part of the result depends on."""
    cuts = [[max(-p, 0) for p in axis.padding] for axis in axes]
    if not any(map(any, cuts)):
        return image
    start = [before for before, _ in cuts]
    end = [axis.size - after for axis, (_, after) in zip(axes, cuts, strict=True)]
    return rewriter.emit(op.strided_slice(image, [1, 2], start, end))
