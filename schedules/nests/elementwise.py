"""Elementwise stages: boxes of vectors."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import ir, tirx

from ..tiles.rows import cover
from .axes import collapse
from .boxes import partition
from .loops import PARALLEL_OPERATIONS, TASKS_PER_CORE, for_loop, fused_loop, nested, sequence, store
from .nest import Machine, Nest, contiguous_last, count_operations, is_vectorisable
from .stages import Axis, substitute
from .transpose import emit_transposed, transposed_loads


def emit_elementwise(nest: Nest, machine: Machine) -> tirx.Stmt:
    """All boxes of a stage, leading axes that no condition cuts around them."""
    operations = count_operations(nest)
    boxes, uncut = partition(nest)
    if len(boxes) == 1:
        return _emit_box(boxes[0], machine, operations)
    leading = nest.axes[:uncut]
    if math.prod(axis.extent for axis in leading) > 1:
        serial = replace(machine, cores=1)
        body = sequence([_emit_box(replace(box, axes=box.axes[uncut:]), serial, 0) for box in boxes])
        return nested(leading, body, machine, operations)
    return sequence([_emit_box(box, machine, operations * box.points // nest.points) for box in boxes])


def _emit_box(nest: Nest, machine: Machine, operations: int) -> tirx.Stmt:
    nest = collapse(nest)
    if not nest.axes:
        variables, stored = store(nest.buffer, nest.index, nest.value)
        return sequence([*variables, stored])
    nest = contiguous_last(nest)
    turned = transposed_loads(nest, machine)
    if turned is not None:
        return emit_transposed(nest, *turned, machine, operations)
    *outer, last = nest.axes
    if not is_vectorisable(nest, last, machine):
        variables, stored = store(nest.buffer, nest.index, nest.value)
        return nested(nest.axes, sequence([*variables, stored]), machine, operations)
    row = cover(last.extent, machine.lanes)
    dtype = last.var.ty.dtype

    def at(start: ir.Expr) -> tirx.Stmt:
        lane = tirx.Var("lane", dtype)
        values = {last.var: start + lane}
        index, value = substitute(nest.index, values), substitute(nest.value, values)
        variables, stored = store(nest.buffer, index, value, lane, row.lanes)
        return sequence([*variables, for_loop(lane, row.lanes, stored, tirx.ForKind.VECTORIZED)])

    def vectors(first: ir.Expr | None, count: ir.Expr | int) -> tirx.Stmt:
        i = tirx.Var("vector", dtype)
        position = i if first is None else first + i
        return for_loop(i, count, at(position * tirx.const(row.lanes, dtype)))

    tail = [at(tirx.const(row.last, dtype))] if row.overlap else []
    rows = math.prod(axis.extent for axis in outer)
    wanted = TASKS_PER_CORE * machine.cores
    is_parallel = machine.cores > 1 and operations >= PARALLEL_OPERATIONS
    if not is_parallel or rows >= wanted or row.full < 2 * wanted:
        return nested(outer, sequence([vectors(None, row.full), *tail]), machine, operations)
    # Few long rows: their vectors are shared out too.
    per_task = -(-row.full * rows // wanted)
    chunk = Axis(tirx.Var("chunk", dtype), -(-row.full // per_task))
    first = chunk.var * tirx.const(per_task, dtype)
    count: ir.Expr | int = per_task
    if row.full % per_task:
        count = tirx.min(tirx.const(per_task, dtype), tirx.const(row.full, dtype) - first)
    body = [fused_loop([*outer, chunk], vectors(first, count), tirx.ForKind.PARALLEL)]
    if tail:
        body.append(nested(outer, tail[0], replace(machine, cores=1), 0))
    return sequence(body)
