"""The code of a fast matrix product on one level and on two; schedules/strassen/ways.py has the algebra."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import Accumulators, vector
from .level import ASKED, COMPLETE, P1, ZERO, LevelEmitter, entry, has, when
from .ways import COPIES, FEW_PIXELS, PRODUCTS

# Of the four products of a tile without any savings: which of the seven have their weights, the half of the input's channels that
# they multiply, where they begin, and the half of the result's channels that is complete after them.
_PLAIN, _PLAIN_HALF, _PLAIN_BEGINS, _PLAIN_COMPLETE = (0, 1, 5, 6), (0, 1, 0, 1), (ZERO, None, P1, None), (None, 0, None, 1)


class OneLevel(LevelEmitter):
    """A band is several pixel tiles, whose operands are made once for all blocks."""

    def band(self, first_tile) -> None:
        way = self.way
        tiles = T.bind(tirx.min(way.groups, way.tiles - first_tile)) if way.tiles % way.groups else way.groups
        self.tiles(first_tile, tiles, self._operands)
        with T.serial(self.count) as offset:
            self.block(offset)
            self.tiles(first_tile, tiles, self._products)

    def valid_band(self, first_tile, tiles, start, left) -> None:
        """So many tiles, and `left` pixels from pixel `start` on by eight products."""
        self.tiles(first_tile, tiles, self._operands)
        large = self.way.rows
        few = min(FEW_PIXELS, large)
        with T.serial(self.count) as offset:
            self.block(offset)
            self.tiles(first_tile, tiles, self._products)
            tall = T.bind(left // large)
            with T.serial(tall) as i:
                self._plain(start + i * large, large)
            with T.serial((left - tall * large + (few - 1)) // few) as i:
                self._plain(start + tall * large + i * few, few)

    def _plain(self, pixel, size: int) -> None:
        """A tile of pixels without any savings: with products of the same weights, [C1 C2] = A1 [B11 B11 + T1] + A2 [B21 B22]."""
        channels, depth = self.way.tile.channels, self.way.depth
        pixel = self.number(tirx.min(pixel, self.way.pixels - size))
        begins = [T.bind(self._pixel(pixel + row)) for row in range(size)]
        self.acc = Accumulators(size, self.pieces)
        self.prefetch(pixel, size, 0, 2 * channels)
        with T.serial(len(_PLAIN)) as turn:
            self.begin(size, turn, _PLAIN_BEGINS)
            left = T.bind(entry(_PLAIN_HALF, turn) * depth)
            right = T.bind(self.panel_at + self.panel.block + entry(_PLAIN, turn) * (depth * channels))
            self.reduce(size, right, lambda row, k, lanes: self.x[vector(begins[row] + left + k, lanes)])
            when(turn == 0, lambda: self.keep_sums(P1, size))
            complete = entry(_PLAIN_COMPLETE, turn)
            when(has(_PLAIN_COMPLETE, turn), lambda: self._finish(pixel, range(size), T.bind(complete * channels)))

    def _finish(self, pixel, rows: range, channel) -> None:
        """The output of some rows of the accumulators."""
        for row in rows:
            for start, lanes in self.pieces:
                self.finish(pixel + row, channel + start, lanes, self.acc.get(row, start, lanes))

    def _operands(self, place, pixel, size, rows) -> None:
        """The left operands of one pixel tile."""
        with T.serial(rows) as row:
            at = T.bind(self.v_at + (place * self.way.rows + row) * self.way.v_row)
            self.combine(self.pixels(pixel, size, rows, row), 0, 1, at)

    def _products(self, place, pixel, size, rows) -> None:
        """A pixel tile of one block of output channels."""
        v_at, self.tile_number = T.bind(self.v_at + place * (self.way.rows * self.way.v_row)), place
        self.of_rows(rows, lambda rows: self._seven(v_at, pixel, size, rows))

    def _seven(self, v_at, pixel, size, rows: int) -> None:
        channels = self.way.tile.channels

        def quarter(table: tuple, product) -> tuple:
            """Where a quarter begins: its half of the rows, its first pixel, and its first channel."""
            number = entry(table, product)
            half = T.bind(number // 2)
            return half, T.bind(pixel + half * rows), T.bind(number % 2 * channels)

        def before(product) -> None:
            _, first, channel = quarter(ASKED, product)
            when(has(ASKED, product), lambda: self.prefetch(first, rows, channel, channels))

        def complete(product) -> None:
            half, first, channel = quarter(COMPLETE, product)
            certain = rows - self.is_incomplete
            self._finish(first, range(certain), channel)
            if self.is_incomplete:
                when(certain < size - half * rows, lambda: self._finish(first, range(certain, rows), channel))

        self.seven(v_at, self.panel_at + self.panel.block, rows, complete, before)


class TwoLevels(LevelEmitter):
    """A band is one pixel tile; operands are made for one outer product and a few blocks at a time."""

    def band(self, first_tile) -> None:
        self.tiles(first_tile, 1, lambda place, pixel, size, rows: self._tile(pixel, size, rows))

    def _tile(self, pixel, size, rows) -> None:
        chunk, count = self.way.chunk, self.count
        with T.serial((count + (chunk - 1)) // chunk) as number:
            low = T.bind(number * chunk)
            blocks = T.bind(tirx.min(chunk, count - low))
            with T.serial(PRODUCTS) as outer:
                self._operands(pixel, size, rows, outer)
                with T.serial(blocks) as inside:
                    self.block(low + inside)
                    self.of_rows(rows, lambda rows: self._outer_product(pixel, size, rows, outer, inside))
            with T.serial(blocks) as inside:
                self.block(low + inside)
                self._sums(pixel, size, rows, inside)

    def _operands(self, pixel, size, rows, outer) -> None:
        """The inner left operands of one outer product."""

        def emit(product: int) -> None:
            with T.serial(rows) as row:
                at = T.bind(self.v_at + row * self.way.v_row)
                self.combine(self.pixels(pixel, size, rows, row), product, 2, at)

        def dispatch(product: int) -> None:
            if product == PRODUCTS - 1:
                emit(product)
                return
            with T.If(outer == product):
                with T.Then():
                    emit(product)
                with T.Else():
                    dispatch(product + 1)

        dispatch(0)

    def _kept_at(self, inside, outer, inner: int):
        """Where a quarter of an outer product of a block begins."""
        return self.c_at + (COPIES + (inside * PRODUCTS + outer) * 4 + inner) * self.copy_size

    def _outer_product(self, pixel, size, rows: int, outer, inside) -> None:
        way = self.way
        asked = math.ceil(way.parts * rows / PRODUCTS)
        kept = T.bind(self._kept_at(inside, outer, 0))

        def before(product) -> None:
            """The sums follow the last outer product: their operands and results are asked for during that product."""
            quarter = kept + entry(COMPLETE, product) * self.copy_size
            when(has(COMPLETE, product), lambda: self.prefetch_kept(quarter, rows))
            low = T.bind(product * asked)
            some = tirx.max(tirx.min(asked, size - low), 0)
            self.prefetch(pixel + low, tirx.if_then_else(outer == PRODUCTS - 1, some, 0), 0, self.panel.block)

        def complete(product) -> None:
            self.keep_at(T.bind(kept + entry(COMPLETE, product) * self.copy_size), rows, self.acc.get)

        right = T.bind(self.panel_at + self.panel.block + outer * (PRODUCTS * way.depth * way.tile.channels))
        self.seven(self.v_at, right, rows, complete, before)

    def _sums(self, pixel, size, rows, inside) -> None:
        """The output of a block from its outer products."""
        for inner in range(4):
            half = inner // 2

            def last(row_half: int, half=half):
                """Where rows of that half of the pixels end; of the two quarters that hold these, the later may have fewer."""
                if not self.is_incomplete:
                    return rows
                return T.bind(tirx.max(tirx.min(rows, size - (2 * row_half + half) * rows), 0))

            both = last(1)
            with T.serial(both) as row:
                self._sum(pixel, rows, inner, row, inside, (0, 1))
            if self.is_incomplete:
                with T.serial(both, last(0)) as row:
                    self._sum(pixel, rows, inner, row, inside, (0,))

    def _sum(self, pixel, part, inner, row, inside, row_halves: tuple[int, ...]) -> None:
        """One row of an inner quarter, in the outer quarters of those halves of the rows."""
        size, half, channel_half = self.way.tile.channels, inner // 2, inner % 2
        for start, lanes in self.pieces:
            p = [
                T.bind(self.c[vector(self._kept_at(inside, outer, inner) + row * size + start, lanes)])
                for outer in range(PRODUCTS)
            ]
            u2 = T.bind(p[0] + p[2])
            u3 = T.bind(u2 + p[3])
            sums = {(0, 0): p[0] + p[1], (0, 1): u2 + p[5] + p[6], (1, 0): u3 + p[4], (1, 1): u3 + p[5]}
            for row_half in row_halves:
                for outer_half in range(2):
                    place = pixel + (2 * row_half + half) * part + row
                    channel = (2 * outer_half + channel_half) * size + start
                    self.finish(place, channel, lanes, sums[row_half, outer_half])
