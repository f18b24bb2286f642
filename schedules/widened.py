"""The direct convolution with narrow weights that are widened once for many register tiles, into scratch.

Targets: schedules/tiles/widening.py. The loops are those of the direct convolution, but

1. A slot per thread has room for some of a block's weights in float32, few enough for the first-level cache, and takes a
   share of the tasks.
2. If all weights of a block fit, they are widened before its tiles are computed.
3. If not, some channels of a kernel row are widened at a time, for a group of tiles. Their products are
   added to sums of the group's pixels in scratch, and the epilogue follows the last products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .conv import UNROLL_CHANNELS, DirectEmitter, as_row
from .tiles.blocks import blocks_of
from .tiles.emit import PARALLEL_FLOPS, in_slots, vector, zero
from .tiles.layer_function import Operands
from .tiles.spec import ConvSpec
from .tiles.taps import Taps
from .tiles.tile import Tile
from .tiles.widening import WIDENED_NBYTES, widens

# Where not all weights of a block are widened at once: tiles that some are widened for.
TILES_OF_A_GROUP = 10


@dataclass(frozen=True)
class Widened:
    """How a layer is computed with a register tile: how many weights are widened at a time, and for how many tiles."""

    spec: ConvSpec
    tile: Tile
    threads: int = 1

    @property
    def whole(self) -> bool:
        """Whether all weights of a block are widened at once."""
        return 4 * self.spec.taps * self.tile.channels <= WIDENED_NBYTES

    @property
    def channels(self) -> int:
        """Input channels that are widened at a time, of all columns of a kernel row, unless the whole block is widened."""
        form, columns = blocks_of(self.spec.weights), self.spec.kernel[1]
        depth = math.lcm(self.tile.depth, form.size) if form else self.tile.depth
        most = max(1, WIDENED_NBYTES // (4 * self.tile.channels * columns * depth)) * depth
        parts = math.ceil(self.spec.group_in / most)
        return math.ceil(self.spec.group_in / (parts * depth)) * depth

    @property
    def terms(self) -> int:
        """Weights of an output channel that there is room for."""
        return self.spec.taps if self.whole else self.spec.kernel[1] * self.channels

    @property
    def slots(self) -> int:
        return self.threads if self.spec.flops >= PARALLEL_FLOPS else 1

    @property
    def group(self) -> int:
        """Units of output that weights are widened for at most: rows, or tiles of the only row."""
        tiles = 1 if self.spec.pointwise else math.ceil(self.spec.out_width / self.tile.rows)
        return math.ceil(TILES_OF_A_GROUP / tiles)

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the widened weights and, unless these are a whole block's, of a group's sums, float32."""
        widened = (self.slots, self.terms * self.tile.channels)
        if self.whole:
            return (widened,)
        pixels = self.group * (self.tile.rows if self.spec.pointwise else self.spec.out_width)
        return (widened, (self.slots, pixels * self.tile.channels))

    @property
    def scratch_nbytes(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self.scratch)


def eligible(spec: ConvSpec, tile: Tile) -> bool:
    """Whether a layer has weights to widen, and tiles enough to widen them for."""
    row = as_row(spec)
    may = Widened(spec, tile).whole or spec.group_in > UNROLL_CHANNELS
    return may and widens(spec, tile.depth > 1, row.out_height * row.out_width)


def kernel(way: Widened, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, widened[, sums]); shapes as for the direct convolution.

    widened and sums are scratch of the shapes `way.scratch`.
    """
    assert eligible(way.spec, way.tile), f"nothing to widen for {way.spec}"
    return _Emitter(way, vector_width).prim_func()


class _Emitter(DirectEmitter):
    def __init__(self, way: Widened, vector_width: int) -> None:
        super().__init__(way.spec, as_row(way.spec), way.tile, vector_width, way.threads)
        self.way, self.scratch = way, way.scratch
        # Groups are as even as can be: none has so few tiles that widening shows.
        most = math.ceil(self.units / self.parts)
        self.group = math.ceil(most / math.ceil(most / way.group))

    def _body(self, given: Operands) -> None:
        self.wide, self.sums = (*given.scratch, None)[:2]
        super()._body(given)

    def _tasks(self, first, count) -> None:
        with in_slots(count * (self.spec.batch * self.parts), self.way.slots) as (task, slot):
            self.wide_at = slot * self.way.scratch[0][1]
            self.sums_at = slot * self.way.scratch[1][1] if self.sums is not None else 0
            self._task(task, first, count)

    def _units(self, low, size) -> None:
        spec, way = self.spec, self.way
        if way.whole:
            self.tile_of = super()._tile
            self._widen(0, spec.taps, 0)
            super()._units(low, size)
            return
        self.total = self.acc
        with T.serial((size + (self.group - 1)) // self.group) as index:
            self.group_at = T.bind(low + index * self.group)
            self.group_pixel = T.bind(self._first_pixel())
            count = T.bind(tirx.min(self.group, size - index * self.group))
            self._each_tile(count, self._begin)
            with T.serial(spec.kernel[0]) as kernel_row, T.serial(math.ceil(spec.group_in / way.channels)) as part:
                start, channels = T.bind(part * way.channels), way.channels
                if spec.group_in % channels:
                    channels = T.bind(tirx.min(channels, spec.group_in - start))
                self.some = kernel_row, start, channels
                for column in self._kernel_columns():
                    taps = (kernel_row * spec.kernel[1] + column) * spec.group_in + start
                    self._widen(taps, channels, column * channels)
                self._each_tile(count, self._add)
            self._each_tile(count, self._store_tile)

    def _kernel_columns(self) -> Iterator[tirx.Expr | int]:
        if not self.loops_taps:
            yield from range(self.spec.kernel[1])
            return
        with T.serial(self.spec.kernel[1]) as column:
            yield column

    def _each_tile(self, count, emit: Callable) -> None:
        """`emit` as `_tile` for every tile of the group's units."""
        self.tile_of = emit
        super()._units(self.group_at, count)

    def _tile(self, column, size: int, taps: Taps) -> None:
        self.tile_of(column, size, taps)

    def _widen(self, tap, count, place) -> None:
        """Widen the weights of `count` taps from `tap` on, to tap `place` of the buffer."""
        block = self.panel.block
        self.w.widen(self.panel_at, tap, count, self.wide, self.wide_at + place * block)

    def _begin(self, column, size: int, taps: Taps) -> None:
        for row in range(size):
            for start, lanes in self.pieces:
                value = self.w.begin(self.panel_at, start, lanes)
                T.buffer_store(self.sums, value, [self._sum_at(column, row, start, lanes)])

    def _add(self, column, size: int, taps: Taps) -> None:
        with ExitStack() as stack:
            if not all(isinstance(bound, int) for bound in self.kernel_rows):
                low, high = self.kernel_rows
                stack.enter_context(T.If(tirx.all(self.some[0] >= low, self.some[0] < high)))
                stack.enter_context(T.Then())
            self.acc.fill(size, lambda start, lanes: zero(lanes))
            self._products(column, size, taps)
            for row in range(size):
                for start, lanes in self.pieces:
                    at = self._sum_at(column, row, start, lanes)
                    T.buffer_store(self.sums, self.sums[at] + self.acc.get(row, start, lanes), [at])

    def _store_tile(self, column, size: int, taps: Taps) -> None:
        self._store(column, size)

    def _sum_at(self, column, row: int, start: int, lanes: int):
        pixel = column if self.spec.pointwise else self.out_row * self.spec.out_width + column
        return vector(self.sums_at + (pixel + row - self.group_pixel) * self.panel.block + start, lanes)

    def _first_pixel(self):
        """Of the group."""
        if not self.spec.pointwise:
            return self.group_at * self.spec.out_width
        size, larger = divmod(self.spec.out_width, self.units)
        return self.group_at * size + (tirx.min(self.group_at, larger) if larger else 0)

    def _sum(self, column, row: int, start: int, lanes: int) -> tirx.Expr:
        if self.way.whole:
            return super()._sum(column, row, start, lanes)
        return self.sums[self._sum_at(column, row, start, lanes)]

    def _kernel_row(self) -> AbstractContextManager:
        return super()._kernel_row() if self.way.whole else nullcontext(self.some[0])

    def _channels(self, kernel_row, kernel_column, column, reached: list[int], size: int) -> None:
        if self.way.whole:
            super()._channels(kernel_row, kernel_column, column, reached, size)
        else:
            _, start, channels = self.some
            self._reduce(kernel_row, kernel_column, column, reached, start, channels)

    def _weights_at(self, kernel_row, kernel_column, channel):
        spec = self.spec
        if self.way.whole:
            place = (kernel_row * spec.kernel[1] + kernel_column) * spec.group_in + channel
        else:
            _, start, channels = self.some
            place = kernel_column * channels + channel - start
        return self.wide_at + place * self.panel.block

    def _weights(self, index, lanes: int) -> tirx.Expr:
        return self.wide[vector(index, lanes)]
