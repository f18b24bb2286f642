"""The channels-last form of a transposed convolution: convolutions that compute a patch of the result for every pixel.

With a stride of s the result's pixels fall into s × s phases. A phase is a convolution of the input with every s-th of the
kernel's taps, and phases that read the same pixels are computed by one convolution, as channels: (y, x, phase, channel). A
permutation puts them in place, and pixels outside the result are cut off.

A phase with fewer taps than another is a convolution of its own. Where all phases together are faster, they are one
convolution, and the first tap, which some phases lack, has weights of zero: where that saves vectors that few channels would
fill in part, in groups, and as 3 × 3 taps, for which there are Winograd's kernels. Other kernels leave these products out
(schedules/tiles/first_taps.py): a zero would make an infinite pixel a NaN.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax
from tvm.relax import op

from ..schedules.tiles.first_taps import FirstTaps
from .both_layouts import BothLayouts
from .ir import dtype, shape
from .panels import with_first_taps
from .rebuild import MainRewriter

NO_TAP = -1
_VECTOR = 16  # channels


@dataclass(frozen=True)
class Axis:
    """One spatial axis: `size` pixels in and `result` out, a kernel of `kernel` taps, and where the result begins."""

    size: int
    result: int
    kernel: int
    stride: int
    dilation: int
    start: int  # pixels of the whole result that are cut off in front

    @property
    def first(self) -> int:
        """The first patch that has a part in the result."""
        return self.start // self.stride

    @property
    def patches(self) -> int:
        return (self.start + self.result - 1) // self.stride + 1 - self.first

    @property
    def apart(self) -> int:
        """The dilation of the convolutions."""
        return self.dilation // math.gcd(self.dilation, self.stride)

    def phases(self, together: bool = False) -> list[Phases]:
        """All of them in order, those together that read the same pixels, or all if that is possible."""
        most = math.ceil(self.kernel / self.stride)
        if together and self.dilation == 1 and self.kernel % self.stride:
            taps = [range(phase, most * self.stride, self.stride) for phase in range(self.stride)]
            return [Phases([[tap if tap < self.kernel else NO_TAP for tap in reversed(own)] for own in taps], 0)]
        step = self.stride // math.gcd(self.dilation, self.stride)  # from one tap of a phase to the next
        runs: list[Phases] = []
        for phase in range(self.stride):
            taps = [tap for tap in range(self.kernel) if tap * self.dilation % self.stride == phase]
            assert taps == list(range(taps[0], self.kernel, step)) if taps else True
            before = (taps[0] * self.dilation - phase) // self.stride if taps else 0
            if runs and (len(taps), before) == (runs[-1].taps, runs[-1].before):
                runs[-1] = Phases(runs[-1].read + [taps[::-1]], before)
            else:
                runs.append(Phases([taps[::-1]], before))
        return runs

    def padding(self, phases: Phases) -> tuple[int, int]:
        """Of the convolution; negative padding leaves pixels out."""
        before = phases.before + (phases.taps - 1) * self.apart - self.first
        return before, self.first + self.patches - phases.before - self.size


@dataclass(frozen=True)
class Phases:
    """Phases that follow each other."""

    read: list[list[int]]  # for each phase its taps, in the order of the pixels
    before: int  # how many pixels before its own a patch reads first, the last tap counted

    @property
    def count(self) -> int:
        return len(self.read)

    @property
    def taps(self) -> int:
        return len(self.read[0])

    @property
    def whole(self) -> int:
        """How many of them have all taps; the others, which follow, lack the first one."""
        return sum(NO_TAP not in taps for taps in self.read)


def conv2d_transpose(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    """A call of nn.conv2d_transpose in NCHW, channels-last; None for another layout."""
    attrs, emit = call.attrs, rewriter.emit
    data, weight = call.args
    plain = (attrs.data_layout, attrs.kernel_layout) == ("NCHW", "IOHW") and attrs.out_layout in ("", "NCHW")
    if not plain:
        return None
    weight = rewriter.substitute(weight)
    batch, _, height, width = shape(data)
    _, per_group, *kernel = shape(weight)
    groups = int(attrs.groups)
    top, left, bottom, right = (int(p) for p in attrs.padding)
    axes = []
    for i, (size, taps) in enumerate(zip((height, width), kernel, strict=True)):
        stride, apart, more = (int(given[i]) for given in (attrs.strides, attrs.dilation, attrs.output_padding))
        before, after = ((top, bottom), (left, right))[i]
        extent = (size - 1) * stride + (taps - 1) * apart + 1 + more - before - after
        axes.append(Axis(size, extent, taps, stride, apart, before))
    rows, columns = axes
    image = rewriter.channels_last(data)

    def computed(above: Phases, beside: Phases) -> ir.Expr:
        """The patches of some phases: (batch, y, x, (group, phase, phase, channel))."""
        channels = groups * above.count * beside.count * per_group
        if not above.taps or not beside.taps:
            return emit(op.zeros((batch, rows.patches, columns.patches, channels), dtype(data)))
        padding = [rows.padding(above), columns.padding(beside)]
        (over, under), (before, after) = ([max(p, 0) for p in one] for one in padding)
        return emit(
            op.nn.conv2d(
                _without_border(rewriter, image, padding), _weights(rewriter, weight, groups, above, beside),
                padding=(over, before, under, after), dilation=(rows.apart, columns.apart), groups=groups,
                data_layout="NHWC", kernel_layout="OHWI", out_dtype=attrs.out_dtype,
            )
        )  # fmt: skip

    found = _joined(rewriter, computed, rows, columns, (batch, groups, per_group))
    if rows.stride * columns.stride > 1:
        cut = (batch, rows.patches, columns.patches, groups, rows.stride, columns.stride, per_group)
        placed = emit(rewriter.permute(emit(rewriter.reshape(found, cut)), [0, 1, 4, 2, 5, 3, 6]))
        whole = (batch, rows.patches * rows.stride, columns.patches * columns.stride, groups * per_group)
        found = emit(rewriter.reshape(placed, whole))
    start = [axis.start - axis.first * axis.stride for axis in axes]
    end = [first + axis.result for first, axis in zip(start, axes, strict=True)]
    if list(shape(found)[1:3]) == [axis.result for axis in axes]:
        return found
    return op.strided_slice(found, [1, 2], start, end)


def _joined(rewriter: BothLayouts, computed, rows: Axis, columns: Axis, extents: tuple[int, int, int]) -> ir.Expr:
    """All phases as channels, from convolutions for some of them."""
    emit, (batch, groups, per_group) = rewriter.emit, extents
    together = are_together(groups, per_group, [rows, columns])
    above, beside = rows.phases(together), columns.phases(together)
    parts = [[computed(a, b) for b in beside] for a in above]
    flat = list(itertools.chain(*parts))
    if len(flat) == 1 or (groups == 1 and (len(beside) == 1 or all(a.count == 1 for a in above))):  # in the order of the channels
        return joined(emit, flat, 3)
    image = (batch, rows.patches, columns.patches, groups)
    lines = []
    for a, line in zip(above, parts, strict=True):
        cut = [(*image, a.count, b.count, per_group) for b in beside]
        lines.append(joined(emit, [emit(rewriter.reshape(*pair)) for pair in zip(line, cut, strict=True)], 5))
    return joined(emit, lines, 4)


def are_together(groups: int, channels: int, axes: list[Axis]) -> bool:
    """Whether all phases are faster as one convolution."""
    if groups > 1 or max(math.ceil(axis.kernel / axis.stride) for axis in axes) == 3:
        return True
    return _products(channels, axes, together=True) < _products(channels, axes, together=False)


def _products(channels: int, axes: list[Axis], together: bool) -> int:
    """Products of vectors for a pixel and an input channel; a vector that is not full costs as much."""
    return sum(
        math.prod(one.taps for one in phases) * math.ceil(math.prod(one.count for one in phases) * channels / _VECTOR)
        for phases in itertools.product(*(axis.phases(together) for axis in axes))
    )


def joined(emit, parts: list[ir.Expr], axis: int) -> ir.Expr:
    """Tensors along an axis."""
    return parts[0] if len(parts) == 1 else emit(op.concat(parts, axis=axis))


def taken(rewriter: MainRewriter, weight: ir.Expr, phases: Phases, axis: int) -> ir.Expr:
    """The taps of phases along an axis, phase by phase."""
    taps = list(itertools.chain(*phases.read))
    extents = list(shape(weight))
    if taps == list(range(extents[axis])):
        return weight
    if NO_TAP in taps:
        taps = [extents[axis] if tap == NO_TAP else tap for tap in taps]
        extents[axis] = 1
        weight = rewriter.emit(op.concat([weight, rewriter.emit(op.zeros(tuple(extents), dtype(weight)))], axis))
    return rewriter.emit(op.take(weight, relax.const(np.array(taps)), axis))


def _weights(rewriter: BothLayouts, weight: ir.Expr, groups: int, above: Phases, beside: Phases) -> ir.Expr:
    """IOHW weights as OHWI ones of some phases, for a convolution that reads its taps forwards."""
    emit = rewriter.emit
    channels, per_group, *_ = shape(weight)
    within = channels // groups
    chosen = taken(rewriter, taken(rewriter, weight, above, 2), beside, 3)
    cut = emit(op.reshape(chosen, (groups, within, per_group, above.count, above.taps, beside.count, beside.taps)))
    ordered = emit(op.permute_dims(cut, (0, 3, 5, 2, 4, 6, 1)))
    result = emit(op.reshape(ordered, (groups * above.count * beside.count * per_group, above.taps, beside.taps, within)))
    if above.whole == above.count and beside.whole == beside.count:
        return result
    row = beside.count * per_group  # channels of the phases of a row
    first_taps = FirstTaps(above.whole * row, beside.whole * per_group, row, above.count * row)
    return with_first_taps(emit, result, first_taps)


def _without_border(rewriter: BothLayouts, image: ir.Expr, padding: list[tuple[int, int]]) -> ir.Expr:
    """An NHWC image without the pixels that no part of the result depends on."""
    cuts = [[max(-p, 0) for p in one] for one in padding]
    if not any(map(any, cuts)):
        return image
    start = [before for before, _ in cuts]
    end = [size - after for size, (_, after) in zip(shape(image)[1:3], cuts, strict=True)]
    return rewriter.emit(op.strided_slice(image, [1, 2], start, end))
