"""Common parts of one level and two levels of a fast matrix product: operands, seven products, the epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import epilogue as ep
from ..tiles import lane
from ..tiles.emit import Accumulators, maybe_serial, prefetch, prefetch_ahead, vector, zero
from ..tiles.layer_function import Operands
from ..tiles.tile import pieces
from .ways import Strassen

# Floats of V asked for ahead of their being written: otherwise each store waits for the second-level cache.
_STORE_AHEAD = 64
Value = Callable[[int, int, int], tirx.Expr]  # of a register tile, at (row, start, lanes)


class LevelEmitter:
    """Within a band: `band`, which the levels do in ways of their own."""

    def __init__(self, way: Strassen, vector_width: int, given: Operands, slot) -> None:
        self.way, self.spec, self.panel, self.width = way, way.spec, way.panel, vector_width
        self.x, self.tensors, self.w, self.y = given.x, given.tensors, given.panel, given.y
        self.first, self.count, self.told = given.first, given.count, given.valid is not None
        self.v, self.c = given.scratch
        self.pieces = pieces(way.tile.channels, vector_width)
        self.copy_size = way.rows * way.tile.channels
        self.v_at = T.bind(slot * math.prod(way.scratch[0][1:])) if way.slots > 1 else 0
        self.c_at = T.bind(slot * math.prod(way.scratch[1][1:])) if way.slots > 1 else 0
        self.acc = Accumulators(way.rows, self.pieces)

    def band(self, first_tile) -> None:
        """The pixel tiles from `first_tile` on, for all blocks of the step."""
        raise NotImplementedError

    def tile_sizes(self, low, count, emit: Callable) -> None:
        """`emit(place, first pixel, pixels)` for `count` pixel tiles from tile `low` on; the last may be an incomplete one."""
        way = self.way
        parts, (small, larger) = way.parts, divmod(way.units, way.tiles)
        # The first `larger` tiles have a unit more.
        missing = way.units * parts - way.pixels
        whole = self.number(tirx.min(count, way.tiles - 1 - low)) if missing and way.tiles > 1 else 0 if missing else count
        more = self.number(tirx.max(tirx.min(larger - low, whole), 0)) if larger and not _is_zero(whole) else 0
        if larger and not _is_zero(whole):
            with maybe_serial(0, more) as i:
                emit(i, self.number((low + i) * ((small + 1) * parts)), (small + 1) * parts)
        if not _is_zero(whole):
            with maybe_serial(0, whole - more) as i:
                emit(more + i, self.number(((low + more + i) * small + larger) * parts), small * parts)
        if missing:
            start = ((way.tiles - 1) * small + larger) * parts
            with maybe_serial(0, count - whole) as i:
                emit(whole + i, start, way.pixels - start)

    def number(self, value) -> tirx.Expr:
        """A bound number. In kernels that are told how many pixels are valid it lies in memory, on its way to a register: TVM's
        analyzers would write its long value out wherever it counts."""
        if not self.told:
            return T.bind(value)
        kept = T.alloc_buffer((1,), "int32", scope="global")
        T.buffer_store(kept, value, [0])
        return T.bind(kept[0])

    def block(self, offset) -> None:
        """Turn to a block of the step."""
        start = tirx.min((self.first + offset) * self.panel.block, self.spec.out_channels - self.panel.block)
        self.out_channel = self.number(start) if self.panel.blocks > 1 else 0
        self.panel_at = T.bind(self.w.block_at(offset))

    def pixels(self, pixel, size: int, row) -> list:
        """Where the input of a row of every part begins; missing last pixels are the last one once more."""
        part = math.ceil(size / self.way.parts)
        return [
            T.bind(self._pixel(pixel + (row if i == 0 else tirx.min(i * part + row, size - 1))))
            for i in range(self.way.parts)
        ]

    def _pixel(self, pixel):
        """Where an output pixel's input channels begin."""
        spec = self.spec
        if spec.pointwise:
            return pixel * spec.in_channels
        per_image = spec.out_height * spec.out_width
        row, column = pixel % per_image // spec.out_width * spec.stride[0], pixel % spec.out_width * spec.stride[1]
        return ((pixel // per_image * spec.height + row) * spec.width + column) * spec.in_channels

    def combine(self, begins: list, product: int, levels: int, at) -> None:
        """A row of V at `at`: the operands of the last level, on two levels those of one outer product."""
        way = self.way

        def vectors(start, lanes: int) -> None:
            def load(rows: int, columns: int) -> tirx.Expr:
                return T.bind(self.x[vector(begins[rows] + columns * way.depth + start, lanes)])

            if levels == 1:
                inner = [[load(i, j) for j in range(2)] for i in range(2)]
            else:
                inner = [
                    [_left(product, lambda r, c, i=i, j=j: load(2 * r + i, 2 * c + j)) for j in range(2)]
                    for i in range(2)
                ]
            for i, value in enumerate(_left_operands(inner)):
                place = at + i * way.v_operand + start
                prefetch(self.v, place + _STORE_AHEAD, lanes, write=True)
                T.buffer_store(self.v, value, [vector(place, lanes)])

        whole = way.depth // self.width
        if whole:
            with T.serial(whole) as i:
                vectors(i * self.width, self.width)
        for start, lanes in pieces(way.depth - whole * self.width, self.width):
            vectors(whole * self.width + start, lanes)

    def seven(self, v_at, panel_at, rows: int, store, before=lambda index: None) -> None:
        """One level: `store(row half, channel half, value)` of each quarter of the result once complete.

        `before(product)` emits code before a product.
        """
        acc = self.acc

        def product(index: int) -> None:
            before(index)
            self._product(v_at + index * self.way.v_operand, panel_at, index, rows)

        acc.fill(rows, lambda start, lanes: zero(lanes))
        product(0)
        self._keep(0, rows)
        product(1)
        store(0, 0, acc.get)
        acc.assign(rows, self._kept(0))
        product(2)
        self._keep(1, rows)
        product(3)
        self._keep(2, rows)
        product(4)
        store(1, 0, acc.get)
        acc.fill(rows, lambda start, lanes: zero(lanes))
        product(5)
        u2, u3 = self._kept(1), self._kept(2)
        store(1, 1, lambda *at: acc.get(*at) + u3(*at))
        acc.assign(rows, lambda *at: acc.get(*at) + u2(*at))
        product(6)
        store(0, 1, acc.get)

    def _product(self, v_at, panel_at, index: int, rows: int) -> None:
        """Add one product to the accumulators."""
        way = self.way
        left = T.bind(v_at)
        right = T.bind(panel_at + index * way.depth * way.tile.channels)
        self.reduce(rows, right, lambda row, k, lanes: self.v[vector(left + row * way.v_row + k, lanes)])

    def reduce(self, rows: int, right, left: Callable[..., tirx.Expr]) -> None:
        """Add the product of so many rows `left(row, k, lanes)` and the weights at `right` to the accumulators."""
        channels = self.way.tile.channels
        lane.reduce(
            self.acc,
            list(range(rows)),
            self.way.depth,
            left,
            lambda k, start, lanes: self.w.weights(right + k * channels + start, lanes),
            self.way.tile.depth,
            fetch=lambda k: prefetch_ahead(self.w.buffer, right + k * channels, channels),
        )

    def _copy(self, at, row: int, start: int, lanes: int):
        """Where a vector of a register tile lies that begins at `at`."""
        return vector(at + row * self.way.tile.channels + start, lanes)

    def prefetch_kept(self, at, rows: int) -> None:
        """Ask for the lines of a register tile that is about to be stored."""
        prefetch(self.c, at, rows * self.way.tile.channels, write=True)

    def keep_at(self, at, rows: int, value: Value) -> None:
        """Store a register tile."""
        for row in range(rows):
            for start, lanes in self.pieces:
                T.buffer_store(self.c, value(row, start, lanes), [self._copy(at, row, start, lanes)])

    def _keep(self, number: int, rows: int) -> None:
        self.keep_at(self.c_at + number * self.copy_size, rows, self.acc.get)

    def _kept(self, number: int) -> Value:
        at = self.c_at + number * self.copy_size
        return lambda row, start, lanes: self.c[self._copy(at, row, start, lanes)]

    def _place(self, pixel, channel):
        """Where a channel of the block of an output pixel lies, in the output and in the epilogue's tensors alike."""
        return pixel * self.spec.y_stride + (self.spec.y_start + self.out_channel) + channel

    def prefetch(self, pixel, rows: int, channel: int, channels: int) -> None:
        """Ask for the lines of `rows` pixels: operands of the epilogue, and results."""
        for row in range(rows):
            place = T.bind(self._place(pixel + row, channel))
            for tensor in self.tensors:
                prefetch(tensor, place, channels, level=2)
            prefetch(self.y, place, channels, write=True, level=2)

    def finish(self, pixel, channel: int, lanes: int, value) -> None:
        """Bias, epilogue and store of a vector of a pixel, from channel `channel` of the block on."""
        spec = self.spec
        place = vector(self._place(pixel, channel), lanes)
        result = ep.evaluate(
            spec.epilogue,
            T.bind(value + self.w.bias(self.panel_at, channel, lanes)),
            tensor=lambda i: self.tensors[i][place],
            channel=lambda i: self.w.channel(self.panel_at, i, channel, lanes),
        )
        T.buffer_store(self.y, result, [place])


def _is_zero(value) -> bool:
    return isinstance(value, int) and value == 0


def _left(product: int, part: Callable[[int, int], tirx.Expr]) -> tirx.Expr:
    """The left operand of one product; `part(row half, channel half)` of the input."""
    if product in (0, 1, 4):
        return part(*((0, 0), (0, 1), None, None, (1, 1))[product])
    if product == 3:
        return T.bind(part(0, 0) - part(1, 0))
    s1 = T.bind(part(1, 0) + part(1, 1))
    if product == 5:
        return s1
    s2 = T.bind(s1 - part(0, 0))
    return s2 if product == 2 else T.bind(part(0, 1) - s2)


def _left_operands(parts: list[list]) -> list:
    """All left operands, in the order of their use, from parts[row half][channel half]."""
    (a11, a12), (a21, a22) = parts
    s1 = T.bind(a21 + a22)
    s2 = T.bind(s1 - a11)
    return [a11, a12, s2, T.bind(a11 - a21), a22, s1, T.bind(a12 - s2)]
