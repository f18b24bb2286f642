"""Convolution as a matrix product with a flattened input, which is made and multiplied slice by slice.

FlexNN (MobiCom 2024, section 3.2, input slicing): the image is flattened to a matrix of output pixels × products, in
the order kernel row, kernel column, input channel; it is cut by flattened channels into slices of which one is in
memory at a time. Scratch falls in proportion to the number of slices. It is the kernel to compare the direct one
with, which needs no such matrix.

1. Weights lie in the same panels as for the direct convolution: a slice of products is a range of a block's rows.
2. For each image, group and slice the slice is flattened. Where taps of a kernel row lie next to each other in the
   image, their channels are one run that is copied at once; what lies outside the image is set to zero.
3. Then tasks are (band of pixels, block of channels). A register tile is multiplied with the slice in parts of a
   few hundred products, so that rounding errors stay small, and added to what the output holds: the bias before the
   first slice, partial sums later. The epilogue follows the last slice.
4. Partial sums must be added once. Where the last block of a group overlaps the one before it, it computes only the
   channels that are its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import epilogue as ep
from .emit import Accumulators, loop, maybe_serial, spread, vector, zero
from .layer_function import Operands, layer_function
from .panel import Panel, panel_of
from .spec import ConvSpec
from .tile import Tile, VectorUnit, choose, pieces

_LINE = 16  # floats of a cache line
# Products added up in a register before the sum moves to the output, as in the direct convolution.
_PARTIAL_TERMS = 512
# Pixels of a tile this many bytes apart would share a few sets of an 8-way 32 KiB cache.
_ALIAS_NBYTES = 1024
# Bytes of the flattened slice that should stay in the second-level cache while all blocks pass over it.
_BAND_NBYTES = 256 * 1024
# Products of a slice below which a layer is not cut any further; FlexNN's own choice (section 5.3).
FINEST_SLICE = 32
# The predicted time, in operations of a direct convolution: per float of the flattened input that is written and read,
# and per float of partial sums that is.
_FLATTEN_FLOPS = 16.0
_PARTIAL_FLOPS = 24.0


def eligible(spec: ConvSpec) -> bool:
    """Whether the family is of use: a pointwise convolution's input is flat already."""
    return not spec.depthwise and not spec.pointwise


@dataclass(frozen=True)
class Im2col:
    """A way to compute a layer: a register tile, and into how many slices the flattened input is cut."""

    spec: ConvSpec
    tile: Tile
    slices: int

    @property
    def panel(self) -> Panel:
        return panel_of(self.spec, self.tile.channels)

    @property
    def pixels(self) -> int:
        """Output pixels of one image: rows of the flattened input."""
        return self.spec.out_height * self.spec.out_width

    @property
    def slice(self) -> int:
        """Products of a slice, the last of which may be shorter: whole cache lines where there are enough of them."""
        each = math.ceil(self.spec.taps / self.slices)
        return math.ceil(each / _LINE) * _LINE if each >= _LINE and self.slices > 1 else each

    @property
    def row(self) -> int:
        """Floats between pixels in the flattened slice."""
        floats = math.ceil(self.slice / _LINE) * _LINE if self.slice >= _LINE else self.slice
        return floats + _LINE if floats * 4 % _ALIAS_NBYTES == 0 else floats

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """The shape of the flattened slice, float32."""
        return ((self.pixels, self.row),)

    @property
    def scratch_nbytes(self) -> int:
        return 4 * self.pixels * self.row

    @property
    def work(self) -> float:
        """Predicted time, in operations of a direct convolution that takes as long."""
        spec = self.spec
        flattened = spec.batch * spec.groups * self.pixels * spec.taps
        partial = (math.ceil(spec.taps / self.slice) - 1) * spec.batch * self.pixels * spec.out_channels
        return spec.flops + _FLATTEN_FLOPS * flattened + _PARTIAL_FLOPS * partial

    def __str__(self) -> str:
        count = math.ceil(self.spec.taps / self.slice)
        return f"{count} slices" if count > 1 else "1 slice"


def ways(spec: ConvSpec, unit: VectorUnit) -> list[Im2col]:
    """One slice, two, four and so on, down to slices of FINEST_SLICE products; none if the family is of no use."""
    if not eligible(spec):
        return []
    found: dict[str, Im2col] = {}
    slices = 1
    while slices == 1 or slices * FINEST_SLICE <= spec.taps:
        way = in_slices(spec, unit, slices)
        found.setdefault(str(way), way)
        slices *= 2
    finest = in_slices(spec, unit, max(1, spec.taps // FINEST_SLICE))
    found.setdefault(str(finest), finest)
    return list(found.values())


def in_slices(spec: ConvSpec, unit: VectorUnit, slices: int) -> Im2col:
    """The way with the best register tile and about so many slices."""
    return Im2col(spec, choose(spec.out_height * spec.out_width, spec.group_out, unit), slices)


def kernel(way: Im2col, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, flattened).

    x is float32[batch, height, width, in_channels], y and the tensors float32[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks, the first of which is block `first` of the layer; flattened is scratch
    of the shape `way.scratch[0]`. A step whose first block overlaps the one before it leaves the shared channels to
    the step that has that one.
    """
    assert eligible(way.spec), f"nothing to flatten for {way.spec}"
    assert way.tile.channels <= way.spec.group_out, f"{way.tile} is wider than {way.spec}"
    return _Emitter(way, vector_width).prim_func()


def _bind(value):
    """A name for a value that several expressions use."""
    return value if isinstance(value, int) else T.bind(value)


class _Emitter:
    def __init__(self, way: Im2col, vector_width: int) -> None:
        self.way, self.spec, self.panel, self.width = way, way.spec, way.panel, vector_width
        self.count = math.ceil(self.spec.taps / way.slice)
        self.tiles = math.ceil(way.pixels / way.tile.rows)
        self.small, self.larger = divmod(way.pixels, self.tiles)  # the first `larger` tiles have a pixel more
        self.band = max(1, min(self.tiles, _BAND_NBYTES // (4 * way.row * way.tile.rows)))

    def prim_func(self) -> tirx.PrimFunc:
        return layer_function(self.spec, self.panel, self._body, self.way.scratch)

    def _body(self, given: Operands) -> None:
        self.x, self.w, self.y, self.tensors = given.x, given.panel, given.y, given.tensors
        (self.a,) = given.scratch
        self._slices(given.first, given.count)

    def _slices(self, first, count) -> None:
        spec, way, per_group = self.spec, self.way, self.panel.blocks_per_group
        with maybe_serial(0, spec.batch) as image:
            self.image = image
            groups = (first // per_group, (first + count - 1) // per_group + 1) if spec.groups > 1 else (0, 1)
            with maybe_serial(*groups) as group, maybe_serial(0, self.count) as index:
                self.group, self.index = group, index
                self.start = _bind(index * way.slice)
                self.stop = T.bind(tirx.min(self.start + way.slice, spec.taps)) if self.count > 1 else spec.taps
                self._flatten()
                low = T.bind(tirx.max(first, group * per_group)) if spec.groups > 1 else first
                high = T.bind(tirx.min(first + count, (group + 1) * per_group)) if spec.groups > 1 else first + count
                self._multiply(first, low, high - low)

    # -- flattening --------------------------------------------------------------------------------

    def _flatten(self) -> None:
        """Write the slice's products of every output pixel."""
        spec, way = self.spec, self.way
        with loop(spec.out_height, 4 * way.pixels * way.slice) as row, T.serial(spec.out_width) as column:
            place = T.bind((row * spec.out_width + column) * way.row - self.start)  # of product 0, which may lie before
            # Taps that lie side by side in the image are one run, if all channels are wanted.
            joined = spec.groups == 1 and (spec.dilation[1] == 1 or spec.kernel[1] == 1)
            taps = 1 if joined else spec.kernel[1]
            run = spec.taps // spec.kernel[0] // taps
            with T.serial(self.start // run, (self.stop + (run - 1)) // run) as line:
                in_row = T.bind(row * spec.stride[0] - spec.padding[0] + line // taps * spec.dilation[0])
                in_column = T.bind(column * spec.stride[1] - spec.padding[1] + line % taps * spec.dilation[1])
                low = T.bind(tirx.max(self.start, line * run))
                high = T.bind(tirx.min(self.stop, (line + 1) * run))
                source = T.bind(in_column * spec.in_channels - line * run)  # in its row, of product 0
                ends = spec.width * spec.in_channels
                inside = tirx.all(in_row >= 0, in_row < spec.height)
                if not joined:
                    # One tap, of one group: inside the row or not.
                    inside = tirx.all(inside, in_column >= 0, in_column < spec.width)
                    known = (low, tirx.if_then_else(inside, high, low))
                else:
                    known = (
                        tirx.min(tirx.max(0 - source, low), high),
                        tirx.if_then_else(inside, tirx.max(tirx.min(ends - source, high), low), low),
                    )
                begin, end = T.bind(tirx.if_then_else(inside, known[0], low)), T.bind(known[1])
                base = T.bind(
                    ((self.image * spec.height + in_row) * spec.width) * spec.in_channels
                    + source + self.group * spec.group_in
                )  # fmt: skip
                self._fill(place, low, begin, None)
                self._fill(place, begin, end, base)
                self._fill(place, end, high, None)

    def _fill(self, place, low, high, source) -> None:
        """Products [low, high) of a pixel: copied, or zero without a source. LLVM makes vectors of these loops."""
        with T.serial(low, high) as at:
            T.buffer_store(self.a, zero(1) if source is None else self.x[source + at], [place + at])

    # -- multiplying -------------------------------------------------------------------------------

    def _multiply(self, first, low, count) -> None:
        """Add the product of the slice and the weights of blocks [low, low + count), all of one group."""
        spec, panel = self.spec, self.panel
        bands = math.ceil(self.tiles / self.band)
        flops = 2 * self.way.pixels * spec.group_out * self.way.slice
        shared = max(0, panel.blocks_per_group * panel.block - panel.group_channels)
        with loop(count * bands, flops) as task:
            accumulators = {lanes: Accumulators(self.way.tile.rows, self._pieces(lanes)) for lanes in (0, shared)}
            block = T.bind(low + task % count)
            top = T.bind(task // count * self.band) if bands > 1 else 0
            self.panel_at = T.bind((block - first) * (panel.rows * panel.block))
            within = T.bind(block % panel.blocks_per_group)
            if not shared:
                self._tiles(accumulators[0], top, within * panel.block)
                return
            with T.If(within < panel.blocks_per_group - 1):
                with T.Then():
                    self._tiles(accumulators[0], top, within * panel.block)
                with T.Else():
                    self._tiles(accumulators[shared], top, panel.group_channels - panel.block)

    def _pieces(self, shared: int) -> list[tuple[int, int]]:
        """The vectors of a block's lanes behind the first `shared`."""
        return [(shared + start, lanes) for start, lanes in pieces(self.panel.block - shared, self.width)]

    def _tiles(self, acc: Accumulators, top, channel) -> None:
        self.out_channel = _bind(self.group * self.spec.group_out + channel)
        stop = tirx.min(top + self.band, self.tiles) if self.tiles % self.band else top + self.band
        if not self.larger:
            with T.serial(top, stop) as tile:
                self._tile(acc, tile * self.small, self.small)
            return
        middle = T.bind(tirx.max(top, tirx.min(stop, self.larger)))
        with T.serial(top, middle) as tile:
            self._tile(acc, tile * (self.small + 1), self.small + 1)
        with T.serial(middle, stop) as tile:
            self._tile(acc, tile * self.small + self.larger, self.small)

    def _tile(self, acc: Accumulators, pixel, size: int) -> None:
        """Output pixels [pixel, pixel + size) and the channels of a block."""
        spec, block = self.spec, self.panel.block
        place = T.bind((self.image * self.way.pixels + pixel) * spec.out_channels + self.out_channel)
        if self.count > 1:
            self._prefetch(place, size)
        parts = math.ceil(self.way.slice / _PARTIAL_TERMS)
        each = math.ceil(self.way.slice / parts)
        with maybe_serial(0, parts) as part:
            acc.fill(size, lambda start, lanes: zero(lanes))
            begin = _bind(self.start + part * each)
            terms = tirx.min(each, self.stop - begin)
            source = T.bind(pixel * self.way.row + part * each)
            weights = T.bind(self.panel_at + (1 + begin) * block)
            with T.serial(terms) as term:
                acc.accumulate(
                    list(range(size)),
                    lambda row, start, lanes: spread(self.a[source + row * self.way.row + term], lanes),
                    lambda start, lanes: self.w[vector(weights + term * block + start, lanes)],
                )
            self._add(acc, size, place, part, parts)

    def _prefetch(self, place, size: int) -> None:
        """Ask for the partial sums that a slice adds to: where the output is larger than the caches they come late."""
        for row in range(size):
            for start in range(0, self.panel.block, _LINE):
                address = tirx.address_of(self.y[place + row * self.spec.out_channels + start])
                read, all_caches, data = (tirx.const(number, "int32") for number in (0, 3, 1))
                T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, read, all_caches, data))

    def _add(self, acc: Accumulators, size: int, place, part, parts: int) -> None:
        """Add a part to the output: the first to the bias, the last with the epilogue."""
        last = self.count * parts - 1
        number = _bind(self.index * parts + part)
        if not last:
            self._store(acc, size, place, begins=True, ends=True)
            return
        with T.If(number == 0):
            with T.Then():
                self._store(acc, size, place, begins=True, ends=False)
            with T.Else():
                with T.If(number == last):
                    with T.Then():
                        self._store(acc, size, place, begins=False, ends=True)
                    with T.Else():
                        self._store(acc, size, place, begins=False, ends=False)

    def _store(self, acc: Accumulators, size: int, place, begins: bool, ends: bool) -> None:
        spec, block = self.spec, self.panel.block
        vectors_at = self.panel_at + (1 + self.panel.taps) * block
        for row in range(size):
            for start, lanes in acc.pieces:
                index = vector(place + row * spec.out_channels + start, lanes)
                value = acc.get(row, start, lanes)
                value = value + (self.w[vector(self.panel_at + start, lanes)] if begins else self.y[index])
                if ends:
                    value = ep.evaluate(
                        spec.epilogue,
                        value,
                        tensor=lambda i, index=index: self.tensors[i][index],
                        channel=lambda i, start=start, lanes=lanes: self.w[
                            vector(vectors_at + i * block + start, lanes)
                        ],
                    )
                T.buffer_store(self.y, value, [index])
