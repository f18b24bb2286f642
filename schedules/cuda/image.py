"""The left operand of a convolution: the pixels that some rows of the result see through the kernel.

Where a product's number lies is the sum of two places: that of the first input of the row's pixel, and how far the product
is from there, which is the same for all pixels. The second ones lie in a table in shared memory, which a block makes once: in the
loop over products, dividing by extents of the kernel took as long as a third of the multiplications.

    entry     (how far, taps needed): of a step that belongs to one tap, else of a vector, or of a product
    outside   a bit for every row and column of the kernel, of a pixel: whether that row or column misses the image

A product that needs no tap that is outside is there; others are zeros in registers.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.spec import ConvSpec
from .copy_stage import SharedVector, copy_width
from .emit import LANES, barrier, both, ceil_div, copy, kept, only_if, registers, shared
from .main_loop import MainLoop

_BITS = 31  # for rows and columns of kernels; the last bit of an integer is that of products which only fill up a step
_NEVER = -(1 << _BITS)
_TABLE_NBYTES = 8 * 1024  # at most
# Integers that are read at once. An entry for several products is there twice or four times, and a thread's vectors take turns:
# otherwise nvcc reads the numbers that are used one by one.
_READ = 4


class Image:
    """The loads of a block's threads: a vector of products for each row."""

    is_short = False

    def __init__(self, spec: ConvSpec, loop: MainLoop, x: tirx.Buffer, group, first_pixel) -> None:
        rows = loop.rows_loaded()
        self.stage = loop.stage(len(rows))
        self.store_shared = self.stage.store_shared
        self.spec = spec = _widened(spec)
        self.depth = loop.tile.depth
        # Neighbours in a vector are neighbours in memory if both belong to one pixel.
        self.lanes = copy_width(self.stage, spec.group_in, spec.in_channels)
        self.each = self.depth if spec.group_in % self.depth == 0 else self.lanes  # products of an entry
        self.has_bits = sum(_misses(spec)) <= _BITS
        # Of an entry for a step the thread's own product, which is the same in each.
        self.is_flat = spec.kernel == (1, 1) and not any(_misses(spec))
        own = loop.thread % (self.depth // LANES) * LANES if self.each == self.depth and not self.is_flat else 0
        self.pixels = [_Pixel(spec, first_pixel + row, group, own, self.lanes, has_bits=self.has_bits) for row in rows]
        self.sources = [self.stage.source(x, pixel.place, self.lanes) for pixel in self.pixels]
        self.table: tirx.Buffer | None = None
        self.is_always = not any(_misses(spec)) and spec.taps % self.depth == 0
        self.integers = 1 if self.is_always else 2  # of an entry
        entries = ceil_div(spec.taps, self.depth) * self.depth // self.each
        size = self.integers if self.each < LANES else _READ
        if not self.is_flat and self.has_bits and 4 * size * entries <= min(_TABLE_NBYTES, loop.left_nbytes):
            self._make_table(entries, size, loop)

    def _make_table(self, entries: int, size: int, loop: MainLoop) -> None:
        threads = loop.tile.threads
        self.table = shared(size * entries, "int32")
        with T.serial(ceil_div(entries, threads)) as turn:
            number = T.bind(turn * threads + loop.thread)
            with only_if(True if entries % threads == 0 else number < entries):
                entry = [T.bind(value) for value in self._entry(number * self.each)]
                for i in range(size):
                    T.buffer_store(self.table, entry[i % self.integers], [number * size + i])
        barrier()
        self._entries = registers(LANES // self.each * self.integers if self.each < LANES else _READ, "int32")

    def load(self, i: int, first, at, row, to: SharedVector) -> None:
        if self.table is not None and i == 0:
            self._read_entries(first, at)
        for lane in range(0, LANES, self.lanes):
            far, inside = self._found(i, first, at, lane)
            beyond = lane // self.lanes if self.is_flat else 0
            self.stage.issue(i, lane, self.sources[i], far, beyond, inside, to)

    def _found(self, i: int, first, at, lane: int) -> tuple[ir.Expr, ir.Expr | bool]:
        """How far the number of a product is from the first one of the pixel of vector i, and whether there is one."""
        spec, pixel = self.spec, self.pixels[i]
        if self.is_flat:
            inside = True if spec.taps % self.depth == 0 else first + at + lane < spec.taps
            return (first + at) // self.lanes, inside
        if self.table is None:
            far, needed = self._entry(first if self.each == self.depth else first + at + lane)
            inside = pixel.sees(needed) if self.has_bits else pixel.looks(*self._tap(first + at + lane)[:2])
            inside = both(inside, True if spec.taps % self.depth == 0 else first + at + lane < spec.taps)
            return far, inside
        entry = lane // self.each * self.integers if self.each < LANES else i * self.integers % _READ
        return self._entries[entry], True if self.is_always else pixel.sees(self._entries[entry + 1])

    def _read_entries(self, first, at) -> None:
        if self.each < LANES:
            integers = LANES // self.each * self.integers
            for part in range(0, integers, _READ):
                place = (first + at) // self.each * self.integers + part
                copy(self._entries, part, self.table, place, min(integers, _READ))
        else:
            product = first if self.each == self.depth else first + at
            copy(self._entries, 0, self.table, product // self.each * _READ)

    def _tap(self, product) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """(row and column of the kernel, channel) of a product."""
        spec = self.spec
        tap = product // spec.group_in
        return tap // spec.kernel[1], tap % spec.kernel[1], product % spec.group_in

    def _entry(self, product) -> tuple[ir.Expr, ir.Expr]:
        """How far a product is from a pixel's first, in units of one load, and the taps needed."""
        spec = self.spec
        down, across, channel = self._tap(product)
        far = (down * (spec.dilation[0] * spec.width) + across * spec.dilation[1]) * (spec.in_channels // self.lanes)
        far = far + channel // self.lanes
        rows, columns = _misses(spec)
        one, needed = tirx.const(1, "int32"), tirx.const(0, "int32")
        if rows:
            needed = needed | tirx.shift_left(one, down)
        if columns:
            needed = needed | tirx.shift_left(one, across + rows)
        if spec.taps % self.depth:
            needed = tirx.Select(product < spec.taps, needed, tirx.const(_NEVER, "int32"))
        return far, needed


def one_by_one(spec: ConvSpec) -> bool:
    """Whether neighbours among a pixel's products are loaded one by one, because few are neighbours in memory."""
    spec = _widened(spec)
    return bool(spec.group_in % LANES or spec.in_channels % LANES)


class _Pixel:
    """A pixel of the result: where its first input pixel lies in the image, and the taps that miss the image.

    Pixels after the last one are the last one again, and their results are not stored. Places are counted in units of one
    load, so that loads are known to be aligned.
    """

    def __init__(self, spec: ConvSpec, pixel: ir.Expr, group, own, lanes: int, *, has_bits: bool) -> None:
        self.spec = spec
        pixel = tirx.min(pixel, spec.batch * spec.out_height * spec.out_width - 1)
        if spec.pointwise:
            self.place = T.bind(pixel * (spec.in_channels // lanes) + group * spec.group_in // lanes)
            return
        image, rest = pixel // (spec.out_height * spec.out_width), pixel % (spec.out_height * spec.out_width)
        self.top = T.bind(rest // spec.out_width * spec.stride[0] - spec.padding[0])
        self.left = T.bind(rest % spec.out_width * spec.stride[1] - spec.padding[1])
        place = ((image * spec.height + self.top) * spec.width + self.left) * (spec.in_channels // lanes)
        self.place = kept(place + (group * spec.group_in + own) // lanes)
        if has_bits:
            rows, columns = _misses(spec)
            missed = [self._misses_row(tap) for tap in range(rows)] + [self._misses_column(tap) for tap in range(columns)]
            bits = registers(1, "int32")
            T.buffer_store(bits, tirx.const(_NEVER, "int32"), [0])
            for number, condition in enumerate(missed):
                bit = tirx.Select(condition, tirx.const(1 << number, "int32"), tirx.const(0, "int32"))
                T.buffer_store(bits, bits[0] | bit, [0])
            self.outside = bits[0]

    def sees(self, needed: ir.Expr) -> ir.Expr:
        """Whether none of the taps that are needed misses the image."""
        return tirx.EQ(tirx.bitwise_and(self.outside, needed), tirx.const(0, "int32"))

    def looks(self, down, across) -> ir.Expr:
        """Whether a tap meets the image."""
        return both(tirx.Not(self._misses_row(down)), tirx.Not(self._misses_column(across)))

    def _misses_row(self, tap) -> ir.Expr:
        row = self.top + tap * self.spec.dilation[0]
        return tirx.Or(row < 0, row >= self.spec.height)

    def _misses_column(self, tap) -> ir.Expr:
        column = self.left + tap * self.spec.dilation[1]
        return tirx.Or(column < 0, column >= self.spec.width)


def _misses(spec: ConvSpec) -> tuple[int, int]:
    """Rows and columns of the kernel that may lie outside of an image; 0 if none does."""
    top, left, *_ = spec.padding
    down = (spec.out_height - 1) * spec.stride[0] - top + (spec.kernel[0] - 1) * spec.dilation[0]
    across = (spec.out_width - 1) * spec.stride[1] - left + (spec.kernel[1] - 1) * spec.dilation[1]
    rows = spec.kernel[0] if top or down >= spec.height else 0
    return rows, spec.kernel[1] if left or across >= spec.width else 0


def _widened(spec: ConvSpec) -> ConvSpec:
    """The same image with a kernel's columns as channels of wider pixels, where kernels lie side by side, as patches do."""
    width = spec.kernel[1]
    beside = spec.stride[1] == width and spec.width % width == 0 and spec.padding[1] == spec.padding[3] == 0
    if width == 1 or spec.groups > 1 or spec.dilation[1] > 1 or not beside:
        return spec
    return replace(
        spec, width=spec.width // width, in_channels=spec.in_channels * width,
        kernel=(spec.kernel[0], 1), stride=(spec.stride[0], 1),
    )  # fmt: skip
