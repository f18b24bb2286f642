"""The recurrence of LSTM, GRU and RNN: one call for all steps of one direction.

1. The products of the inputs are there for all steps (a dense layer computes them). For every step remain a product of
   the state, a few rows of the batch, with the recurrent weights R, and the gates.
2. Tasks of a step are blocks of hidden units (ways.py); threads share them if a step is long enough. A block's weights hold
   all gates of its units, so that the gates follow their products at once.
3. State and cell lie twice in scratch: a step reads one and writes the other, so that the order of blocks does not matter
   and the last block may overlap the previous one. A GRU that resets the state before its product has two phases.
4. Rows of the batch that have ended keep their state; their results are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles import lane
from ..tiles.emit import Accumulators, flat, maybe_serial, spread, vector, zero
from ..tiles.panel_reader import PanelReader
from ..tiles.rows import cover, for_each_vector
from ..tiles.tile import pieces, runs, split_evenly
from . import cells
from .cells import Products
from .state import quantise, quantised
from .ways import PARTIAL_TERMS, Phase, Recurrent


def kernel(way: Recurrent, width: int) -> tirx.PrimFunc:
    """A PrimFunc (inputs, a panel for each phase, [lengths], [h], [c], y, last h, last c, scratch).

    `inputs` are the products of the inputs, lengths int32[batch], h and c initial states, and results those that
    `spec.outputs` names; shapes as RecurrentSpec and `Recurrent.scratch` say.
    """
    spec = way.spec
    panels = {f"panel{i}": (phase.panel.shape, phase.panel.dtype) for i, phase in enumerate(way.phases)}
    shapes = {"inputs": spec.inputs, **panels, **spec.given, **spec.results, "scratch": (way.scratch[0], "float32")}
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        arguments = {name: T.arg(name, T.buffer(*of)) for name, of in shapes.items()}
        given = {name: flat(arguments[name], math.prod(extents), dtype) for name, (extents, dtype) in shapes.items()}
        readers = [PanelReader(phase.panel, given[f"panel{i}"]) for i, phase in enumerate(way.phases)]
        _Recurrence(way, width, given, readers).emit()
    return builder.get()


class _Recurrence:
    def __init__(self, way: Recurrent, width: int, given: dict[str, tirx.Buffer], panels: list[PanelReader]) -> None:
        self.way, self.spec, self.width = way, way.spec, width
        self.given, self.panels = given, panels
        self.inputs, self.work = given["inputs"], given["scratch"]
        self.size = way.spec.batch * way.spec.hidden
        # Places in scratch: of states twice, then of cells twice, or of results of a GRU's first phase.
        self.cells, self.update, self.reset = 2 * self.size, 2 * self.size, 3 * self.size
        self.quantised = 4 * self.size  # of an LSTM
        if dots := way.dots:
            extent = way.scratch[0][0] * 4 // dots.itemsize
            self.packed = T.decl_buffer((extent,), dots.kind, data=self.work.data)

    def emit(self) -> None:
        spec = self.spec
        self._begin(0, "h0")
        if spec.cell == "LSTM":
            self._begin(self.cells, "c0")
        with T.serial(spec.steps) as self.step:
            self.now = T.bind(self.step % 2 * self.size)
            self.next = T.bind(self.size - self.now)
            if spec.quantised_state:
                self._quantise()
            for number in range(len(self.way.phases)):
                self._phase(number)
        last = spec.steps % 2 * self.size
        for name, place in (("h", last), ("c", self.cells + last)):
            if name in self.given:
                self._for_each_row(
                    lambda row, at, lanes, name=name, place=place: T.buffer_store(
                        self.given[name], self.work[vector(place + row + at, lanes)], [vector(row + at, lanes)]
                    )
                )

    def _quantise(self) -> None:
        """Write the state in 8 bits: packed integers, or in float32 without their zero point."""
        state = quantised(self.work, self.now, self.size, self.width)
        self.scale, dots = state.scale, self.way.dots
        if dots:
            # Packed factors are offset + integer - zero point.
            self.offset = T.bind(state.zero + tirx.const(float(dots.lowest), "float32"))

        def some(row, at, lanes: int) -> None:
            value = quantise(state, self.work[vector(self.now + row + at, lanes)], lanes)
            if not dots:
                T.buffer_store(self.work, value, [vector(self.quantised + row + at, lanes)])
                return
            of = "" if lanes == 1 else f"x{lanes}"
            packed = tirx.Cast(f"{dots.kind}{of}", tirx.Cast(f"int32{of}", value + spread(self.offset, lanes)))
            place = self._packed_row(row // self.spec.hidden) + at
            T.buffer_store(self.packed, packed, [vector(place, lanes)])

        self._for_each_row(some)

    def _packed_row(self, row):
        """Where the packed state of a row of the batch begins."""
        return self.quantised * 4 // self.way.dots.itemsize + row * self.way.phases[0].panel.taps

    def _for_each_row(self, body: Callable) -> None:
        """Emit `body(first element of a row, vector's place in it, its lanes)`."""
        row = cover(self.spec.hidden, self.width)
        with T.serial(self.spec.batch) as b:
            for_each_vector(row, lambda at, _: body(b * self.spec.hidden, at, row.lanes))

    def _begin(self, place: int, name: str) -> None:
        spec = self.spec

        def initial(row, at, lanes):
            if name not in self.given:
                return zero(lanes)
            if spec.batch_major:
                at = row * (spec.directions - 1) + spec.direction * spec.hidden + at
            else:
                at = spec.direction * self.size + at
            return self.given[name][vector(row + at, lanes)]

        self._for_each_row(
            lambda row, at, lanes: T.buffer_store(self.work, initial(row, at, lanes), [vector(place + row + at, lanes)])
        )

    def _phase(self, number: int) -> None:
        phase, spec = self.way.phases[number], self.spec
        blocks = phase.panel.blocks
        self.number, self.panel = number, self.panels[number]
        with self._in_turn(blocks) as block:
            if phase.is_whole:
                self.acc = self._accumulators(phase.rows, self._columns(phase))
            else:
                self.sums = [T.alloc_buffer((phase.rows * phase.units,), "float32", scope="global") for _ in phase.gates]
            self.unit = T.bind(tirx.min(block * phase.units, spec.hidden - phase.units)) if blocks > 1 else 0
            self.at = T.bind(self.panel.block_at(block))
            for row, size, count in runs(split_evenly(spec.batch, phase.rows)):
                with maybe_serial(0, count) as i:
                    self._tile(phase, row + i * size, size)

    @contextmanager
    def _in_turn(self, blocks: int) -> Iterator[tirx.Expr]:
        """A loop over blocks, the same ones for every thread in every step, there and back again: the weights that a step read
        last are still in the cache."""
        slots = min(self.way.threads, blocks)
        each = math.ceil(blocks / slots)
        with T.parallel(slots) if slots > 1 else nullcontext(0) as slot:
            start = slot * each
            stop = T.bind(tirx.min(start + each, blocks)) if blocks % each else start + each
            with T.serial(start, stop) as i:
                yield T.bind(tirx.Select(self.step % 2 == 0, i, start + stop - 1 - i))

    def _accumulators(self, rows: int, columns: list[tuple[int, int]]) -> Accumulators:
        return (self.way.dots.accumulators if self.way.dots else Accumulators)(rows, columns)

    def _columns(self, phase: Phase) -> list[tuple[int, int]]:
        """The vectors of a block: (column, lanes)."""
        return [
            (place * phase.units + start, lanes)
            for place in range(len(phase.gates))
            for start, lanes in pieces(phase.units, self.width)
        ]

    def _tile(self, phase: Phase, top, size: int) -> None:
        """All of a step for some rows of the batch and the units of a block."""
        seen = self.reset if self.number else self.quantised if self.spec.quantised_state else self.now
        left_at = T.bind(self._packed_row(top) if self.way.dots else seen + top * self.spec.hidden)
        tap = T.bind(self.panel.weights_at(self.at))
        if phase.is_whole:
            self.acc.fill(size, self._begin_sums)
            self._reduce(phase, self.acc, size, left_at, tap, self.spec.hidden)
            for row in range(size):
                self._row(phase, top + row, lambda column, lanes, row=row: self._total(self.acc, row, column, lanes))
            return
        self._add_up(phase, size, left_at, tap)
        # A loop: with constant indices sums would be in registers, which the products need.
        with T.serial(size) as row:
            self._row(phase, top + row, lambda column, lanes: self._sum(phase, row, column, lanes))

    def _begin_sums(self, start, lanes: int) -> tirx.Expr:
        if not self.way.dots:
            return self.panel.begin(self.at, start, lanes)
        # The panel has the sum of a column's weights, by which packed factors are off.
        offset = tirx.Cast("int32", self.offset)
        return self.panel.beginning(self.at, start, lanes) * spread(tirx.const(0, "int32") - offset, lanes)

    def _total(self, acc: Accumulators, row: int, column: int, lanes: int) -> tirx.Expr:
        total = acc.get(row, column, lanes)
        return tirx.Cast("float32" if lanes == 1 else f"float32x{lanes}", total) if self.way.dots else total

    def _sum(self, phase: Phase, row, column: int, lanes: int) -> tirx.Expr:
        place, start = divmod(column, phase.units)
        return self.sums[place][vector(row * phase.units + start, lanes)]

    def _add_up(self, phase: Phase, size: int, left_at, tap) -> None:
        """Products with a block whose columns, or whose sums, are too many for the registers: some after the other."""
        hidden, columns = self.spec.hidden, self._columns(phase)
        parts = 1 if self.way.dots else math.ceil(hidden / PARTIAL_TERMS)
        each = math.ceil(hidden / (parts * phase.depth)) * phase.depth
        vectors = math.ceil(len(columns) / phase.parts)
        for first_column in range(0, len(columns), vectors):
            some = columns[first_column : first_column + vectors]
            acc = self._accumulators(size, some)
            for part in range(parts):
                first, count = part * each, min(each, hidden - part * each)
                acc.fill(size, lambda start, lanes, part=part: zero(lanes) if part else self._begin_sums(start, lanes))
                self._reduce(phase, acc, size, left_at + first, tap + first * phase.panel.block, count)
                for row in range(size):
                    for column, lanes in some:
                        value = self._total(acc, row, column, lanes)
                        value = value + self._sum(phase, row, column, lanes) if part else value
                        place, start = divmod(column, phase.units)
                        T.buffer_store(self.sums[place], value, [vector(row * phase.units + start, lanes)])

    def _reduce(self, phase: Phase, acc: Accumulators, size: int, left_at, tap, count) -> None:
        panel = phase.panel
        if dots := self.way.dots:
            together = dots.together

            def left(row: int, step, lanes: int) -> tirx.Expr:
                some = self.packed[vector(left_at + row * panel.taps + together * step, together * lanes)]
                return tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", some)

            def right(step, start: int, lanes: int) -> tirx.Expr:
                return self.panel.buffer[vector(tap + together * (step * panel.block + start), together * lanes)]

            lane.reduce(acc, list(range(size)), panel.taps // together, left, right, phase.depth)
            return
        lane.reduce(
            acc,
            list(range(size)),
            count,
            lambda row, step, lanes: self.work[vector(left_at + row * self.spec.hidden + step, lanes)],
            lambda step, start, lanes: self.panel.weights(tap + step * panel.block + start, lanes),
            phase.depth,
        )

    def _row(self, phase: Phase, b, total: Callable[[int, int], tirx.Expr]) -> None:
        """The gates of row `b` of the batch; `total(column, lanes)` is the sum of products of columns of the block."""
        spec = self.spec
        active, time = None, self.step
        if spec.has_lengths:
            length = T.bind(tirx.max(tirx.min(self.given["lengths"][b], spec.steps), 0))
            active = T.bind(self.step < length)
            if spec.reverse:
                time = T.bind(tirx.Select(active, length - 1 - self.step, self.step))
        elif spec.reverse:
            time = T.bind(spec.steps - 1 - self.step)
        place = T.bind(b * spec.steps + time if spec.batch_major else time * spec.batch + b)
        state_at = T.bind(b * spec.hidden + self.unit)
        inputs_at = T.bind(place * spec.columns + (spec.direction * spec.gates * spec.hidden) + self.unit)
        for start, lanes in pieces(phase.units, self.width):
            column = {gate: number * phase.units + start for number, gate in enumerate(phase.gates)}
            given = Products(
                inputs=lambda gate, start=start, lanes=lanes: self.inputs[
                    vector(inputs_at + (gate * spec.hidden + start), lanes)
                ],
                state=lambda gate, lanes=lanes, column=column: self._product(column[gate], lanes, total),
                peephole=lambda gate, lanes=lanes, column=column: self.panel.channel(self.at, 0, column[gate], lanes),
                before=T.bind(self.work[vector(self.now + state_at + start, lanes)]),
            )
            self._vector(given, state_at + start, place * spec.hidden + self.unit + start, lanes, active)

    def _product(self, column: int, lanes: int, total: Callable[[int, int], tirx.Expr]) -> tirx.Expr:
        """Of the state with a vector of columns."""
        product = self.panel.finish(self.at, column, lanes, total(column, lanes))
        return product * spread(self.scale, lanes) if self.spec.quantised_state else product

    def _vector(self, given: Products, at, result_at, lanes: int, active) -> None:
        """One vector of units; `at` is its place in a state, `result_at` in the result."""
        spec, work = self.spec, self.work

        def store(place, value: tirx.Expr) -> None:
            T.buffer_store(work, value, [vector(place + at, lanes)])

        def kept(value: tirx.Expr, otherwise: tirx.Expr) -> tirx.Expr:
            return value if active is None else tirx.Select(spread(active, lanes), value, otherwise)

        if spec.cell == "LSTM":
            cell = T.bind(work[vector(self.cells + self.now + at, lanes)])
            store(self.cells + self.next, kept(cells.lstm_cell(spec, given, cell), cell))
            # Read again: the analyzer of TVM's code generator writes out what variables hold, here four activations in a fifth.
            state = cells.lstm(spec, given, T.bind(work[vector(self.cells + self.next + at, lanes)]))
        elif spec.cell == "RNN":
            state = cells.rnn(spec, given)
        elif spec.linear_before_reset:
            state = cells.gru(spec, given, cells.gru_gate(spec, given, 0), cells.gru_gate(spec, given, 1))
        elif self.number == 0:
            store(self.update, cells.gru_gate(spec, given, 0))
            store(self.reset, cells.gru_gate(spec, given, 1) * given.before)
            return
        else:
            state = cells.gru(spec, given, T.bind(work[vector(self.update + at, lanes)]), None)
        store(self.next, kept(state, given.before))
        if "y" in self.given:
            T.buffer_store(self.given["y"], kept(state, zero(lanes)), [vector(result_at, lanes)])
