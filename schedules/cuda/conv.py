"""Convolution as an implicit matrix product over NHWC images; dense layers are the case of one pixel per row.

    rows      pixels of the result, of all images
    columns   output channels: one block of the panel, so that a step computes blocks [first, first + count)
    products  kernel row, kernel column, input channel

What a tile multiplies is read from the image where it lies; pixels outside of it are zeros in registers.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.layer_function import Operands, layer_function
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec
from .emit import LANES, both, ceil_div, copy, launched, only_if, registers
from .panels import ThreadPanel
from .product import BlockTile, Loaded, Product, or_zeros
from .results import Results

_BITS = 32  # of an integer


def kernel(spec: ConvSpec, tile: BlockTile) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as on CPUs, with blocks of `tile.columns` channels."""
    panel = panel_of(spec, tile.columns)
    assert panel.block <= spec.group_out or spec.groups == 1, "a block of a panel has channels of one group"
    pixels = spec.batch * spec.out_height * spec.out_width

    def emit(given: Operands) -> None:
        with launched((ceil_div(pixels, tile.rows), given.count), tile.threads) as ((part, offset), thread):
            block = T.bind(given.first + offset)
            group = block // panel.blocks_per_group if panel.groups > 1 else 0
            weights = ThreadPanel(given.panel, offset)
            product = Product(tile, thread, spec.taps)
            image = _Image(spec, tile.depth, given.x, group, [part * tile.rows + row for row in product.rows_loaded()])

            product.compute(image, _Weights(spec, tile.depth, weights, product.columns_loaded))
            results = Results(spec, given, weights, block)
            product.for_each_row(
                lambda row, column, at: results.store(part * tile.rows + row, column, lambda i: product.sums[at + i])
            )

    return layer_function(spec, panel, emit, in_place=spec.tensors > 0)


class _Weights:
    """The right operand: a block of the panel, whose numbers are widened when they are needed."""

    def __init__(self, spec: ConvSpec, depth: int, weights: ThreadPanel, vectors: int) -> None:
        self.weights, self.taps, self.is_whole = weights, spec.taps, spec.taps % depth == 0
        self.ahead = weights.ahead(vectors)

    def load(self, i: int, first, at, column) -> None:
        inside = True if self.is_whole else first + at < self.taps
        with or_zeros(self.ahead, i * self.weights.words, self.weights.words, inside):
            self.weights.load(self.ahead, i, first + at, column)

    def loaded(self, i: int) -> tuple[tirx.Buffer, int]:
        if not self.weights.panel.narrow:
            return self.ahead, i * LANES
        wide = registers(LANES)
        for lane, weight in enumerate(self.weights.weights(self.ahead, i)):
            T.buffer_store(wide, weight, [lane])
        return wide, 0


class _Image(Loaded):
    """The left operand: the pixels that some rows of the result see through the kernel."""

    def __init__(self, spec: ConvSpec, depth: int, x: tirx.Buffer, group, pixels: list[ir.Expr]) -> None:
        super().__init__(len(pixels))
        self.spec, self.depth, self.x = spec, depth, x
        # Neighbours in a vector are neighbours in memory if they belong to one pixel.
        self.lanes = LANES if spec.group_in % LANES == 0 and spec.in_channels % LANES == 0 else 1
        # So are, in scalars, all columns of a kernel row, which then is one run of channels.
        self.joins_columns = self.lanes == 1 and spec.groups == 1 and spec.dilation[1] == 1
        self.pixels = [_Pixel(spec, pixel, group) for pixel in pixels]

    def load(self, i: int, first, at, row) -> None:
        spec, pixel = self.spec, self.pixels[i]
        for lane in range(0, LANES, self.lanes):
            if spec.pointwise:
                place = pixel.place + (first + at + lane)
                inside = True if spec.taps % self.depth == 0 else first + at + lane < spec.taps
            elif self.joins_columns:
                place, inside = self._in_joined(first + at + lane, pixel)
            else:
                place, inside = self._in_window(first, at + lane, pixel)
            with or_zeros(self.ahead, i * LANES + lane, self.lanes, inside):
                copy(self.ahead, i * LANES + lane, self.x, place, self.lanes)

    def _in_joined(self, product, pixel: _Pixel) -> tuple[ir.Expr, ir.Expr]:
        """Where a product's element lies, and whether there is one."""
        spec = self.spec
        run = spec.kernel[1] * spec.in_channels
        down, across = product // run, product % run
        place = pixel.place + (down * (spec.dilation[0] * spec.width * spec.in_channels) + across)
        return place, pixel.sees_joined(down, across)

    def _in_window(self, first, at, pixel: _Pixel) -> tuple[ir.Expr, ir.Expr]:
        """As `_in_joined`, for product `at` of a step."""
        spec = self.spec
        if spec.group_in % self.depth == 0:  # the same tap for all threads
            tap, channel = first // spec.group_in, first % spec.group_in + at
        else:
            tap, channel = (first + at) // spec.group_in, (first + at) % spec.group_in
        down, across = tap // spec.kernel[1], tap % spec.kernel[1]
        rows, columns = down * spec.dilation[0], across * spec.dilation[1]
        return pixel.place + ((rows * spec.width + columns) * spec.in_channels + channel), pixel.sees(down, across, tap)


class _Pixel:
    """A pixel of the result: where it is, and where the first of those that it sees lies in the image."""

    def __init__(self, spec: ConvSpec, pixel: ir.Expr, group) -> None:
        self.spec = spec
        self.exists = pixel < spec.batch * spec.out_height * spec.out_width
        if spec.pointwise:
            # What lies behind the last pixel is not stored, so that it may be anything.
            last = spec.batch * spec.out_height * spec.out_width - 1
            self.place = T.bind(tirx.min(pixel, last) * spec.in_channels + group * spec.group_in)
            return
        image, rest = pixel // (spec.out_height * spec.out_width), pixel % (spec.out_height * spec.out_width)
        top = T.bind(rest // spec.out_width * spec.stride[0] - spec.padding[0])
        self.left = T.bind(rest % spec.out_width * spec.stride[1] - spec.padding[1])
        first = (image * spec.height + top) * spec.width + self.left
        self.place = T.bind(first * spec.in_channels + group * spec.group_in)
        # Whether taps meet the image, a bit each: in the loop over products a shift tells what takes five comparisons. Behind
        # the last tap bits are 0, so that products which only fill up a step are zeros, too.
        rows = [_inside(top + tap * spec.dilation[0], spec.height) for tap in range(spec.kernel[0])]
        columns = [_inside(self.left + tap * spec.dilation[1], spec.width) for tap in range(spec.kernel[1])]
        self.taps = self.joined = None
        if len(rows) * len(columns) < _BITS:
            self.taps = _mask(self.exists, [tirx.And(row, column) for row in rows for column in columns])
        if len(columns) * spec.in_channels < _BITS:
            self.joined = _mask(True, [column for column in columns for _ in range(spec.in_channels)])
        self.rows, self.columns = _mask(self.exists, rows), _mask(True, columns)

    def sees(self, down, across, tap) -> ir.Expr:
        """Whether a tap, in that row and column of the kernel, is one and meets the image."""
        if self.taps is not None:
            return _bit(self.taps, tap)
        return tirx.And(_bit(self.rows, down), _bit(self.columns, across))

    def sees_joined(self, down, across) -> ir.Expr:
        """Whether the element so far from a row's first belongs to a tap that meets the image."""
        if self.joined is not None:
            return tirx.And(_bit(self.rows, down), _bit(self.joined, across))
        at = self.left * self.spec.in_channels + across
        return both(_bit(self.rows, down), at >= 0, at < self.spec.width * self.spec.in_channels)


def _inside(at: ir.Expr, extent: int) -> ir.Expr:
    return tirx.And(at >= 0, at < extent)


def _mask(exists: ir.Expr | bool, conditions: list[ir.Expr]) -> ir.Expr:
    """An integer with a bit for every condition that holds, 0 for what does not exist, in registers."""
    bits = registers(1, "int32")
    zero = tirx.const(0, "int32")
    T.buffer_store(bits, zero, [0])
    with only_if(exists):
        for number, condition in enumerate(conditions):
            T.buffer_store(bits, bits[0] + tirx.Select(condition, tirx.const(1 << number, "int32"), zero), [0])
    return bits[0]


def _bit(mask: ir.Expr, number) -> ir.Expr:
    return tirx.bitwise_and(tirx.shift_right(mask, number), tirx.const(1, "int32")) != 0
