"""Convolutions and dense layers of bfloat16 in tiles of AMX (schedules/amx/ways.py).

The loops are those of the direct convolution, but

1. A slot per thread has room for sums and takes a share of the tasks. Before the first task tiles get their shapes, and after the
   last they are released.
2. Where a layer has padding, the input of a part is packed, with its padding, before the part's first block.
3. Sums of up to 32 pixels × 32 channels stay in four tiles over the whole reduction, then go through scratch and the epilogue.
4. The last tiles of a row, and the last rows, overlap the ones before; what is computed twice is stored once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..conv import PAIR, DirectEmitter
from ..tiles import amx
from ..tiles.emit import Accumulators, in_slots, maybe_serial, vector
from ..tiles.layer_function import Operands
from ..tiles.packed_rows import pack_rows
from ..tiles.rows import cover, for_each_vector
from .ways import Amx

_LANES = 32  # numbers that are packed together
# Tiles by number: sums of pixels × channels, pixels, channels.
_SUMS, _LEFT, _RIGHT = 0, 4, 6


def kernel(way: Amx, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, room); shapes as for the direct convolution.

    room is scratch of the shape `way.scratch`.
    """
    return _Emitter(way, vector_width).prim_func()


class _Emitter(DirectEmitter):
    def __init__(self, way: Amx, vector_width: int) -> None:
        super().__init__(way.spec, way.seen, way.tile, vector_width, way.slots)
        self.way, self.units, self.parts, self.scratch = way, way.units, way.parts, way.scratch
        self.wide = [min(amx.ROWS, way.block - start) for start in range(0, way.block, amx.ROWS)]

    def _body(self, given: Operands) -> None:
        way, (self.room,) = self.way, given.scratch
        self.words = T.decl_buffer((way.slots * way.room,), "int32", data=self.room.data)
        self.packed = T.decl_buffer((PAIR * way.slots * way.room,), "uint16", data=self.room.data)
        super()._body(given)

    # -- tasks -------------------------------------------------------------------------------------

    def _tasks(self, first, count) -> None:
        way = self.way
        tasks = count * (self.spec.batch * self.parts)
        with in_slots(tasks, way.slots, self._configured) as (task, slot):
            sums = way.pixels * way.block
            self.sums_at = slot * way.room + amx.CONFIG_WORDS
            self.slot_at = PAIR * (self.sums_at + sums)
            # The slot's first task may begin in the middle of a part.
            each = (tasks + (way.slots - 1)) // way.slots
            self.begins = tirx.any(task % count == 0, task == slot * each)
            self._task(task, first, count)

    @contextmanager
    def _configured(self, slot) -> Iterator[None]:
        way, pairs = self.way, self.way.step // PAIR
        shapes: dict[int, tuple[int, int]] = {}
        for tall, height in enumerate(way.heights):
            shapes[_LEFT + tall] = height, pairs
            shapes.update({_SUMS + 2 * tall + wide: (height, words) for wide, words in enumerate(self.wide)})
        shapes.update({_RIGHT + wide: (pairs, words) for wide, words in enumerate(self.wide)})
        at = slot * way.room
        for number, word in enumerate(amx.configuration(shapes)):
            T.buffer_store(self.words, tirx.const(word, "int32"), [at + number])
        amx.configure(self.words, at)
        yield
        amx.release()

    def _registers(self) -> tuple[Accumulators, Accumulators]:
        none = Accumulators(0, self.pieces)
        return none, none

    def _units(self, low, size) -> None:
        way, seen = self.way, self.spec
        start = T.bind(0 if way.is_flat else self._first_row(low) * seen.stride[0])
        if way.packs:
            with T.If(self.begins), T.Then():
                last = 0 if way.is_flat else self._first_row(low + size - 1) + way.lines - 1
                reach = (seen.kernel[0] - 1) * seen.dilation[0] + 1
                rows = start, last * seen.stride[0] + reach - start
                pack_rows(self.declared, seen, self.image, rows, self.slot_at, self._copy, self._fill)
            # Where pixel 0 of the image would lie.
            self.pixels, self.pixels_at = self.packed, self.slot_at - start * (seen.width * seen.in_channels)
        else:
            self.pixels, self.pixels_at = self.x, self.image * (seen.height * seen.width * seen.in_channels)
        with T.serial(size) as index:
            unit = T.bind(low + index)
            if way.is_flat:
                self._sums_of(0, 0, unit)
                return
            row = T.bind(self._first_row(unit))
            with maybe_serial(0, way.across) as across:
                self._sums_of(row, unit * way.lines - row, across)

    def _first_row(self, unit):
        """The first row of a unit: the last unit has as many rows as others."""
        way, height = self.way, self.spec.out_height
        return tirx.min(unit * way.lines, height - way.lines) if height % way.lines else unit * way.lines

    def _copy(self, source, target, count: int) -> None:
        row = cover(count, _LANES)

        def some(at, _) -> None:
            kind = "uint16" if row.lanes == 1 else f"uint16x{row.lanes}"
            value = tirx.reinterpret(kind, self.x[vector(source + at, row.lanes)])
            T.buffer_store(self.packed, value, [vector(target + at, row.lanes)])

        for_each_vector(row, some)

    def _fill(self, target, count: int) -> None:
        if count <= 0:
            return
        row = cover(count, _LANES)
        zero = tirx.const(0, "uint16")
        value = zero if row.lanes == 1 else T.broadcast(zero, row.lanes)
        for_each_vector(row, lambda at, _: T.buffer_store(self.packed, value, [vector(target + at, row.lanes)]))

    # -- tiles -------------------------------------------------------------------------------------

    def _sums_of(self, row, rows_before: tirx.Expr | int, across) -> None:
        """Sums of the pixels that are computed together: `across`, from a row on of which some rows are stored already."""
        way, seen = self.way, self.spec
        overlaps = seen.out_width % way.columns != 0
        column = across * way.columns
        first = T.bind(tirx.min(column, seen.out_width - way.columns) if overlaps else column)
        done = T.bind(rows_before * way.columns + column - first)
        self._reduce_tiles(row, first)
        for tall, height in enumerate(way.heights):
            for wide in range(len(self.wide)):
                at = self.sums_at + self._sum_at(tall, 0) + amx.ROWS * wide
                amx.store(_SUMS + 2 * tall + wide, self.room, at, 4 * way.block)
            before = sum(way.heights[:tall])
            start = tirx.max(tirx.min(done - before, height), 0)
            line, beside = (tall, 0) if way.lines > 1 else (0, before)
            with T.serial(start, height) as pixel:
                self.out_row = row + line
                self._store_pixel(first + beside + pixel, self._sum_at(tall, pixel))

    def _reduce_tiles(self, row, column) -> None:
        """Multiply all taps."""
        way, seen, step = self.way, self.spec, self.way.step
        apart = seen.stride[1] * seen.in_channels
        for tall in range(len(way.heights)):
            for wide in range(len(self.wide)):
                amx.clear(_SUMS + 2 * tall + wide)
        with maybe_serial(0, seen.kernel[0]) as kernel_row, maybe_serial(0, seen.kernel[1]) as kernel_column:
            in_row = row * seen.stride[0] + kernel_row * seen.dilation[0]
            in_column = column * seen.stride[1] + kernel_column * seen.dilation[1]
            pixel = T.bind(self.pixels_at + (in_row * seen.width + in_column) * seen.in_channels)
            weights = T.bind(self._weights_at(kernel_row, kernel_column, 0))
            with T.serial(seen.in_channels // step) as index:
                channel = T.bind(index * step)
                for wide in range(len(self.wide)):
                    at = weights + channel * way.block + PAIR * amx.ROWS * wide
                    amx.load(_RIGHT + wide, self.w.buffer, at, 4 * way.block)
                for tall in range(len(way.heights)):
                    lines = seen.stride[0] * seen.width * seen.in_channels if way.lines > 1 else apart * way.heights[0]
                    amx.load(_LEFT + tall, self.pixels, pixel + tall * lines + channel, 2 * apart)
                    for wide in range(len(self.wide)):
                        amx.multiply(_SUMS + 2 * tall + wide, _LEFT + tall, _RIGHT + wide)

    def _sum_at(self, tall: int, pixel):
        """Where the sums of a tile's pixel begin, in the room for sums."""
        return (sum(self.way.heights[:tall]) + pixel) * self.way.block

    def _store_pixel(self, column, sums) -> None:
        place = T.bind(self._place(column))
        at = T.bind(self.sums_at + sums)
        for start, lanes in self.stores:
            index = vector(place + start, lanes)
            total = self.begin(start, lanes) + self.room[vector(at + start, lanes)]
            T.buffer_store(self.y, self._finished(start, lanes, index, total), [index])
