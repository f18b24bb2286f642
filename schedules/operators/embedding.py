"""Rows of a table by their number, from any part of the table.

The table lies in blocks of rows, so that a step can hold a few of them: it writes the rows of the output whose numbers
fall into its blocks and leaves the others alone. Numbers outside the table count as its first or last row.

Or the rows that are asked for are fetched from the file, by their numbers, before the kernel runs: it gets them in their order.

Rows of 16 and 8 bits are widened as they are copied; a row of multiples of a scale begins with it, as bits.
"""

from __future__ import annotations

import math
from ast import literal_eval
from dataclasses import astuple, dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import flat, spread, vector
from ..tiles.panel import WEIGHT_DTYPES, element_type, is_scaled
from ..tiles.panel_reader import widened
from ..tiles.rows import cover, for_each_vector

_BLOCK_NBYTES = 256 * 1024  # about what a load should bring
_ALIGN = 64  # bytes; blocks start at multiples of it


@dataclass(frozen=True)
class EmbeddingSpec:
    """y[i] = table[ids[i]], float32, of a table whose rows are kept as `kept` (tiles/panel.py)."""

    ids: tuple[int, ...]  # shape of the numbers
    ids_dtype: str  # int32 or int64
    rows: int
    width: int  # elements of a row
    kept: str = "float32"

    @property
    def dtype(self) -> str:
        """The type of the table's elements."""
        return element_type(self.kept)

    @property
    def scale(self) -> int:
        """Elements in front of a row that are the bits of its scale."""
        return 4 // WEIGHT_DTYPES[self.dtype] if is_scaled(self.kept) else 0

    @property
    def row_nbytes(self) -> int:
        return (self.scale + self.width) * WEIGHT_DTYPES[self.dtype]

    @property
    def block_rows(self) -> int:
        """Rows of a block: whole multiples of the alignment."""
        unit = _ALIGN // math.gcd(_ALIGN, self.row_nbytes)
        wanted = max(1, _BLOCK_NBYTES // (self.row_nbytes * unit)) * unit
        return min(wanted, math.ceil(self.rows / unit) * unit)

    @property
    def blocks(self) -> int:
        return math.ceil(self.rows / self.block_rows)

    @property
    def panel(self) -> tuple[int, int, int]:
        """Shape of the table with whole blocks."""
        return (self.blocks, self.block_rows, self.scale + self.width)

    def encode(self) -> str:
        """As text, for an attribute of a kernel."""
        return repr(astuple(self))

    @classmethod
    def decode(cls, text: str) -> EmbeddingSpec:
        """What `encode` made a text of."""
        return cls(*literal_eval(text))

    def __str__(self) -> str:
        kept = f", {self.kept}" if self.kept != "float32" else ""
        return f"{math.prod(self.ids)} of {self.rows} rows of {self.width}{kept}"


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
            start = T.bind(number - T.Cast("int32", first) * spec.block_rows)
            with T.If(tirx.all(start >= 0, start < T.Cast("int32", count) * spec.block_rows)), T.Then():
                _copy_row(spec, width, table, start, y, i)
    return builder.get()


def rows_kernel(spec: EmbeddingSpec, width: int) -> tirx.PrimFunc:
    """A PrimFunc (ids, rows, y); row i of `rows`, as they lie in the table, is that of number i."""
    numbers, columns = math.prod(spec.ids), spec.panel[-1]
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
    part = cover(spec.width, width)
    row_at = row * (spec.scale + spec.width)
    scale = T.bind(tirx.reinterpret("float32", table[vector(row_at, spec.scale)])) if spec.scale else None

    def copy(at, _) -> None:
        value = table[vector(row_at + spec.scale + at, part.lanes)]
        if spec.dtype != "float32":
            value = widened(value, spec.dtype, part.lanes)
        if scale is not None:
            value = value * spread(scale, part.lanes)
        T.buffer_store(y, value, [vector(number * spec.width + at, part.lanes)])

    for_each_vector(part, copy)
