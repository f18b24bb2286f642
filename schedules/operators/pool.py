"""Pooling over windows of an NHWC image: maximum, average, and the global average as one window.

A window is reduced in registers, several vectors of channels at a time:

    for row of the output, in parallel:
        for column:                                  left border | interior | right border
            for group of channels:
                for tap of the window that lies inside the image: combine

Windows that hold NaN have a maximum of NaN. The maximum instruction forgets a NaN at the next number, so squares are
added up as well: that sum is NaN if and only if an element is, as infinities are positive there. The cost is a
multiply-add per tap, in parallel to the load; comparisons into a mask took two instructions more.

At a border the bounds of the tap loops are clamped; there are no predicates and no padded copy. Channels
that are no multiple of the vector end with an overlapping vector; fewer than a vector take narrower ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles import vector_math
from ..tiles.emit import converted, flat, loop, maybe_serial, spread, vector, zero
from ..tiles.rows import cover

KINDS = ("max", "avg")
# Vectors of channels reduced together: enough independent chains to hide the latency of an addition. For maxima every
# vector has two, see above.
_VECTORS = {"max": 4, "avg": 8}
# Taps of a window row that are unrolled.
_UNROLLED_TAPS = 7
# With fewer output rows than this, groups of channels become tasks too.
_FEW_ROWS = 16


@dataclass(frozen=True)
class PoolSpec:
    """A 2-D pooling of a tensor [n, h, w, c] to [n, out_h, out_w, c], computed in float32."""

    n: int
    h: int
    w: int
    c: int
    kh: int
    kw: int
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    kind: str  # one of KINDS
    count_include_pad: bool  # averages divide by the taps inside the padded image, not inside the image
    out_h: int
    out_w: int
    dtype: str = "float32"  # of both tensors; or float16

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")

    @classmethod
    def global_average(cls, n: int, h: int, w: int, c: int, dtype: str = "float32") -> PoolSpec:
        """The mean over all pixels: [n, h, w, c] to [n, 1, 1, c]."""
        return cls(n, h, w, c, h, w, (1, 1), (0, 0, 0, 0), (1, 1), "avg", True, 1, 1, dtype)

    @property
    def flops(self) -> int:
        return self.n * self.out_h * self.out_w * self.c * self.kh * self.kw

    def __str__(self) -> str:
        kept = f", {self.dtype}" if self.dtype != "float32" else ""
        return f"{self.kind}_pool {self.kh}×{self.kw} {self.c} @ {self.out_h}×{self.out_w}{kept}"


@dataclass(frozen=True)
class _Axis:
    """One axis of the image under the sliding window."""

    extent: int
    out: int
    kernel: int
    stride: int
    pad: tuple[int, int]  # before and after
    dilation: int

    def taps(self, position: ir.Expr | int) -> tuple[ir.Expr | int, ir.Expr | int]:
        """[first, last) tap of the window at `position` inside the image."""
        if isinstance(position, int):
            inside = [t for t in range(self.kernel) if 0 <= self.at(position, t) < self.extent]
            return (inside[0], inside[-1] + 1) if inside else (0, 0)
        origin = position * self.stride - self.pad[0]
        first = tirx.max(0, (self.dilation - 1 - origin) // self.dilation)
        last = tirx.min(self.kernel, (self.extent - origin + self.dilation - 1) // self.dilation)
        return first, last

    def padded_taps(self, position: ir.Expr | int) -> ir.Expr | int:
        """How many taps lie inside the padded image: all, but for windows that ceil_mode lets stick out."""
        if self.at(self.out - 1, self.kernel - 1) < self.extent + self.pad[1]:
            return self.kernel
        room = self.extent + self.pad[1] - self.at(position, 0)
        taps = (room + self.dilation - 1) // self.dilation
        return min(self.kernel, taps) if isinstance(position, int) else tirx.min(self.kernel, taps)

    def at(self, position, tap):
        """Coordinate in the image."""
        return position * self.stride - self.pad[0] + tap * self.dilation

    def interior(self) -> tuple[int, int]:
        """[first, last) position whose window lies inside the image."""
        whole = [p for p in range(self.out) if self.taps(p) == (0, self.kernel)]
        return (whole[0], whole[-1] + 1) if whole else (0, 0)


def kernel(spec: PoolSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (input, output), both NHWC, for vectors of `width` floats."""
    rows = _Axis(spec.h, spec.out_h, spec.kh, spec.stride[0], spec.pad[::2], spec.dilation[0])
    columns = _Axis(spec.w, spec.out_w, spec.kw, spec.stride[1], spec.pad[1::2], spec.dilation[1])
    channels = cover(spec.c, width)
    lanes, in_group = channels.lanes, min(_VECTORS[spec.kind], channels.full)
    groups, rest = divmod(channels.full, in_group)
    starts = [*range(0, rest * lanes, lanes)]  # of the vectors after the last group, relative to that
    if channels.overlap:
        starts.append(rest * lanes - channels.overlap)
    shared_groups = groups if spec.n * spec.out_h < _FEW_ROWS else 1

    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        source = T.arg("source", T.buffer((spec.n, spec.h, spec.w, spec.c), spec.dtype))
        target = T.arg("target", T.buffer((spec.n, spec.out_h, spec.out_w, spec.c), spec.dtype))
        source = flat(source, spec.n * spec.h * spec.w * spec.c, spec.dtype)
        target = flat(target, spec.n * spec.out_h * spec.out_w * spec.c, spec.dtype)

        def window(image, y, x, first_channel, vectors: list[int]) -> None:
            """One output pixel, the vectors that start at `first_channel` + each of `vectors`."""
            accumulators = T.alloc_buffer((lanes * len(vectors),), "float32", scope="global")
            slots = [vector(i * lanes, lanes) for i in range(len(vectors))]
            start = float("-inf") if spec.kind == "max" else 0.0
            for slot in slots:
                T.buffer_store(accumulators, spread(tirx.const(start, "float32"), lanes), [slot])
            squares = T.alloc_buffer((lanes * len(vectors),), "float32", scope="global") if spec.kind == "max" else None
            for slot in slots if squares is not None else ():
                T.buffer_store(squares, zero(lanes), [slot])

            def tap(row, dx) -> None:
                pixel = (row + columns.at(x, dx)) * spec.c + first_channel
                for slot, offset in zip(slots, vectors, strict=True):
                    value = converted(source[vector(pixel + offset, lanes)], lanes, spec.dtype, "float32")
                    if squares is None:
                        T.buffer_store(accumulators, accumulators[slot] + value, [slot])
                        continue
                    value = T.bind(value)
                    T.buffer_store(accumulators, tirx.max(accumulators[slot], value), [slot])
                    T.buffer_store(squares, squares[slot] + value * value, [slot])

            y_first, y_last = rows.taps(y)
            x_first, x_last = (0, spec.kw) if is_interior else columns.taps(x)
            with T.serial(0, y_last - y_first) as dy:
                row = T.bind((image * spec.h + rows.at(y, y_first + dy)) * spec.w)
                if isinstance(x_first, int) and x_last - x_first <= _UNROLLED_TAPS:
                    for dx in range(x_first, x_last):
                        tap(row, dx)
                else:
                    with T.serial(0, x_last - x_first) as dx:
                        tap(row, x_first + dx)
            count = None
            if spec.kind == "avg":
                taps = (y_last - y_first) * (x_last - x_first)
                if spec.count_include_pad:
                    taps = rows.padded_taps(y) * (spec.kw if is_interior else columns.padded_taps(x))
                # A window that lies in the padding altogether averages to 0.
                count = float(max(taps, 1)) if isinstance(taps, int) else tirx.max(taps, 1)
                count = tirx.Cast("float32", count) if isinstance(count, ir.Expr) else tirx.const(count, "float32")
            pixel = ((image * spec.out_h + y) * spec.out_w + x) * spec.c + first_channel
            for slot, offset in zip(slots, vectors, strict=True):
                value = accumulators[slot]
                if count is not None:
                    value = value / spread(count, lanes)
                if squares is not None:
                    value = vector_math.unless_nan(squares[slot], value)
                T.buffer_store(target, converted(value, lanes, "float32", spec.dtype), [vector(pixel + offset, lanes)])

        first, last = columns.interior()
        with loop(spec.n * spec.out_h * shared_groups, spec.flops) as task:
            row_index = task // shared_groups if shared_groups > 1 else task
            image, y = row_index // spec.out_h, row_index % spec.out_h
            y = 0 if spec.out_h == 1 else y
            for begin, end in ((0, first), (first, last), (last, spec.out_w)):
                is_interior = (begin, end) == (first, last)
                if begin == end:
                    continue
                # Loops start at 0: TVM's CanonicalizeLoop forgets to shift the bounds of loops inside.
                with maybe_serial(0, end - begin) as column:
                    x = begin + column
                    if shared_groups > 1:
                        group = (task % shared_groups) * in_group * lanes
                        window(image, y, x, group, [i * lanes for i in range(in_group)])
                    else:
                        with maybe_serial(0, groups) as index:
                            group = index * in_group * lanes
                            window(image, y, x, group, [i * lanes for i in range(in_group)])
                    if starts:
                        tail = groups * in_group * lanes
                        if shared_groups > 1:
                            with T.If(task % shared_groups == 0), T.Then():
                                window(image, y, x, tail, starts)
                        else:
                            window(image, y, x, tail, starts)
    return builder.get()


__all__ = ["KINDS", "PoolSpec", "kernel"]
