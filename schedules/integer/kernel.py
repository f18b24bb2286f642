"""The direct convolution in integer arithmetic (schedules/integer/ways.py).

The loops are those of the direct convolution, but

1. A slot per thread has room for the packed input of a part, and takes a share of the tasks.
2. Before the first block of a part its input is packed, with its padding: tiles at borders are like others.
3. Sums are int32, of several products at a time. They become float32 where the epilogue begins.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..conv import DirectEmitter
from ..tiles import lane
from ..tiles.emit import Accumulators, in_slots, maybe_serial, spread, vector
from ..tiles.layer_function import Operands
from ..tiles.packed_rows import pack_rows
from ..tiles.rows import cover, for_each_vector
from ..tiles.taps import Taps
from .ways import Integer

_LANES = 16  # floats that are packed together


def kernel(way: Integer, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, packed); shapes as for the direct convolution.

    packed is scratch of the shape `way.scratch`.
    """
    return Emitter(way, vector_width).prim_func()


class Emitter(DirectEmitter):
    """Loops over tasks, of which each part's first one packs its input."""

    def __init__(self, way: Integer, vector_width: int) -> None:
        super().__init__(way.spec, way.seen, way.tile, vector_width, way.slots)
        self.way, self.panel, self.parts, self.scratch = way, way.panel, way.parts, way.scratch
        self.dots = way.dots
        self.fetches_weights = way.is_flat and way.seen.out_width == 1

    def _body(self, given: Operands) -> None:
        (room,) = given.scratch
        self.packed = T.decl_buffer((self.way.scratch_nbytes // self.dots.itemsize,), self.dots.kind, data=room.data)
        super()._body(given)

    def _tasks(self, first, count) -> None:
        self._share(count * (self.spec.batch * self.parts), first, count)

    def _share(self, tasks, first, count) -> None:
        """The slots' shares of so many tasks."""
        with in_slots(tasks, self.way.slots) as (task, slot):
            self.slot_at = slot * (self.way.room // self.dots.itemsize)
            # The slot's first task may begin in the middle of a part.
            each = (tasks + (self.way.slots - 1)) // self.way.slots
            self.begins = tirx.any(task % count == 0, task == slot * each)
            self._task(task, first, count)

    def _registers(self) -> tuple[Accumulators, Accumulators]:
        acc = self.dots.accumulators(self.tile.rows, self.pieces)
        return acc, acc

    # -- packing -----------------------------------------------------------------------------------

    def _units(self, low, size) -> None:
        start = T.bind(self._first(low))

        def pack() -> None:
            if self.way.is_flat:
                self._pack_pixels(start, self._first(low + size) - start)
                return
            seen = self.spec
            reach = (seen.kernel[0] - 1) * seen.dilation[0] + 1
            rows = start, (size - 1) * seen.stride[0] + reach
            pack_rows(self.declared, seen, self.image, rows, self.slot_at, self._pack, self._fill)

        self._pack_part(start, pack)
        super()._units(low, size)

    def _pack_part(self, start, pack: Callable[[], None]) -> None:
        """Before the first block of a part `pack` packs its input, whose first row, or pixel, is `start`."""
        with T.If(self.begins), T.Then():
            self.offset = T.bind(self.w.offset(self.panel_at))
            pack()
        # Where pixel 0 of the image would lie.
        self.packed_at = self.slot_at - start * (self.spec.in_channels * (1 if self.way.is_flat else self.spec.width))

    def _first(self, unit):
        """The first row of the packed input that a unit reads, or its first pixel."""
        if not self.way.is_flat:
            return unit * self.spec.stride[0]
        size, larger = divmod(self.spec.out_width, self.units)
        return unit * size + (tirx.min(unit, larger) if larger else 0)

    def _pack_pixels(self, first, count) -> None:
        given, channels = self.declared, self.spec.in_channels
        (rows, columns), (down, right) = given.out_shape[1:3], given.stride
        with T.serial(count) as index:
            pixel = first + index
            if given.stride != (1, 1):
                image, place = pixel // (rows * columns), pixel % (rows * columns)
                row, column = place // columns * down, place % columns * right
                pixel = (image * given.height + row) * given.width + column
            self._pack(T.bind(pixel * channels), T.bind(self.slot_at + index * channels), channels)

    def _pack(self, source, target, count: int) -> None:
        """So many numbers from element `source` of the input on."""

        def some(at, _) -> None:
            value = self.x[vector(source + at, row.lanes)] - spread(self.offset, row.lanes)
            T.buffer_store(self.packed, self._narrowed(value, row.lanes), [vector(target + at, row.lanes)])

        row = cover(count, _LANES)
        for_each_vector(row, some)

    def _fill(self, target, count: int) -> None:
        """So many zeros."""
        if count <= 0:
            return
        row = cover(count, _LANES)
        zero = T.bind(self._narrowed(tirx.const(0.0, "float32") - self.offset, 1))
        for_each_vector(
            row, lambda at, _: T.buffer_store(self.packed, spread(zero, row.lanes), [vector(target + at, row.lanes)])
        )

    def _narrowed(self, value: tirx.Expr, lanes: int) -> tirx.Expr:
        of = "" if lanes == 1 else f"x{lanes}"
        return tirx.Cast(f"{self.dots.kind}{of}", tirx.Cast(f"int32{of}", value))

    # -- multiplying -------------------------------------------------------------------------------

    def _tile(self, column, size: int, taps: Taps) -> None:
        seen, way, block, together = self.spec, self.way, self.panel.block, self.dots.together
        apart, columns = seen.stride[1] * seen.in_channels, seen.kernel[1] if way.runs > seen.kernel[0] else 1
        self._prefetch(column, size)
        self.acc.fill(size, lambda start, lanes: self.w.beginning(self.panel_at, start, lanes))
        with maybe_serial(0, way.runs) as run:
            row = self.in_row + run // columns * seen.dilation[0]
            at = row * seen.width + column * seen.stride[1] + run % columns * seen.dilation[1]
            pixel = T.bind(self.packed_at + at * seen.in_channels)
            weights = T.bind(self.w.weights_at(self.panel_at, run * way.run))

            def left(row: int, step, lanes: int) -> tirx.Expr:
                some = self.packed[vector(pixel + row * apart + together * step, together * lanes)]
                return tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", some)

            def right(step, start: int, lanes: int) -> tirx.Expr:
                return self.w.buffer[vector(weights + together * (step * block + start), together * lanes)]

            fetch = (lambda step: self.w.fetch_ahead(weights + together * step * block)) if self.fetches_weights else None
            lane.reduce(self.acc, list(range(size)), way.run // together, left, right, self.tile.depth, fetch=fetch)
        self._store(column, size)

    def _sum(self, column, row: int, start: int, lanes: int) -> tirx.Expr:
        return tirx.Cast(f"float32x{lanes}", self.acc.get(row, start, lanes))
