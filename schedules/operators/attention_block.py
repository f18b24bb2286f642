"""Operands of a head in an attention kernel; a block of queries, its place in scratch, and how it is multiplied and read."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import lane
from ..tiles.byte_rows import ByteRows
from ..tiles.emit import PARALLEL_FLOPS, Accumulators, converted, spread, strided, vector, zero
from ..tiles.tile import VectorUnit, pieces
from .attention_spec import Access, AttentionSpec, place_of_key

_SLOTS = 4  # tasks that may be computed at the same time


def most_slots(spec: AttentionSpec) -> int:
    """How many tasks pay to be computed at the same time."""
    return 1 if spec.flops < PARALLEL_FLOPS else _SLOTS


@dataclass(frozen=True)
class Blocks:
    """How queries are cut: `count` blocks of `vectors` vectors, the first of which is block `first`."""

    start: int  # first query of the first block
    count: int
    vectors: int


def transposed_rows(spec: AttentionSpec) -> int:
    """Numbers of the longest of a query's rows that are multiplied."""
    return max([spec.depth, *(term.depth for term in spec.positions if term.by == "query")])


class HeadReader:
    """Operands of one head. `emit` of a subclass sets `batch` and `head`."""

    batch: ir.Expr
    head: ir.Expr

    def __init__(self, spec: AttentionSpec, unit: VectorUnit, buffers: dict[str, tirx.Buffer], rows=None) -> None:
        """`rows`: how many rows of queries, keys and values are valid; None: all."""
        self.spec, self.unit, self.buffers, self.rows = spec, unit, buffers, rows
        self.q, self.k, self.v, self.lengths, self.begins = (buffers.get(n) for n in ("q", "k", "v", "lengths", "begins"))
        self.masks = [buffers[name] for name in spec.mask_parameters]
        self.valid: ir.Expr | int = spec.keys
        self.begin: ir.Expr | int = 0  # the first key that is read
        self.y, self.work = buffers["y"], buffers["work"]

    def bind_bounds(self) -> None:
        """Set `valid`, the number of keys that are, and `begin`, where these are operands."""
        if self.lengths is not None:
            length = tirx.min(self.lengths[self.batch], tirx.const(self.spec.keys, "int64"))
            length = tirx.Cast("int32", tirx.max(length, tirx.const(0, "int64")))
            self.valid = T.bind(length if self.rows is None else tirx.min(length, self.rows))
        elif self.rows is not None and not self.spec.causal:
            self.valid = self.rows
        if self.begins is not None:
            last = tirx.Cast("int64", self.valid) - 1
            self.begin = T.bind(tirx.Cast("int32", tirx.max(tirx.min(self.begins[self.batch], last), tirx.const(0, "int64"))))

    def at(self, access: Access, row, group: int = 1) -> ir.Expr:
        """The first element of a row of the head."""
        return access.offset + self.batch * access.batch + self.head // group * access.head + row * access.row

    def scale(self, name: str, begin, distance: int = 0, count: int = 1) -> ir.Expr | None:
        """Those of `count` rows of "k" or "v" in 8 bits, `distance` bytes after `begin`; None of rows of floats."""
        words, access = self.buffers.get(f"{name}_scales"), getattr(self.spec, name)
        if words is None:
            return None
        layout = ByteRows.of_cache(self.spec.depth if name == "k" else self.spec.value_depth)
        return T.bind(words[strided(begin // 4 + (distance // 4 + layout.scale_at(0)), access.row // 4, count)])


class QueryBlock(HeadReader):
    """Queries of one head, in lanes. `emit` of a subclass sets `start`, the first query, too."""

    start: ir.Expr

    def __init__(
        self, spec: AttentionSpec, unit: VectorUnit, blocks: Blocks, buffers: dict[str, tirx.Buffer], work_at, rows=None
    ) -> None:
        super().__init__(spec, unit, buffers, rows)
        self.blocks, self.transposed = blocks, work_at
        self.lanes = blocks.vectors * unit.width
        self.scores = work_at + transposed_rows(spec) * self.lanes
        self.pieces = pieces(self.lanes, unit.width)

    def transpose(self, source: tirx.Buffer, access: Access, depth: int, scale: float) -> None:
        """The block's rows, scaled, as columns of scratch."""
        factor = tirx.const(scale, "float32")
        last = (self.spec.queries if self.rows is None else self.rows) - 1
        with T.serial(self.lanes) as query:
            row = T.bind(self.at(access, tirx.min(self.start + query, last)))
            with T.serial(depth) as i:
                T.buffer_store(self.work, source[row + i] * factor, [self.transposed + i * self.lanes + query])

    def multiply(
        self, acc: Accumulators, size: int, source: tirx.Buffer, begin, distance: int, depth: int, kind: str = "float32"
    ) -> None:
        """Products of `size` rows of `source`, so far apart and of a `kind`, with the block's transposed queries."""
        acc.fill(size, lambda _, lanes: zero(lanes))
        by_lane = self.unit.by_lane or kind != "float32"  # a vector is widened at once
        lane.reduce(
            acc,
            list(range(size)),
            depth,
            lambda row, step, lanes: converted(source[vector(begin + row * distance + step, lanes)], lanes, kind, "float32"),
            lambda step, start, lanes: self.work[vector(self.transposed + step * self.lanes + start, lanes)],
            self.unit.width if by_lane else 1,
        )

    def by_queries(self, shape: tuple[int, ...], tensor: tirx.Buffer, key, start: int, lanes: int) -> ir.Expr:
        """Elements of a tensor [batch or 1, heads or 1, keys, queries or 1] for one key."""
        place = place_of_key(shape, self.batch, self.head, key)
        if shape[-1] == 1:
            return spread(tensor[place], lanes)
        if self.spec.queries < self.lanes:  # lanes past the last query repeat that query
            last = self.spec.queries - 1
            index = [place + min(start + i, last) for i in range(lanes)]
            return tirx.Shuffle([tensor[i] for i in index], list(range(lanes))) if lanes > 1 else tensor[index[0]]
        return tensor[vector(place + self.start + start, lanes)]
