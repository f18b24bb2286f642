"""Samples of a deformable convolution: at every tap, moved by offsets, in the order in which a convolution of 1×1 reads them.

    for image, row, column, in parallel:  for tap, offset group:
        place = the tap's pixel + its offset;  four weights = bilinear, times the mask
        for channel of the group:   samples[image, row, column, channel's group, tap, channel] = Σ weights × four pixels

Pixels outside of the image are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop


@dataclass(frozen=True)
class DeformableSpec:
    """Images [batch, height, width, channels] sampled at [batch, *out, offset_groups, taps]."""

    image: tuple[int, int, int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]  # above, to the left
    groups: int
    offset_groups: int
    masked: bool
    dtype: str = "float32"

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Shape of the offsets; down and right by turns."""
        return (self.image[0], *self.out, self.offset_groups * self.taps * 2)

    @property
    def masks(self) -> tuple[int, int, int, int]:
        return (self.image[0], *self.out, self.offset_groups * self.taps)

    @property
    def samples(self) -> tuple[int, ...]:
        return (self.image[0], *self.out, self.groups, self.taps, self.image[3] // self.groups)

    @property
    def flops(self) -> int:
        return 8 * math.prod(self.samples)


def kernel(spec: DeformableSpec) -> tirx.PrimFunc:
    """The PrimFunc (images, offsets[, masks], samples)."""
    batch, height, width, channels = spec.image
    out_h, out_w = spec.out
    run = channels // math.lcm(spec.groups, spec.offset_groups)  # neighbouring channels with one group and one offset
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        image = T.arg("image", T.buffer(spec.image, spec.dtype))
        offsets = T.arg("offsets", T.buffer(spec.offsets, spec.dtype))
        masks = T.arg("masks", T.buffer(spec.masks, spec.dtype)) if spec.masked else None
        samples = T.arg("samples", T.buffer(spec.samples, spec.dtype))
        with loop(batch * out_h * out_w, spec.flops) as pixel:
            n, row, column = T.bind(pixel // (out_h * out_w)), T.bind(pixel // out_w % out_h), T.bind(pixel % out_w)
            with T.serial(spec.taps) as tap, T.serial(spec.offset_groups) as group:
                place = T.bind(group * spec.taps + tap)
                moved = [T.bind(offsets[n, row, column, place * 2 + axis]) for axis in range(2)]
                taps = tap // spec.kernel[1], tap % spec.kernel[1]
                ends = []
                for axis, (at, extent) in enumerate(zip((row, column), (height, width), strict=True)):
                    still = at * spec.stride[axis] - spec.pad[axis] + taps[axis] * spec.dilation[axis]
                    ends.append(_ends(spec, tirx.Cast(spec.dtype, still) + moved[axis], extent))
                mask = masks[n, row, column, place] if masks is not None else tirx.const(1.0, spec.dtype)
                mask = T.bind(mask)
                corners = [(y, x, T.bind(wy * wx * mask), T.bind(tirx.all(iny, inx)))
                           for y, wy, iny in ends[0] for x, wx, inx in ends[1]]  # fmt: skip
                with T.serial(channels // spec.offset_groups // run) as part:
                    first = T.bind((group * (channels // spec.offset_groups // run) + part) * run)
                    own = T.bind(first // (channels // spec.groups))
                    begin = T.bind(first % (channels // spec.groups))
                    with T.serial(run) as channel:
                        parts = [
                            weight * tirx.Select(inside, image[n, y, x, first + channel], tirx.const(0.0, spec.dtype))
                            for y, x, weight, inside in corners
                        ]
                        T.buffer_store(
                            samples, reduce(lambda a, b: a + b, parts), [n, row, column, own, tap, begin + channel]
                        )
    return builder.get()


def _ends(spec: DeformableSpec, at: ir.Expr, extent: int) -> list[tuple[ir.Expr, ir.Expr, ir.Expr]]:
    """Of the two pixels around a place on an axis: a number within the image, the weight, and whether the pixel exists."""
    at = T.bind(at)
    number = lambda value: tirx.const(float(value), spec.dtype)  # noqa: E731
    near = T.bind(tirx.Select(tirx.isnan(at), number(-2), tirx.max(tirx.min(at, number(extent)), number(-2))))
    low = T.bind(tirx.Cast("int32", tirx.floor(near)))
    after = T.bind(tirx.Select(tirx.isnan(at), at, near - tirx.floor(near)))  # in an image of NaN for NaN
    found = []
    for pixel, weight in ((low, number(1) - after), (low + 1, after)):
        inside = tirx.all(pixel >= 0, pixel < extent)
        found.append((T.bind(tirx.max(tirx.min(pixel, extent - 1), 0)), T.bind(weight), T.bind(inside)))
    return found


__all__ = ["DeformableSpec", "kernel"]
