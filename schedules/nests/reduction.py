"""Reductions: which accumulators a task holds in registers."""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ..tiles.rows import cover
from .axes import collapse
from .nest import (
    Machine,
    Nest,
    coefficients,
    conditions,
    contiguous_last,
    count_operations,
    has_wide_types,
    is_vectorisable,
)
from .stages import Axis, loads, uses
from .tiles import Tile, emit_tiles

_CHAINS = 4
_SHORT = 100  # expressions within a term; sampling between pixels takes thousands


def emit_reduction(nest: Nest, machine: Machine) -> tirx.Stmt:
    """Lanes along the store, along a reduce axis, or scalars, in this order."""
    operations = count_operations(nest)
    # Tiles are fitted to floats: of wider numbers a vector holds fewer.
    itemsize = nest.reduction.accumulator.ty.dtype.itemsize
    machine = replace(machine, lanes=max(1, machine.lanes * 4 // max(itemsize, 4)))
    nest = collapse(nest)
    if nest.axes:
        nest = contiguous_last(nest)
    along = _lane_axis(nest, machine)
    last = nest.axes[-1] if nest.axes else None
    if last is not None and is_vectorisable(nest, last, machine) and (along is None or last.extent >= machine.lanes):
        lanes = cover(last.extent, machine.lanes).lanes
        tile = _choose_tile(nest, last, lanes, machine)
        return emit_tiles(nest, tile, None, machine, operations)
    if along is not None:
        lanes = cover(along.extent, machine.lanes).lanes
        chains = min(_CHAINS, along.extent // lanes)
        tile = replace(_choose_tile(nest, None, lanes, machine), vectors=chains)
        if tile.rows > 1:
            tile = replace(tile, vectors=1)
        return emit_tiles(nest, tile, along, machine, operations)
    tile = _choose_tile(nest, None, 1, machine)
    if tile.row_axis is None and last is not None and _is_short(nest.reduction.term):
        # Nothing is shared, but independent scalars hide the latency of their updates.
        tile = replace(tile, row_axis=last, rows=_even(last.extent, 2 * _CHAINS))
    return emit_tiles(nest, tile, None, machine, operations)


def _is_short(term: ir.Expr) -> bool:
    """Whether a term is computed about as fast as it is added up. Others only make code long: TVM takes seconds for some."""
    parts: list[ir.Expr] = []
    tvm_ffi.structural_walk(term, [(ir.Expr, parts.append)])
    return len(parts) <= _SHORT


def _lane_axis(nest: Nest, machine: Machine) -> Axis | None:
    """The reduce axis along which lanes can accumulate: the largest that all loads walk contiguously."""
    reduction = nest.reduction
    if reduction.kind is None or not has_wide_types(nest, machine):
        return None
    fitting = []
    for axis in reduction.axes:
        factors = [coefficients(load.indices[0], [axis]) for load in loads(reduction.term)]
        conditional = [c for c in conditions(reduction.term) if uses(c, [axis.var])]
        if (
            all(f is not None and f[0] in (0, 1) for f in factors)
            and [1] in factors
            and not conditional
            and axis.extent > 1
        ):
            fitting.append(axis)
    return max(fitting, key=lambda axis: axis.extent, default=None)


def _choose_tile(nest: Nest, vector_axis: Axis | None, lanes: int, machine: Machine) -> Tile:
    """As many accumulators as registers allow, along the axis that shares the most loads between its rows."""
    accumulators = 12 if machine.registers >= 32 else 8
    term_loads = loads(nest.reduction.update)
    best: tuple[int, Axis] | None = None
    for axis in nest.axes:
        if axis is vector_axis:
            continue
        shared = sum((coefficients(load.indices[0], [axis]) or [1])[0] == 0 for load in term_loads)
        if shared and (best is None or shared >= best[0]):
            best = (shared, axis)
    vectors = 1 if vector_axis is None else -(-vector_axis.extent // lanes)
    if best is None:
        return Tile(None, 1, vector_axis, _even(vectors, 4), lanes)
    columns = 1 if vector_axis is None else _even(vectors, 2)
    rows = _even(best[1].extent, max(1, (accumulators if vector_axis is not None else 4) // columns))
    return Tile(best[1], rows, vector_axis, columns, lanes)


def _even(extent: int, most: int) -> int:
    """The tile of at most `most` that covers `extent` in the fewest steps and then with the least overlap."""
    steps = -(-extent // most)
    return -(-extent // steps)
