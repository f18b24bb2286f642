"""The code of a fast matrix product on one level and on two; schedules/strassen/ways.py has the algebra."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import maybe_serial, vector, zero
from .level import LevelEmitter
from .ways import COPIES, FEW_PIXELS, PRODUCTS

# The quarter of a result that is complete after a product.
_KEPT_AFTER = {1: 0, 4: 2, 5: 3, 6: 1}


class OneLevel(LevelEmitter):
    """A band is several pixel tiles, whose operands are made once for all blocks."""

    def band(self, first_tile) -> None:
        way = self.way
        tiles = T.bind(tirx.min(way.groups, way.tiles - first_tile)) if way.tiles % way.groups else way.groups
        self.tile_sizes(first_tile, tiles, self._operands)
        with T.serial(self.count) as offset:
            self.block(offset)
            self.tile_sizes(first_tile, tiles, self._products)

    def valid_band(self, first_tile, tiles, start, left) -> None:
        """So many tiles, and `left` pixels from pixel `start` on by eight products."""
        self.tile_sizes(first_tile, tiles, self._operands)
        large = self.way.rows
        few = min(FEW_PIXELS, large)
        with T.serial(self.count) as offset:
            self.block(offset)
            self.tile_sizes(first_tile, tiles, self._products)
            tall = T.bind(left // large)
            with T.serial(tall) as i:
                self._plain(start + i * large, large)
            with T.serial((left - tall * large + (few - 1)) // few) as i:
                self._plain(start + tall * large + i * few, few)

    def _plain(self, pixel, size: int) -> None:
        """A tile of pixels without any savings: with products of the same weights, [C1 C2] = A1 [B11 B11 + T1] + A2 [B21 B22]."""
        channels = self.way.tile.channels
        pixel = self.number(tirx.min(pixel, self.way.pixels - size))
        begins = [T.bind(self._pixel(pixel + row)) for row in range(size)]

        def add(half: int, product: int) -> None:
            right = T.bind(self.panel_at + self.panel.block + product * self.way.depth * channels)
            self.reduce(size, right, lambda row, k, lanes: self.x[vector(begins[row] + half * self.way.depth + k, lanes)])

        def store(half: int) -> None:
            for row in range(size):
                for start, lanes in self.pieces:
                    self.finish(pixel + row, half * channels + start, lanes, self.acc.get(row, start, lanes))

        self.acc.fill(size, lambda start, lanes: zero(lanes))
        add(0, 0)
        self._keep(0, size)
        self.prefetch(pixel, size, 0, 2 * channels)
        add(1, 1)
        store(0)
        self.acc.assign(size, self._kept(0))
        add(0, 5)
        add(1, 6)
        store(1)

    def _operands(self, place, pixel, size: int) -> None:
        """The left operands of one pixel tile."""
        with T.serial(math.ceil(size / 2)) as row:
            at = T.bind(self.v_at + (place * self.way.rows + row) * self.way.v_row)
            self.combine(self.pixels(pixel, size, row), 0, 1, at)

    def _products(self, place, pixel, size: int) -> None:
        """A pixel tile of one block of output channels."""
        way = self.way
        half = math.ceil(size / 2)
        rows = (half, size - half)
        # Each quarter's lines are asked for two products before use, and not all at a time.
        asked = {0: (0, 0), 2: (1, 0), 3: (1, 1), 5: (0, 1)}

        def before(index: int) -> None:
            if index in asked:
                row_half, channel_half = asked[index]
                self.prefetch(pixel + row_half * half, rows[row_half], channel_half * way.tile.channels, way.tile.channels)

        def store(row_half: int, channel_half: int, value) -> None:
            for row in range(rows[row_half]):
                for start, lanes in self.pieces:
                    channel = channel_half * way.tile.channels + start
                    self.finish(pixel + row_half * half + row, channel, lanes, value(row, start, lanes))

        v_at = T.bind(self.v_at + place * (way.rows * way.v_row))
        self.seven(v_at, self.panel_at + self.panel.block, half, store, before)


class TwoLevels(LevelEmitter):
    """A band is one pixel tile; operands are made for one outer product and a few blocks at a time."""

    def band(self, first_tile) -> None:
        self.tile_sizes(first_tile, 1, lambda place, pixel, size: self._tile(pixel, size))

    def _tile(self, pixel, size: int) -> None:
        chunk, count = self.way.chunk, self.count
        with T.serial((count + (chunk - 1)) // chunk) as number:
            low = T.bind(number * chunk)
            blocks = T.bind(tirx.min(chunk, count - low))
            with T.serial(PRODUCTS) as outer:
                self._operands(pixel, size, outer)
                with T.serial(blocks) as inside:
                    self.block(low + inside)
                    self._outer_product(pixel, size, outer, inside)
            with T.serial(blocks) as inside:
                self.block(low + inside)
                self._sums(pixel, size, inside)

    def _operands(self, pixel, size: int, outer) -> None:
        """The inner left operands of one outer product."""

        def emit(product: int) -> None:
            with T.serial(math.ceil(size / 4)) as row:
                at = T.bind(self.v_at + row * self.way.v_row)
                self.combine(self.pixels(pixel, size, row), product, 2, at)

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

    def _outer_product(self, pixel, size: int, outer, inside) -> None:
        way, part = self.way, math.ceil(size / 4)
        asked = math.ceil(size / PRODUCTS)
        kept = T.bind(self._kept_at(inside, outer, 0))

        def before(index: int) -> None:
            """The sums follow the last outer product: their operands and results are asked for during that product."""
            low, high = index * asked, min((index + 1) * asked, size)
            if index in _KEPT_AFTER:
                self.prefetch_kept(kept + _KEPT_AFTER[index] * self.copy_size, part)
            if low < high:
                with T.serial(tirx.if_then_else(outer == PRODUCTS - 1, high - low, 0)) as row:
                    self.prefetch(pixel + low + row, 1, 0, self.panel.block)

        right = T.bind(self.panel_at + self.panel.block + outer * (PRODUCTS * way.depth * way.tile.channels))
        self.seven(
            self.v_at,
            right,
            part,
            lambda row_half, half, value: self.keep_at(kept + (2 * row_half + half) * self.copy_size, part, value),
            before,
        )

    def _sums(self, pixel, size: int, inside) -> None:
        """The output of a block from its outer products."""
        part = math.ceil(size / 4)
        for inner in range(4):
            half = inner // 2
            # Of the two quarters of the pixels that hold these rows, the later one may have fewer.
            upper, lower = (max(0, min(part, size - i * part)) for i in (half, 2 + half))
            for low, high, row_halves in ((0, lower, (0, 1)), (lower, upper, (0,))):
                if low < high:
                    with maybe_serial(low, high) as row:
                        self._sum(pixel, part, inner, row, inside, row_halves)

    def _sum(self, pixel, part: int, inner: int, row, inside, row_halves: tuple[int, ...]) -> None:
        """One row of an inner quarter, in the outer quarters of those halves of the rows."""
        size, (half, channel_half) = self.way.tile.channels, divmod(inner, 2)
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
