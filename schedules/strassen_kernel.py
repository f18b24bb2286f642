"""The code of a fast matrix product; schedules/strassen.py says what it computes, in which order, on which scratch."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import epilogue as ep
from . import lane
from .emit import Accumulators, maybe_serial, prefetch, vector, zero
from .layer_function import Operands, layer_function
from .strassen import Strassen, eligible
from .tile import pieces

# Floats of weights asked for ahead of their use: more than memory's latency takes to read.
_AHEAD = 2048


def kernel(way: Strassen, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, v, copies).

    x is float32[batch, height, width, in_channels], y and the tensors float32[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks of combined weights, the first of which is block `first` of the layer;
    v and copies are scratch of the shapes `way.scratch`.
    """
    assert eligible(way.spec), f"no fast product for {way.spec}"
    return _Emitter(way, vector_width).prim_func()


class _Emitter:
    def __init__(self, way: Strassen, vector_width: int) -> None:
        self.way, self.spec, self.panel = way, way.spec, way.panel
        self.width = vector_width
        self.pieces = pieces(way.tile.channels, vector_width)
        self.small, self.larger = divmod(way.pixels, way.tiles)  # the first `larger` pixel tiles have one pixel more

    def prim_func(self) -> tirx.PrimFunc:
        return layer_function(self.spec, self.panel, self._body, self.way.scratch)

    def _body(self, given: Operands) -> None:
        self.x, self.w, self.y, self.tensors = given.x, given.panel, given.y, given.tensors
        self.v, self.c = given.scratch
        self._bands(given.first, given.count)

    def _bands(self, first, count) -> None:
        way = self.way
        if way.slots == 1:
            with maybe_serial(0, way.bands) as band:
                self._band(band, 0, first, count)
            return
        each = math.ceil(way.bands / way.slots)
        with T.parallel(way.slots) as slot:
            with T.serial(tirx.max(tirx.min(each, way.bands - slot * each), 0)) as band:
                self._band(slot * each + band, slot, first, count)

    def _band(self, band, slot, first, count) -> None:
        way = self.way
        self.v_at = T.bind(slot * math.prod(way.scratch[0][1:])) if way.slots > 1 else 0
        self.c_at = T.bind(slot * math.prod(way.scratch[1][1:])) if way.slots > 1 else 0
        self.first_tile = T.bind(band * way.groups) if way.bands > 1 else 0
        self.acc = Accumulators(way.rows, self.pieces)
        self._tiles(self._operands)
        with T.serial(count) as offset:
            block = first + offset
            start = tirx.min(block * self.panel.block, self.spec.out_channels - self.panel.block)
            self.out_channel = T.bind(start) if self.panel.blocks > 1 else 0
            self.panel_at = T.bind(offset * (self.panel.rows * self.panel.block))
            self._tiles(self._products)

    def _tiles(self, emit) -> None:
        """`emit(place in the band, first pixel, pixels)` for the pixel tiles of a band."""
        way, low = self.way, self.first_tile
        count = tirx.min(way.groups, way.tiles - low) if way.tiles % way.groups else way.groups
        more = tirx.max(tirx.min(self.larger - low, count), 0) if self.larger else 0
        if self.larger:
            with T.serial(more) as i:
                emit(i, T.bind((low + i) * (self.small + 1)), self.small + 1)
        with T.serial(count - more) as i:
            emit(more + i, T.bind((low + more + i) * self.small + self.larger), self.small)

    def _pixel(self, pixel):
        """Where an output pixel's input channels begin."""
        spec = self.spec
        if spec.pointwise:
            return pixel * spec.in_channels
        per_image = spec.out_height * spec.out_width
        row, column = pixel % per_image // spec.out_width * spec.stride[0], pixel % spec.out_width * spec.stride[1]
        return ((pixel // per_image * spec.height + row) * spec.width + column) * spec.in_channels

    def _operands(self, place, pixel, size: int) -> None:
        """The left operands of one pixel tile; a missing last pixel is the one before it once more."""
        way, depth, half = self.way, self.way.depth, (size + 1) // 2
        with T.serial(half) as row:
            upper = T.bind(self._pixel(pixel + row))
            lower = T.bind(self._pixel(pixel + tirx.min(half + row, size - 1)))
            at = T.bind(self.v_at + (place * way.rows + row) * way.v_row)

            def vectors(start, lanes: int, upper=upper, lower=lower, at=at) -> None:
                a11, a12, a21, a22 = (
                    T.bind(self.x[vector(begin + start, lanes)])
                    for begin in (upper, upper + depth, lower, lower + depth)
                )
                s1 = T.bind(a21 + a22)
                s2 = T.bind(s1 - a11)
                for i, value in enumerate((a11, a12, s2, a11 - a21, a22, s1, a12 - s2)):
                    T.buffer_store(self.v, value, [vector(at + i * way.v_operand + start, lanes)])

            whole = depth // self.width
            if whole:
                with T.serial(whole) as i:
                    vectors(i * self.width, self.width)
            for start, lanes in pieces(depth - whole * self.width, self.width):
                vectors(whole * self.width + start, lanes)

    def _products(self, place, pixel, size: int) -> None:
        """A pixel tile of one block of output channels."""
        acc, rows = self.acc, (size + 1) // 2
        v_at = T.bind(self.v_at + place * (self.way.rows * self.way.v_row))
        self._prefetch(pixel, size)

        def product(index: int) -> None:
            self._product(index, v_at, rows)

        acc.fill(rows, lambda start, lanes: zero(lanes))
        product(0)
        self._keep(0, rows)
        product(1)
        self._store(pixel, rows, 0, acc.get)
        acc.assign(rows, self._kept(0))
        product(2)
        self._keep(1, rows)
        product(3)
        self._keep(2, rows)
        product(4)
        self._store(pixel + rows, size - rows, 0, acc.get)
        acc.fill(rows, lambda start, lanes: zero(lanes))
        product(5)
        u2, u3 = self._kept(1), self._kept(2)
        self._store(pixel + rows, size - rows, 1, lambda *at: acc.get(*at) + u3(*at))
        acc.assign(rows, lambda *at: acc.get(*at) + u2(*at))
        product(6)
        self._store(pixel, rows, 1, acc.get)

    def _product(self, index: int, v_at, rows: int) -> None:
        """Add one product to the accumulators."""
        way, channels = self.way, self.way.tile.channels
        left = T.bind(v_at + index * way.v_operand)
        right = T.bind(self.panel_at + self.panel.block + index * way.depth * channels)
        lane.reduce(
            self.acc,
            list(range(rows)),
            way.depth,
            lambda row, k, lanes: self.v[vector(left + row * way.v_row + k, lanes)],
            lambda k, start, lanes: self.w[vector(right + k * channels + start, lanes)],
            way.tile.depth,
            fetch=lambda k: prefetch(self.w, right + k * channels + _AHEAD, channels, level=2),
        )

    def _copy(self, number: int, row: int, start: int, lanes: int):
        """Where a vector of a copy lies."""
        channels = self.way.tile.channels
        return vector(self.c_at + (number * self.way.rows + row) * channels + start, lanes)

    def _keep(self, number: int, rows: int) -> None:
        for row in range(rows):
            for start, lanes in self.pieces:
                T.buffer_store(self.c, self.acc.get(row, start, lanes), [self._copy(number, row, start, lanes)])

    def _kept(self, number: int):
        return lambda row, start, lanes: self.c[self._copy(number, row, start, lanes)]

    def _prefetch(self, pixel, size: int) -> None:
        """Ask for the lines that the epilogue reads."""
        for row in range(size if self.tensors else 0):
            place = T.bind((pixel + row) * self.spec.out_channels + self.out_channel)
            for tensor in self.tensors:
                prefetch(tensor, place, self.panel.block, level=2)

    def _store(self, pixel, rows: int, half: int, value) -> None:
        """Bias, epilogue and store of one quarter: `rows` pixels, one half of the block's channels."""
        spec, block, channels = self.spec, self.panel.block, self.way.tile.channels
        vectors_at = self.panel_at + (1 + self.panel.taps) * block
        for start, lanes in self.pieces:
            lane = half * channels + start
            bias = T.bind(self.w[vector(self.panel_at + lane, lanes)])
            for row in range(rows):
                place = vector((pixel + row) * spec.y_stride + (spec.y_start + self.out_channel) + lane, lanes)
                result = ep.evaluate(
                    spec.epilogue,
                    T.bind(value(row, start, lanes) + bias),
                    tensor=lambda i, place=place: self.tensors[i][place],
                    channel=lambda i, lane=lane, lanes=lanes: self.w[vector(vectors_at + i * block + lane, lanes)],
                )
                T.buffer_store(self.y, result, [place])
