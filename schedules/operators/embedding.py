"""Rows of a table by their number, from any part of the table.

The table lies in blocks of rows, so that a step can hold a few blocks: the step writes the rows of the output whose numbers
fall into its blocks and leaves the others alone. Numbers outside the table count as its first or last row.

Or requested rows are fetched from the file, by their numbers, before the kernel runs, which gets these in order.

Where a dense layer has the same table as its weights, the table is the layer's panel: a row is a lane of a block.

Rows of 16 and 8 bits, and rows in blocks (`../tiles/blocks.py`), are widened while copying. A row of multiples of a scale begins
with the scale, as bits, and a row in blocks with its scales and zero points.
"""

from __future__ import annotations

import math
from ast import literal_eval
from dataclasses import astuple, dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.blocks import Blocks, blocks_of
from ..tiles.blocks_reader import BlockedLanes
from ..tiles.emit import flat, spread, vector
from ..tiles.panel import WEIGHT_DTYPES, Panel, element_type, is_scaled
from ..tiles.panel_reader import widened
from ..tiles.rows import cover, for_each_vector

_BLOCK_NBYTES = 256 * 1024  # of a load, about
_ALIGN = 64  # bytes; blocks start at multiples of it
_PAGE = 4096  # bytes that are read at a time
_WORTHWHILE = 0.25  # of a table: rows are fetched where that reads less
_SHARED = 1.0  # the same of a table that another layer reads as well: loading the table for its rows would be a second time


@dataclass(frozen=True)
class Interleaved:
    """The places of table rows in the blocks of a panel, whose output channels the rows are."""

    block: int  # rows of the table in a block
    rows: int  # of a block of the panel, each an element of every row of the table
    first: int  # of them, the one with the first elements
    scale: int  # the row of float32 in which scales are

    @classmethod
    def of(cls, panel: Panel) -> Interleaved:
        """In a panel of one group, whose taps do not lie together."""
        return cls(panel.block, panel.rows, panel.first_tap, 1 + panel.vectors)


@dataclass(frozen=True)
class EmbeddingSpec:
    """y[i] = table[ids[i]], float32, of a table whose rows are kept as `kept` (tiles/panel.py)."""

    ids: tuple[int, ...]  # shape of the numbers
    ids_dtype: str  # int32 or int64
    rows: int
    width: int  # elements of a row
    kept: str = "float32"
    interleaved: Interleaved | None = None  # None: rows follow each other

    @property
    def dtype(self) -> str:
        """The type of the table's elements."""
        return element_type(self.kept)

    @property
    def form(self) -> Blocks | None:
        """The blocks of a row, if its elements are in blocks."""
        return blocks_of(self.kept)

    @property
    def scale(self) -> int:
        """Elements in front of a row that are the bits of its scale; interleaved rows have their scales elsewhere."""
        if self.form:
            return self.columns - self.form.tap_rows(self.width)
        return 4 // WEIGHT_DTYPES[self.dtype] if is_scaled(self.kept) else 0

    @property
    def row_nbytes(self) -> int:
        return self.columns * WEIGHT_DTYPES[self.dtype]

    @property
    def block_rows(self) -> int:
        """Rows of a block: whole multiples of the alignment, or the lanes of a panel."""
        if self.interleaved:
            return self.interleaved.block
        unit = _ALIGN // math.gcd(_ALIGN, self.row_nbytes)
        wanted = max(1, _BLOCK_NBYTES // (self.row_nbytes * unit)) * unit
        return min(wanted, math.ceil(self.rows / unit) * unit)

    @property
    def blocks(self) -> int:
        return math.ceil(self.rows / self.block_rows)

    @property
    def panel(self) -> tuple[int, int, int]:
        """Shape of the table with whole blocks."""
        if self.interleaved:
            return (self.blocks, self.interleaved.rows, self.interleaved.block)
        return (self.blocks, self.block_rows, self.columns)

    @property
    def columns(self) -> int:
        """Elements of a row, with those of its scale."""
        return self.form.row_nbytes(self.width) if self.form else self.scale + self.width

    @property
    def worth_fetching(self) -> bool:
        """Whether the rows that are asked for are so few that an inference reads them instead of the table."""
        piece = math.prod(self.panel[1:]) * WEIGHT_DTYPES[self.dtype] if self.interleaved else self.row_nbytes
        most = (piece // _PAGE + 2) * _PAGE  # around a piece of the file
        part = _SHARED if self.interleaved else _WORTHWHILE
        return math.prod(self.ids) * most <= part * self.rows * self.row_nbytes

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """The parts of a row in a block of interleaved rows: (byte of the block, bytes of an element, elements)."""
        size, lanes = WEIGHT_DTYPES[self.dtype], self.interleaved.block
        if form := self.form:
            scales, first = 4 * self.interleaved.scale * lanes, self.interleaved.first * lanes
            zeros = (first - form.zero_rows(self.width) * lanes, 1, form.zero_rows(self.width))
            weights = (first, form.together, form.tap_rows(self.width) // form.together)
            parts = [(scales, form.scale_nbytes, form.count(self.width)), zeros, weights]
            return [part for part in parts if part[2]]
        scale = [(4 * self.interleaved.scale * lanes, 4, 1)] if self.scale else []
        return [*scale, (size * self.interleaved.first * lanes, size, self.width)]

    def encode(self) -> str:
        """As text, for an attribute of a kernel."""
        return repr(astuple(self) if self.interleaved else astuple(self)[:-1])

    @classmethod
    def decode(cls, text: str) -> EmbeddingSpec:
        """The inverse of `encode`."""
        *fields, last = literal_eval(text)
        return cls(*fields, Interleaved(*last) if isinstance(last, tuple) else last)

    def __str__(self) -> str:
        kept = f", {self.kept}" if self.kept != "float32" else ""
        interleaved = f", in blocks of {self.interleaved.block}" if self.interleaved else ""
        return f"{math.prod(self.ids)} of {self.rows} rows of {self.width}{kept}{interleaved}"


def kernel(spec: EmbeddingSpec, width: int) -> tirx.PrimFunc:
    """A PrimFunc (ids, panel, first, count, y); panel holds `count` blocks, the first of which is block `first`."""
    numbers = math.prod(spec.ids)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given_ids = T.arg("ids", T.buffer(spec.ids, spec.ids_dtype))
        panel = T.arg("panel", T.buffer(spec.panel, spec.dtype))
        first, count = T.arg("first", T.int64()), T.arg("count", T.int64())
        given_y = T.arg("y", T.buffer((*spec.ids, spec.width), "float32"))
        ids = T.decl_buffer((numbers,), spec.ids_dtype, data=given_ids.data)
        table, y = flat(panel, math.prod(spec.panel), spec.dtype), flat(given_y, numbers * spec.width)
        with T.serial(numbers) as i:
            number = T.bind(T.Cast("int32", tirx.max(tirx.min(ids[i], spec.rows - 1), 0)))
            if spec.interleaved:
                in_table = T.bind(number // spec.block_rows)
                block = T.bind(in_table - T.Cast("int32", first))
                with T.If(tirx.all(block >= 0, block < T.Cast("int32", count))), T.Then():
                    lane = T.bind(number - tirx.min(in_table * spec.block_rows, spec.rows - spec.block_rows))
                    _copy_lane(spec, table, block, lane, y, i)
            else:
                start = T.bind(number - T.Cast("int32", first) * spec.block_rows)
                with T.If(tirx.all(start >= 0, start < T.Cast("int32", count) * spec.block_rows)), T.Then():
                    _copy_row(spec, width, table, start, y, i)
    return builder.get()


def rows_kernel(spec: EmbeddingSpec, width: int) -> tirx.PrimFunc:
    """A PrimFunc (ids, rows, y); row i of `rows`, in the table's form, is that of number i."""
    numbers, columns = math.prod(spec.ids), spec.columns
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        T.arg("ids", T.buffer(spec.ids, spec.ids_dtype))
        given = T.arg("rows", T.buffer((numbers, columns), spec.dtype))
        given_y = T.arg("y", T.buffer((*spec.ids, spec.width), "float32"))
        rows, y = flat(given, numbers * columns, spec.dtype), flat(given_y, numbers * spec.width)
        with T.serial(numbers) as i:
            _copy_row(spec, width, rows, i, y, i)
    return builder.get()


def _copy_row(spec: EmbeddingSpec, width: int, table: tirx.Buffer, row, y: tirx.Buffer, number) -> None:
    """Write a row of the table, widened, as that of a number."""
    if form := spec.form:
        lanes = BlockedLanes(form, table, 1, 0, spec.scale, spec.width)
        _copy_blocks(lanes, T.bind(row * spec.columns), 0, y, number)
        return
    part = cover(spec.width, width)
    row_at = row * spec.columns
    scale = T.bind(tirx.reinterpret("float32", table[vector(row_at, spec.scale)])) if spec.scale else None

    def copy(at, _) -> None:
        value = table[vector(row_at + spec.scale + at, part.lanes)]
        if spec.dtype != "float32":
            value = widened(value, spec.dtype, part.lanes)
        if scale is not None:
            value = value * spread(scale, part.lanes)
        T.buffer_store(y, value, [vector(number * spec.width + at, part.lanes)])

    for_each_vector(part, copy)


def _copy_lane(spec: EmbeddingSpec, table: tirx.Buffer, block, lane, y: tirx.Buffer, number) -> None:
    """Write a row of the table that is a lane of a block, widened, as that of a number."""
    lanes = spec.block_rows
    begin = T.bind(block * (spec.interleaved.rows * lanes))
    if form := spec.form:
        places = spec.interleaved
        _copy_blocks(BlockedLanes(form, table, lanes, 4 * places.scale, places.first, spec.width), begin, lane, y, number)
        return
    each = 4 // WEIGHT_DTYPES[spec.dtype]
    bits = begin + (spec.interleaved.scale * lanes + lane) * each
    scale = T.bind(tirx.reinterpret("float32", table[vector(bits, each)])) if spec.scale else None
    with T.serial(spec.width) as k:
        value = table[begin + (spec.interleaved.first + k) * lanes + lane]
        if spec.dtype != "float32":
            value = widened(value, spec.dtype, 1)
        T.buffer_store(y, value if scale is None else value * scale, [number * spec.width + k])


def _copy_blocks(lanes: BlockedLanes, at, lane, y: tirx.Buffer, number) -> None:
    """Write a row in blocks, which is a lane of the rows of bytes from `at` on, as that of a number."""
    size = lanes.form.size
    blocks, rest = lanes.whole
    begin = T.bind(number * lanes.taps)

    def block_of(block, count: int) -> None:
        scale, zero = T.bind(lanes.scales(at, block, lane, 1)), lanes.zeros(at, block, lane, 1)
        zero = None if zero is None else T.bind(zero)

        def pair_of(tap, elements: int) -> None:
            for i, value in enumerate(lanes.pair(at, tap, lane, 1, zero)[:elements]):
                T.buffer_store(y, value * scale, [begin + tap + i])

        with T.serial(count // 2) as pair:
            pair_of(T.bind(block * size + pair * 2), 2)
        if count % 2:
            pair_of(block * size + count - 1, 1)

    with T.serial(blocks) as block:
        block_of(block, size)
    if rest:
        block_of(blocks, rest)
