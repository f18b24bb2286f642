"""Reductions: the loops around a tile of accumulators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ..tiles.rows import cover
from .loops import for_loop, nested, sequence, store
from .nest import Machine, Nest, new_axis
from .stages import Axis, substitute

# Buffers below 1 KiB are registers or stack, larger ones are requested from the runtime.
_MAX_TILE_BYTES = 1023


@dataclass(frozen=True)
class Tile:
    """Accumulators of one task: `rows` positions of `row_axis` × `vectors` vectors of `lanes` elements."""

    row_axis: Axis | None
    rows: int
    vector_axis: Axis | None  # None: lanes lie along a reduce axis, or there is one lane
    vectors: int
    lanes: int


def emit_tiles(nest: Nest, tile: Tile, along: Axis | None, machine: Machine, operations: int) -> tirx.Stmt:
    """All tiles of a reduction; `along` is the reduce axis of the lanes, if they lie along one."""
    reduction = nest.reduction
    dtype = reduction.accumulator.ty.dtype
    count = tile.rows * tile.vectors * tile.lanes
    assert count * dtype.itemsize <= _MAX_TILE_BYTES, "the register tile is no stack memory"
    registers = tirx.decl_buffer((count,), dtype, name="registers")
    statements: list[tirx.Stmt] = [tirx.stmt.AllocBuffer(registers)]
    outer = [axis for axis in nest.axes if axis is not tile.row_axis and axis is not tile.vector_axis]
    starts: dict[tirx.Var, ir.Expr] = {}
    for axis, size in ((tile.row_axis, tile.rows), (tile.vector_axis, tile.vectors * tile.lanes)):
        if axis is None:
            continue
        step = new_axis(-(-axis.extent // size), axis, "tile")
        start = step.var * tirx.const(size, axis.var.ty.dtype)
        if axis.extent % size and axis.extent >= size:
            start = tirx.min(start, tirx.const(axis.extent - size, axis.var.ty.dtype))
        outer.append(step)
        bound = tirx.Var("start", axis.var.ty.dtype)
        if step.extent == 1:
            start = tirx.const(0, axis.var.ty.dtype)
        statements.append(tirx.stmt.Bind(bound, start))
        starts[axis.var] = bound

    def slot(row: int, vector: int, lane: ir.Expr) -> ir.Expr:
        return tirx.const((row * tile.vectors + vector) * tile.lanes, lane.ty.dtype) + lane

    def each(make: Callable[[int, int, tirx.Var], tirx.Stmt], vectors: Sequence[int]) -> list[tirx.Stmt]:
        made = []
        for row, vector in itertools.product(range(tile.rows), vectors):
            lane = tirx.Var("lane", "int32" if tile.vector_axis is None else tile.vector_axis.var.ty.dtype)
            made.append(for_loop(lane, tile.lanes, make(row, vector, lane), tirx.ForKind.VECTORIZED))
        return made

    def place(row: int, vector: int, lane: ir.Expr) -> dict[tirx.Var, ir.Expr]:
        values = dict(starts)
        if tile.row_axis is not None:
            values[tile.row_axis.var] = starts[tile.row_axis.var] + tirx.const(row, tile.row_axis.var.ty.dtype)
        if tile.vector_axis is not None:
            # The last vector of a tile longer than the axis ends with the axis.
            offset = min(vector * tile.lanes, tile.vector_axis.extent - tile.lanes)
            offset = tirx.const(offset, tile.vector_axis.var.ty.dtype)
            values[tile.vector_axis.var] = starts[tile.vector_axis.var] + offset + lane
        return values

    every = range(tile.vectors)
    init = reduction.init
    statements += each(lambda row, vector, lane: tirx.BufferStore(registers, init, [slot(row, vector, lane)]), every)
    statements.append(_reduce_loops(nest, tile, along, registers, slot, each, place))
    if along is not None:
        statements += _combine_lanes(reduction, tile, registers, slot, each)

    variables: list[tirx.Stmt] = []

    def stored(row: int, vector: int, lane: ir.Expr) -> tirx.Stmt:
        values = place(row, vector, lane)
        values[reduction.accumulator] = tirx.BufferLoad(registers, [slot(row, vector, lane)])
        lanes = tile.lanes if along is None else 1
        kept, statement = store(nest.buffer, substitute(nest.index, values), substitute(nest.value, values), lane, lanes)
        variables.extend(kept)
        return statement

    first = tirx.const(0, "int32")
    results = each(stored, every) if along is None else [stored(row, 0, first) for row in range(tile.rows)]
    return nested(outer, sequence([*variables, *statements, *results]), machine, operations)


def _reduce_loops(nest, tile, along, registers, slot, each, place) -> tirx.Stmt:
    """All reduce axes around the updates of a tile's accumulators."""
    reduction = nest.reduction

    def update(row: int, vector: int, lane: ir.Expr, position: ir.Expr | None, masked: int = 0) -> tirx.Stmt:
        values = place(row, vector, lane)
        if position is not None:
            values[along.var] = position
        old = tirx.BufferLoad(registers, [slot(row, vector, lane)])
        if masked:
            term = substitute(reduction.term, values)
            neutral = tirx.const(0, term.ty.dtype) if reduction.kind == "sum" else reduction.init
            term = tirx.Select(lane >= tirx.const(masked, lane.ty.dtype), term, neutral)
            value = type(reduction.update)(old, term)
        else:
            value = substitute(reduction.update, values | {reduction.accumulator: old})
        return tirx.BufferStore(registers, value, [slot(row, vector, lane)])

    if along is None:
        body = sequence(each(lambda row, v, lane: update(row, v, lane, None), range(tile.vectors)))
        for axis in reversed(reduction.axes):
            body = for_loop(axis.var, axis.extent, body)
        return body
    row = cover(along.extent, tile.lanes)
    dtype = along.var.ty.dtype
    group = tile.vectors * tile.lanes
    step = tirx.Var("step", dtype)

    def at(base: ir.Expr, chains: int) -> list[tirx.Stmt]:
        return each(
            lambda r, v, lane: update(r, v, lane, base + tirx.const(v * tile.lanes, dtype) + lane.astype(dtype)),
            range(chains),
        )

    groups, rest = divmod(row.full, tile.vectors)
    parts = [for_loop(step, groups, sequence(at(step * tirx.const(group, dtype), tile.vectors)))] if groups else []
    if rest:
        parts += at(tirx.const(groups * group, dtype), rest)
    if row.overlap:
        last = tirx.const(row.last, dtype)
        parts += each(lambda r, v, lane: update(r, v, lane, last + lane.astype(dtype), row.overlap), [0])
    body = sequence(parts)
    for axis in reversed([axis for axis in reduction.axes if axis is not along]):
        body = for_loop(axis.var, axis.extent, body)
    return body


def _combine_lanes(reduction, tile, registers, slot, each) -> list[tirx.Stmt]:
    """Leave the result of every row in lane 0 of its first vector."""
    combine = type(reduction.update)

    def load(row: int, vector: int, lane: ir.Expr) -> ir.Expr:
        return tirx.BufferLoad(registers, [slot(row, vector, lane)])

    statements: list[tirx.Stmt] = []
    for vector in range(1, tile.vectors):
        statements += each(
            lambda row, _, lane, v=vector: tirx.BufferStore(
                registers, combine(load(row, 0, lane), load(row, v, lane)), [slot(row, 0, lane)]
            ),
            [0],
        )
    half = tile.lanes // 2
    while half:
        for row in range(tile.rows):
            lane = tirx.Var("lane", "int32")
            value = combine(load(row, 0, lane), load(row, 0, lane + tirx.const(half, "int32")))
            store = tirx.BufferStore(registers, value, [slot(row, 0, lane)])
            statements.append(for_loop(lane, half, store, tirx.ForKind.VECTORIZED))
        half //= 2
    return statements
