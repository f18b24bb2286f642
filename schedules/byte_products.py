"""Dense layers whose weights are in blocks of inputs (`tiles/blocks.py`), times rows in 8 bits (`tiles/byte_rows.py`).

    y[row, n] = Σ over blocks: scale[row, block] · scale[n, block] · Σ over k: q[row, k] · (q[n, k] - zero[n, block])

Sums within a block are int32 and exact; they are scaled and added up in float32.

    one row      all vectors of a block of channels at once, so that weights are read in order
    many rows    a vector of channels after the other: weights come from the caches, and rows fill the registers

Panels are the same for both. Loops over tasks and tiles, and the epilogue, are those of direct convolutions (`conv.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .conv import DirectEmitter, as_row
from .direct_work import direct_work
from .family import PRODUCTS, READING, Candidate, Family
from .tiles.block_dots import BLOCK_DOTS, CHUNK, Sums
from .tiles.blocks import BIAS, Blocks, apart, blocks_of
from .tiles.emit import Accumulators, maybe_serial, prefetch_line, spread, vector
from .tiles.panel import panel_of
from .tiles.spec import ConvSpec
from .tiles.taps import Taps
from .tiles.tile import Tile, VectorUnit, pieces

_MOST_VECTORS = 4  # of a block of channels
_MOST_PADDING = 1.125  # channels of all blocks, over those of the layer rounded up to vectors
# Rows of a tile: each takes a register for its total, and one for its sum of a block.
_ROWS = {(16, "vpdpbusd"): 12, (8, "vpdpbusd"): 5, (8, "vpmaddwd"): 4, (4, "sdot"): 6, (4, "smmla"): 8}
# Operations in float32 that take as long as one of a product.
_FLOPS = {"vpdpbusd": 0.6, "vpmaddwd": 0.75, "sdot": 0.5, "smmla": 0.3}
_AHEAD_NBYTES = 8 * 1024  # as in tiles/panel_reader.py
_LINE_NBYTES = 64


def together(kept: str, unit: VectorUnit) -> str:
    """The type of weights in blocks, as kernels of such products on a machine take these; empty if there are none."""
    form = blocks_of(kept)
    instruction = _instruction(unit)
    if form is None or (unit.width, instruction) not in _ROWS:
        return ""
    made = Blocks(form.bits, form.size, form.scales, form.has_zeros, BLOCK_DOTS[instruction].together)
    is_whole = form.size % made.word_taps == 0 and (form.size <= CHUNK or form.size % CHUNK == 0)
    return str(made) if is_whole else ""


def _instruction(unit: VectorUnit) -> str:
    return "smmla" if unit.matrix_dots else unit.dots


def kernel(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> tirx.PrimFunc:
    """A PrimFunc (rows, epilogue tensors…, panel, first, count, y), as for direct convolutions (`conv.py`)."""
    return _Emitter(spec, as_row(spec), tile, unit).prim_func()


class _Emitter(DirectEmitter):
    def __init__(self, declared: ConvSpec, spec: ConvSpec, tile: Tile, unit: VectorUnit) -> None:
        super().__init__(declared, spec, tile, unit.width, unit.threads)
        self.form, self.layout = self.panel.in_blocks, spec.bytes_in
        assert self.form and self.layout and spec.pointwise, f"not a dense layer of rows in 8 bits: {spec}"
        self.dots = BLOCK_DOTS[_instruction(unit)](self.form.bits, unit.width)
        self.width, self.by_lane = unit.width, unit.by_lane
        assert self.form.together == self.dots.together, f"words of {self.form.together} taps: {spec}"
        vectors = tile.channels // unit.width
        self.groups = vectors if spec.width > 1 else 1
        self.vectors = [(i * unit.width, unit.width) for i in range(vectors // self.groups)]
        self.stores = self.vectors if self.panel.group_channels >= tile.channels else pieces(spec.out_channels, unit.width)

    def _registers(self) -> tuple[Accumulators, Accumulators]:
        self.sums = Sums(self.tile.rows + self.dots.spare_rows, [(0, self.width)])
        total = Accumulators(self.tile.rows, self.vectors)
        return total, total

    def _task(self, task, first, count) -> None:
        words = math.prod(self.spec.x_shape) // 4
        self.x_words, self.x_numbers = (T.decl_buffer((words,), kind, data=self.x.data) for kind in ("int32", "float32"))
        self.x_pairs = T.decl_buffer((words // 2,), "int64", data=self.x.data)
        super()._task(task, first, count)

    def _tile(self, column, size: int, taps: Taps) -> None:
        self._prefetch(column, size)
        with maybe_serial(0, self.groups) as group:
            begin = T.bind(group * len(self.vectors) * self.width)
            self.total.fill(size, lambda start, lanes: self.begin(begin + start, lanes))
            whole, rest = divmod(self.spec.taps, self.form.size)
            with T.serial(whole) as block:
                self._block(column, size, begin, block, self.form.size)
            if rest:
                self._block(column, size, begin, whole, rest)
            for row in range(size):
                place = self._place(column + row)
                for start, lanes in self.stores:
                    index = vector(place + begin + start, lanes)
                    value = self._finished(begin + start, lanes, index, self.total.get(row, start, lanes))
                    T.buffer_store(self.y, value, [index])

    def _block(self, column, size: int, begin, block, count: int) -> None:
        """Add the scaled sums of a block of inputs."""
        rows = range(size)
        row_at = [T.bind((column + row) * (self.layout.nbytes // 4)) for row in rows]
        numbers_at = self.layout.scale_at(block)
        starts = [T.bind(self.x_words[at + numbers_at + 1]) for at in row_at] if self._reads_starts else []
        for start, lanes in self.vectors:
            channel = begin + start
            factor = self.dots.starts_from
            self.dots.begin(self.sums, [starts[row] * factor if factor else tirx.const(0, "int32") for row in rows])
            chunks, rest = divmod(count, CHUNK)
            if chunks:
                with maybe_serial(0, chunks) as chunk:
                    self._chunk(row_at, begin, start, block * self.form.size, chunk * CHUNK, CHUNK)
            if rest:
                self._chunk(row_at, begin, start, block * self.form.size, chunks * CHUNK, rest)
            scale = T.bind(self.w.lanes.scales(self.panel_at, block, channel, lanes))
            zeros = self.w.lanes.zeros(self.panel_at, block, channel, lanes)
            zeros = None if zeros is None else T.bind(zeros * spread(tirx.const(1 / BIAS, "float32"), lanes))
            for row, at in enumerate(row_at):
                value = tirx.Cast(f"float32x{lanes}", self.dots.total(self.sums, size, row))
                if zeros is not None:
                    value = value + zeros * spread(T.Cast("float32", starts[row]), lanes)
                factor = spread(self.x_numbers[at + numbers_at], lanes) * scale
                self.total.add_product(row, start, lanes, value, factor)

    @property
    def _reads_starts(self) -> bool:
        return bool(self.dots.starts_from) or self.form.has_zeros

    def _chunk(self, row_at: list[tirx.Expr], begin, start: int, block_tap, tap, count: int) -> None:
        """Add the products of `count` inputs from `tap` on, of a block that begins at `block_tap`, for the vector at `start`."""
        each, stride, together = self.form.word_taps, self.panel.block, self.form.together
        words = math.ceil(count / each)
        first = T.bind((block_tap + tap) // each)
        at = T.bind(self.panel_at + (self.w.lanes.tap_row + first * together) * stride + (begin + start) * together)
        nbytes = together * self.width
        if self.fetches_weights:
            for word in range(words):
                for line in range(-start * together % _LINE_NBYTES, nbytes, _LINE_NBYTES):
                    T.evaluate(prefetch_line(self.w.buffer, at + (word * together * stride + line + _AHEAD_NBYTES), level=2))
        loaded = [T.bind(self.w.buffer[vector(at + word * together * stride, nbytes)]) for word in range(words)]
        input_at = [T.bind(place + first * (each // 4)) for place in row_at]
        lanes: dict[tuple[int, int], tirx.Expr] = {}

        def inputs(row: int, number: int) -> tirx.Expr:
            if together == 8:
                return self.x_pairs[input_at[row] // 2 + number]
            if not self.by_lane:
                return spread(self.x_words[input_at[row] + number], self.width)
            part, lane = divmod(number, self.width)
            return tirx.Shuffle([lanes[row, part]], [lane] * self.width)

        if self.by_lane and together == 4:
            parts = math.ceil(words * each // 4 / self.width)
            for row, place in enumerate(input_at):
                for part in range(parts):
                    lanes[row, part] = T.bind(self.x_words[vector(place + part * self.width, self.width)])
        self.dots.add(self.sums, len(row_at), loaded, inputs)


def _channels(spec: ConvSpec, unit: VectorUnit) -> int:
    """Channels of a block: those of kernels for one row and for many, whose panels are the same then."""
    vectors = math.ceil(spec.out_channels / unit.width)
    for count in range(min(_MOST_VECTORS, spec.out_channels // unit.width), 1, -1):
        blocks = math.ceil(vectors / count)
        if blocks >= unit.threads and blocks * count <= _MOST_PADDING * vectors:
            return count * unit.width
    return unit.width


def _offered(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    rows = spec.batch * spec.height * spec.width
    tile = Tile(min(rows, _ROWS[unit.width, _instruction(unit)]), _channels(spec, unit))
    panel = panel_of(spec, tile.channels)
    work = direct_work(spec, tile, unit) - (1 - _FLOPS[_instruction(unit)]) * spec.flops
    disjoint = panel.group_channels % panel.block == 0
    yield Candidate(_NAMES[rows == 1], tile, panel, 0, work, lambda: kernel(spec, tile, unit), in_place=disjoint)


def _family(of_one_row: bool, **more: object) -> Family:
    """One of the two, with its part of the layers."""

    def offered(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
        is_row = spec.batch * spec.height * spec.width == 1
        is_able = spec.bytes_in is not None and together(apart(spec.weights), unit) == spec.weights
        return _offered(spec, unit) if is_able and is_row == of_one_row else iter(())

    return Family(_NAMES[of_one_row], ConvSpec, offered, in_blocks=True, **more)


_NAMES = {True: "bytegemv", False: "bytegemm"}
FAMILY = _family(False, group=PRODUCTS)
ONE_ROW = _family(True, bound_by=READING)
