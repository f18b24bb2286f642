"""Common parts of one level and two levels of a fast matrix product: operands, seven products, the epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import epilogue as ep
from ..tiles import lane
from ..tiles.asking import ask, in_order
from ..tiles.emit import Accumulators, maybe_serial, prefetch, vector, zero
from ..tiles.layer_function import Operands
from ..tiles.tile import pieces
from .ways import COPIES, PRODUCTS, Strassen

# Of each of the seven products in their order: the sums where its accumulators begin anew, by number, and where they are kept.
P1, _U2, _U3, ZERO = range(COPIES + 1)
_BEGINS = (ZERO, None, P1, None, None, ZERO, P1)
_KEPT = (P1, None, _U2, _U3, None, None, None)
# The quarter of the result, 2 × row half + channel half, that is complete after it, and the one whose lines are asked for before,
# two products ahead.
COMPLETE = (None, 0, None, None, 2, 3, 1)
ASKED = (0, None, 2, 3, None, 1, None)
_P5 = 5  # the number of the product S1 T1, part of two quarters
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
        self.asked = way.asked
        self.tile_number: tirx.Expr | int = 0  # in a band

    def band(self, first_tile) -> None:
        """The pixel tiles from `first_tile` on, for all blocks of the step."""
        raise NotImplementedError

    def tiles(self, low, count, emit: Callable) -> None:
        """`emit(place, first pixel, pixels, rows)` for `count` pixel tiles from tile `low` on; the last may be an incomplete one.

        `rows` are the pixels of a part, in the last one maybe fewer.
        """
        way = self.way
        small, larger = divmod(way.units, way.tiles)
        with maybe_serial(0, count) as place:
            tile = T.bind(low + place)
            # The first `larger` tiles have a unit more.
            pixel = self.number((tile * small + (tirx.min(tile, larger) if larger else 0)) * way.parts)
            rows = self.number(small + tirx.Select(tile < larger, 1, 0)) if larger else small
            size = rows * way.parts
            emit(place, pixel, self.number(tirx.min(size, way.pixels - pixel)) if self.is_incomplete else size, rows)

    def of_rows(self, rows, emit: Callable) -> None:
        """`emit(rows)` with a number, one of the two that `tiles` gives."""
        if isinstance(rows, int):
            emit(rows)
            return
        with T.If(rows == self.way.rows):
            with T.Then():
                emit(self.way.rows)
            with T.Else():
                emit(self.way.rows - 1)

    @property
    def is_incomplete(self) -> bool:
        """Whether the last tile lacks pixels."""
        return self.way.units * self.way.parts > self.way.pixels

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
        if self.asked:
            self.next_at = T.bind(self.w.block_at(tirx.min(offset + 1, self.count - 1)) + self.panel.block)
        start = tirx.min((self.first + offset) * self.panel.block, self.spec.out_channels - self.panel.block)
        self.out_channel = self.number(start) if self.panel.blocks > 1 else 0
        self.panel_at = T.bind(self.w.block_at(offset))

    def pixels(self, pixel, size, rows, row) -> list:
        """Where the input of a row of every part begins; missing last pixels are the last one once more."""
        def place(part: int):
            return tirx.min(part * rows + row, size - 1) if part and self.is_incomplete else part * rows + row

        return [T.bind(self._pixel(pixel + place(part))) for part in range(self.way.parts)]

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

    def seven(self, v_at, panel_at, rows: int, complete: Callable, before: Callable) -> None:
        """One level: seven products, each added to the sums where it begins.

        `before(product)` emits code before a product, `complete(product)` code that takes a complete quarter of the result out of
        the accumulators.
        """
        self.acc = Accumulators(rows, self.pieces)

        def emit(product) -> None:
            before(product)
            self.begin(rows, product, _BEGINS)
            left = T.bind(v_at + product * self.way.v_operand)
            right = T.bind(panel_at + product * (self.way.depth * self.way.tile.channels))
            done = (self.tile_number * PRODUCTS + product) * self.way.depth
            next_ones = ask(self.w.buffer, self.next_at, done, self.asked) if self.asked else None
            self.reduce(rows, right, lambda row, k, lanes: self.v[vector(left + row * self.way.v_row + k, lanes)], next_ones)
            when(has(_KEPT, product), lambda: self.keep_sums(entry(_KEPT, product), rows))
            when(product == _P5, lambda: self._add_kept(rows))
            when(has(COMPLETE, product), lambda: complete(product))

        if self.way.levels > 1:  # in a loop the same products take up to a tenth longer here
            for product in range(PRODUCTS):
                emit(product)
        else:  # LLVM compiles a loop in a third of the time
            with T.serial(PRODUCTS) as product:
                emit(product)

    def _add_kept(self, rows: int) -> None:
        """The sum that is complete after the product S1 T1, and the one where the next product begins."""
        acc, u2, u3 = self.acc, self._kept(_U2), self._kept(_U3)
        self._keep(P1, rows, lambda *at: acc.get(*at) + u2(*at))
        acc.assign(rows, lambda *at: acc.get(*at) + u3(*at))

    def begin(self, rows: int, product, begins: Sequence[int | None]) -> None:
        """Set the accumulators, if a product begins anew: to zero, or to sums that were kept."""
        number = entry(begins, product)
        when(has(begins, product) & (number != ZERO), lambda: self.acc.assign(rows, self._kept(number)))
        when(number == ZERO, lambda: self.acc.fill(rows, lambda start, lanes: zero(lanes)))

    def reduce(self, rows: int, right, left: Callable[..., tirx.Expr], next_ones: Callable | None = None) -> None:
        """Add the product of so many rows `left(row, k, lanes)` and the weights at `right` to the accumulators."""
        channels = self.way.tile.channels
        lane.reduce(
            self.acc,
            list(range(rows)),
            self.way.depth,
            left,
            lambda k, start, lanes: self.w.weights(right + k * channels + start, lanes),
            self.way.tile.depth,
            fetch=in_order(self.w.buffer, right, channels, next_ones),
        )

    def _copy(self, at, row: int, start: int, lanes: int):
        """Where a vector of a register tile lies that begins at `at`."""
        return vector(at + row * self.way.tile.channels + start, lanes)

    def keep_at(self, at, rows: int, value: Value) -> None:
        """Store a register tile."""
        for row in range(rows):
            for start, lanes in self.pieces:
                T.buffer_store(self.c, value(row, start, lanes), [self._copy(at, row, start, lanes)])

    def keep_sums(self, number, rows: int) -> None:
        """Keep the accumulators."""
        self._keep(number, rows, self.acc.get)

    def _keep(self, number, rows: int, value: Value) -> None:
        self.keep_at(T.bind(self.c_at + number * self.copy_size), rows, value)

    def _kept(self, number) -> Value:
        at = T.bind(self.c_at + number * self.copy_size)
        return lambda row, start, lanes: self.c[self._copy(at, row, start, lanes)]

    def prefetch_kept(self, at, rows) -> None:
        """Ask for the lines of so many rows of a register tile that is about to be stored."""
        channels = self.way.tile.channels
        with T.serial(rows) as row:
            prefetch(self.c, at + row * channels, channels, write=True)

    def _place(self, pixel, channel):
        """Where a channel of the block of an output pixel lies, in the output and in the epilogue's tensors alike."""
        return pixel * self.spec.y_stride + (self.spec.y_start + self.out_channel) + channel

    def prefetch(self, pixel, rows, channel, channels: int) -> None:
        """Ask for the lines of `rows` pixels: operands of the epilogue, and results."""
        with T.serial(rows) as row:
            place = T.bind(self._place(pixel + row, channel))
            for tensor in self.tensors:
                prefetch(tensor, place, channels, level=2)
            prefetch(self.y, place, channels, write=True, level=2)

    def finish(self, pixel, channel, lanes: int, value) -> None:
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


def entry(table: Sequence[int | None], index) -> tirx.Expr | int:
    """The number in a table at an index, of numbers below 16; 0 where there is none."""
    numbers = [number or 0 for number in table]
    if isinstance(index, int):
        return numbers[index]
    packed = sum(number << 4 * place for place, number in enumerate(numbers))
    return T.bind(tirx.min((tirx.const(packed, "int32") >> (index * 4)) % 16, max(numbers)))  # an analyzer sees the range


def has(table: Sequence[int | None], index) -> tirx.Expr | bool:
    """Whether a table has a number at an index."""
    there = [int(number is not None) for number in table]
    return bool(there[index]) if isinstance(index, int) else entry(there, index) > 0


def when(condition: tirx.Expr | bool, emit: Callable[[], None]) -> None:
    """`emit()` for this condition only."""
    if not isinstance(condition, bool):
        with T.If(condition), T.Then():
            emit()
    elif condition:
        emit()


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
