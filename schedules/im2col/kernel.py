"""Kernels that multiply a flattened input with the weights, slice by slice (schedules/im2col/ways.py).

1. Weights lie in the same panels as for the direct convolution: a slice of products is a range of a block's rows.
2. For each image, group, stretch and slice the slice is flattened. Where taps of a kernel row lie next to each other
   in the image, their channels are one run that is copied at once; pixels outside the image are zero.
3. Then tasks are (band of the stretch's tiles, block of channels). A register tile is multiplied with the slice in
   parts of a few hundred products, so that rounding errors stay small, and added to the output: the bias
   before the first slice, partial sums later. The epilogue follows the last slice.
4. Partial sums must be added once. Where the last block of a group overlaps the previous one, the last one computes
   only its own channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import epilogue as ep
from ..tiles.emit import (
    CACHE_LINE,
    PARALLEL_FLOPS,
    Accumulators,
    in_slots,
    loop,
    maybe_serial,
    prefetch,
    spread,
    vector,
    zero,
)
from ..tiles.layer_function import Operands, layer_function
from ..tiles.tile import pieces
from .ways import Im2col, eligible


def kernel(way: Im2col, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, flattened[, widened]).

    x is float32[batch, height, width, in_channels], y and the tensors float32[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks, the first of which is block `first` of the layer; flattened and
    widened are scratch of the shapes `way.scratch`. A step whose first block overlaps the previous one leaves the
    shared channels to the other step.
    """
    assert eligible(way.spec), f"nothing to flatten for {way.spec}"
    assert way.tile.channels <= way.spec.group_out, f"{way.tile} is wider than {way.spec}"
    return _Emitter(way, vector_width).prim_func()


def _bind(value):
    """A name for a value that several expressions use."""
    return value if isinstance(value, int) else T.bind(value)


def _least(value, bound: int):
    """The lesser of two numbers that are not negative, as a constant if possible."""
    if bound == 0:
        return 0
    return min(value, bound) if isinstance(value, int) else tirx.min(value, bound)


class _Emitter:
    def __init__(self, way: Im2col, vector_width: int) -> None:
        self.way, self.spec, self.panel, self.width = way, way.spec, way.panel, vector_width
        self.small, self.larger = divmod(way.pixels, way.tiles)  # the first `larger` tiles have a pixel more
        self.band, self.bands = way.band, way.bands

    def prim_func(self) -> tirx.PrimFunc:
        return layer_function(self.spec, self.panel, self._body, self.way.scratch)

    def _body(self, given: Operands) -> None:
        self.x, self.w, self.y, self.tensors = given.x, given.panel, given.y, given.tensors
        self.a, self.wide = (*given.scratch, None)[:2]
        self._slices(given.first, given.count)

    def _slices(self, first, count) -> None:
        spec, way, per_group = self.spec, self.way, self.panel.blocks_per_group
        with maybe_serial(0, spec.batch) as image:
            self.image = image
            groups = (first // per_group, (first + count - 1) // per_group + 1) if spec.groups > 1 else (0, 1)
            with maybe_serial(*groups) as group, maybe_serial(0, way.stretches) as stretch:
                self.group = group
                self._bind_stretch(stretch)
                low = T.bind(tirx.max(first, group * per_group)) if spec.groups > 1 else first
                high = T.bind(tirx.min(first + count, (group + 1) * per_group)) if spec.groups > 1 else first + count
                with maybe_serial(0, way.count) as index:
                    self.index = index
                    self.start = _bind(self._product(index))
                    self.stop = T.bind(tirx.min(self._product(index + 1), spec.taps)) if way.count > 1 else spec.taps
                    self._flatten()
                    self._multiply(first, low, high - low)

    def _bind_stretch(self, index) -> None:
        """The tiles [top, bottom) of a stretch, and its pixels."""
        each, larger = divmod(self.way.tiles, self.way.stretches)
        self.top = _bind(index * each + _least(index, larger))
        self.bottom = _bind((index + 1) * each + _least(index + 1, larger))
        self.first_pixel = _bind(self._pixel(self.top))
        self.stretch_pixels = _bind(self._pixel(self.bottom) - self.first_pixel)

    def _product(self, index):
        """The first product of a slice."""
        each, larger = divmod(self.way.steps, self.way.count)
        return (index * each + _least(index, larger)) * self.way.step

    def _pixel(self, tile):
        """The first pixel of a tile."""
        return tile * self.small + _least(tile, self.larger)

    # -- flattening --------------------------------------------------------------------------------

    def _flatten(self) -> None:
        """Write the slice's products of every output pixel of the stretch, by rows of the output."""
        spec, way = self.spec, self.way
        # Taps that lie side by side in the image are one run, if all channels are wanted.
        joined = spec.groups == 1 and (spec.dilation[1] == 1 or spec.kernel[1] == 1)
        taps = 1 if joined else spec.kernel[1]
        run = spec.taps // spec.kernel[0] // taps
        end = self.first_pixel + self.stretch_pixels
        top, bottom = self.first_pixel // spec.out_width, -(-end // spec.out_width)
        with loop(bottom - top, 4 * way.flattened_pixels * way.slice) as index:
            row = T.bind(top + index)
            self.row_at = T.bind(row * spec.out_width - self.first_pixel)
            left, right = _bind(tirx.max(0 - self.row_at, 0)), _bind(tirx.min(end - row * spec.out_width, spec.out_width))
            with T.serial(self.start // run, (self.stop + (run - 1)) // run) as line:
                low = T.bind(tirx.max(self.start, line * run))
                high = T.bind(tirx.min(self.stop, (line + 1) * run))
                in_row = T.bind(row * spec.stride[0] - spec.padding[0] + line // taps * spec.dilation[0])
                in_column = T.bind(line % taps * spec.dilation[1] - spec.padding[1])  # of output column 0
                with T.If(tirx.all(in_row >= 0, in_row < spec.height)):
                    with T.Then():
                        source = T.bind(self._source(in_row, in_column) - line * run)
                        offset = T.bind(in_column * spec.in_channels - line * run)
                        self._row_inside(left, right, (low, high), source, offset, joined)
                    with T.Else():
                        self._columns(left, right, lambda column: self._fill(column, low, high, None))

    def _source(self, row, column):
        """Where the group's channels of a pixel of the image begin."""
        spec = self.spec
        return ((self.image * spec.height + row) * spec.width + column) * spec.in_channels + self.group * spec.group_in

    def _row_inside(self, left, right, products: tuple, source, offset, joined: bool) -> None:
        """A run of products of output columns [left, right), from a row of the image.

        Product p of column c lies at `source` + c · stride + p, in the row at `offset` + c · stride + p. Columns that
        see no padding are a loop of their own, in which all copies are equally long.
        """
        spec, (low, high) = self.spec, products
        reach = (spec.kernel[1] - 1) * spec.dilation[1]
        whole = (
            min(-(-spec.padding[1] // spec.stride[1]), spec.out_width),
            (spec.width - 1 - reach + spec.padding[1]) // spec.stride[1] + 1,
        )
        step, ends = spec.stride[1] * spec.in_channels, spec.width * spec.in_channels

        def border(column) -> None:
            at = T.bind(offset + column * step)  # of product 0 in the row
            first, last = (tirx.max(0 - at, low), tirx.min(ends - at, high))
            if not joined:
                # One tap, of one group: inside the row or not.
                inside = tirx.all(at + low >= 0, at + low < ends)
                first, last = low, tirx.if_then_else(inside, high, low)
            begin, end = T.bind(tirx.min(first, high)), T.bind(tirx.max(last, low))
            self._fill(column, low, begin, None)
            self._fill(column, begin, end, source + column * step)
            self._fill(column, end, high, None)

        first, last = whole[0], max(whole)
        if first > 0:
            self._columns(left, tirx.min(right, first), border)
        self._columns(
            tirx.max(left, first), tirx.min(right, last), lambda column: self._fill(column, low, high, source + column * step)
        )
        if last < spec.out_width:
            self._columns(tirx.max(left, last), right, border)

    def _columns(self, left, right, emit: Callable) -> None:
        """`emit(column)` for output columns [left, right), which may be none."""
        with T.serial(tirx.max(right - left, 0)) as index:
            emit(T.bind(left + index))

    def _fill(self, column, low, high, source) -> None:
        """Products [low, high) of an output column: copied, or zero without a source."""
        lanes = self._lanes
        place = T.bind((self.row_at + column) * self.way.row - self.start)  # of product 0, which may lie before
        with T.serial(low // lanes, high // lanes) as i:
            at = i * lanes
            value = zero(lanes) if source is None else self.x[vector(source + at, lanes)]
            T.buffer_store(self.a, value, [vector(place + at, lanes)])

    @property
    def _lanes(self) -> int:
        """Products that are copied together: cache lines, where slices and pixels are made of whole ones."""
        return CACHE_LINE if self.spec.group_in % CACHE_LINE == self.way.step % CACHE_LINE == 0 else 1

    # -- multiplying -------------------------------------------------------------------------------

    def _multiply(self, first, low, count) -> None:
        """Add the product of the slice and the weights of blocks [low, low + count), all of one group."""
        spec, panel = self.spec, self.panel
        flops = 2 * self.way.flattened_pixels * spec.group_out * self.way.slice
        shared = max(0, panel.blocks_per_group * panel.block - panel.group_channels)
        with self._each_task(count * self.bands, flops) as task:
            accumulators = {lanes: Accumulators(self.way.tile.rows, self._pieces(lanes)) for lanes in (0, shared)}
            block = T.bind(low + task % count)
            top = T.bind(self.top + task // count * self.band) if self.bands > 1 else self.top
            self.panel_at = T.bind(self.w.block_at(block - first))
            within = T.bind(block % panel.blocks_per_group)
            if not shared:
                self._tiles(accumulators[0], top, within * panel.block)
                return
            with T.If(within < panel.blocks_per_group - 1):
                with T.Then():
                    self._tiles(accumulators[0], top, within * panel.block)
                with T.Else():
                    self._tiles(accumulators[shared], top, panel.group_channels - panel.block)

    @contextmanager
    def _each_task(self, tasks, flops: int) -> Iterator[tirx.Expr]:
        """A loop over tasks, in which `wide_at` is where the thread that has one may widen weights."""
        if self.wide is None:
            with loop(tasks, flops) as task:
                yield task
            return
        with in_slots(tasks, self.way.slots if flops >= PARALLEL_FLOPS else 1) as (task, slot):
            self.wide_at = slot * self.way.scratch[1][1]
            yield task

    def _pieces(self, shared: int) -> list[tuple[int, int]]:
        """The vectors of a block's lanes after the first `shared`."""
        return [(shared + start, lanes) for start, lanes in pieces(self.panel.block - shared, self.width)]

    def _tiles(self, acc: Accumulators, top, channel) -> None:
        self.out_channel = _bind(self.group * self.spec.group_out + channel)
        stop = T.bind(tirx.min(top + self.band, self.bottom)) if self.bands > 1 else self.bottom
        if self.wide is None:
            self._each_tile(top, stop, lambda pixel, size: self._tile(acc, pixel, size))
            return
        with maybe_serial(0, self.way.parts) as part:
            begin = T.bind(self.start + part * self.way.terms)
            terms = tirx.min(self.way.terms, self.stop - begin)
            self.w.widen(self.panel_at, begin, terms, self.wide, self.wide_at)
            self._each_tile(top, stop, lambda pixel, size: self._part(acc, pixel, size, self._place(pixel), part))

    def _each_tile(self, top, stop, emit: Callable) -> None:
        """`emit(pixel, size)` for tiles [top, stop)."""
        if not self.larger:
            with T.serial(top, stop) as tile:
                emit(tile * self.small, self.small)
            return
        middle = T.bind(tirx.max(top, tirx.min(stop, self.larger)))
        with T.serial(top, middle) as tile:
            emit(tile * (self.small + 1), self.small + 1)
        with T.serial(middle, stop) as tile:
            emit(tile * self.small + self.larger, self.small)

    def _tile(self, acc: Accumulators, pixel, size: int) -> None:
        """Output pixels [pixel, pixel + size) and the channels of a block."""
        place = self._place(pixel)
        if self.way.count > 1:
            self._prefetch(place, size)
        with maybe_serial(0, self.way.parts) as part:
            self._part(acc, pixel, size, place, part)

    def _place(self, pixel):
        return T.bind((self.image * self.way.pixels + pixel) * self.spec.y_stride + (self.spec.y_start + self.out_channel))

    def _part(self, acc: Accumulators, pixel, size: int, place, part) -> None:
        """Multiply a tile with a part of the slice, and add the products to the output."""
        block = self.panel.block
        acc.fill(size, lambda start, lanes: zero(lanes))
        begin = _bind(self.start + part * self.way.terms)
        terms = tirx.min(self.way.terms, self.stop - begin)
        source = T.bind((pixel - self.first_pixel) * self.way.row + part * self.way.terms)
        weights = T.bind(self.w.weights_at(self.panel_at, begin) if self.wide is None else self.wide_at)

        def right(term, start: int, lanes: int) -> tirx.Expr:
            at = weights + term * block + start
            return self.w.weights(at, lanes) if self.wide is None else self.wide[vector(at, lanes)]

        with T.serial(terms) as term:
            acc.accumulate(
                list(range(size)),
                lambda row, start, lanes: spread(self.a[source + row * self.way.row + term], lanes),
                lambda start, lanes: right(term, start, lanes),
            )
        self._add(acc, size, place, part, self.way.parts)

    def _prefetch(self, place, size: int) -> None:
        """Ask for the partial sums that a slice adds to."""
        for row in range(size):
            prefetch(self.y, place + row * self.spec.y_stride, self.panel.block)

    def _add(self, acc: Accumulators, size: int, place, part, parts: int) -> None:
        """Add a part to the output: the first to the bias, the last with the epilogue."""
        last = self.way.count * parts - 1
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
        spec = self.spec
        for row in range(size):
            for start, lanes in acc.pieces:
                index = vector(place + row * spec.y_stride + start, lanes)
                value = self.w.scale(self.panel_at, start, lanes, acc.get(row, start, lanes))
                value = value + (self.w.bias(self.panel_at, start, lanes) if begins else self.y[index])
                if ends:
                    value = ep.evaluate(
                        spec.epilogue,
                        value,
                        tensor=lambda i, index=index: self.tensors[i][index],
                        channel=lambda i, start=start, lanes=lanes: self.w.channel(self.panel_at, i, start, lanes),
                    )
                T.buffer_store(self.y, value, [index])
