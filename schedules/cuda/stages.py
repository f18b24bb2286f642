"""A stage of the generic scheduler (`nests/stages.py`) as a device function."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import ir, tirx

from ..nests.axes import collapse, split
from ..nests.loops import for_loop, sequence, store
from ..nests.nest import Nest, contiguous_last, nest_of
from ..nests.stages import Axis, Stage, substitute
from .architecture import WARP, Architecture
from .threads import THREADS, at_point, for_each, launched

# Below so many terms a thread reduces a result by itself, however few results there are.
_FEW_TERMS = 4 * WARP
_IDENTITY = {"sum": 0.0, "max": -math.inf, "min": math.inf}


def emit(stage: Stage, flat: dict[tirx.Buffer, tirx.Buffer], architecture: Architecture) -> tirx.Stmt:
    """The device function of one stage; `flat` gives the one-dimensional view of every buffer."""
    nest = collapse(split(nest_of(stage, flat)))
    if not nest.axes:
        nest = replace(nest, axes=(Axis(tirx.Var("once", "int64"), 1),))
    nest = contiguous_last(nest)
    if nest.reduction is None:
        return for_each(nest.axes, _stored(nest, nest.value))
    terms = math.prod(axis.extent for axis in nest.reduction.axes)
    enough = nest.points >= architecture.multiprocessors * architecture.threads // 2
    if enough or terms < _FEW_TERMS or not _is_float(nest) or nest.reduction.kind is None:
        return for_each(nest.axes, _reduced(nest))
    return _by_blocks_of_threads(nest, terms)


def _stored(nest: Nest, value: ir.Expr) -> tirx.Stmt:
    variables, stored = store(nest.buffer, nest.index, value)
    return sequence([*variables, stored])


def _is_float(nest: Nest) -> bool:
    return nest.reduction.accumulator.ty.dtype == "float32"


def _accumulator(nest: Nest) -> tirx.Buffer:
    return tirx.decl_buffer((1,), nest.reduction.accumulator.ty.dtype, name="sum", scope="local")


def _reduced(nest: Nest) -> tirx.Stmt:
    """All terms of a result, one after the other."""
    reduction, kept = nest.reduction, _accumulator(nest)
    so_far = tirx.BufferLoad(kept, [0])
    values = {reduction.accumulator: so_far}
    variables, update = store(kept, tirx.const(0, "int32"), substitute(reduction.update, values))
    loops = sequence([*variables, update])
    for axis in reversed(reduction.axes):
        loops = for_loop(axis.var, axis.extent, loops)
    begin = tirx.BufferStore(kept, reduction.init, [0])
    return sequence([tirx.stmt.AllocBuffer(kept), begin, loops, _stored(nest, substitute(nest.value, values))])


def _by_blocks_of_threads(nest: Nest, terms: int) -> tirx.Stmt:
    """A block for every result: its threads reduce every so many-th term, and then their sums by halves in shared memory."""
    reduction, kept = nest.reduction, _accumulator(nest)
    threads = min(THREADS, 1 << (terms // 2).bit_length())
    room = tirx.decl_buffer((threads,), "float32", name="room", scope="shared")
    so_far, combine = tirx.BufferLoad(kept, [0]), type(reduction.update)

    def of(block: tirx.Var, thread: tirx.Var) -> tirx.Stmt:
        turn = tirx.Var("turn", "int32")
        term = turn * threads + thread
        variables, update = store(kept, tirx.const(0, "int32"), substitute(reduction.update, {reduction.accumulator: so_far}))
        body = at_point(reduction.axes, term, sequence([*variables, update]))
        body = body if terms % threads == 0 else tirx.IfThenElse(term < terms, body, None)
        # The first value of an accumulator is added up once, by the first thread.
        begin = tirx.Select(thread == 0, reduction.init, tirx.const(_IDENTITY[reduction.kind], "float32"))
        statements = [
            tirx.stmt.AllocBuffer(kept),
            tirx.stmt.AllocBuffer(room),
            tirx.BufferStore(kept, begin, [0]),
            for_loop(turn, math.ceil(terms / threads), body),
            tirx.BufferStore(room, so_far, [thread]),
        ]
        distance = threads // 2
        while distance:
            both = combine(tirx.BufferLoad(room, [thread]), tirx.BufferLoad(room, [thread + distance]))
            halve = tirx.IfThenElse(thread < distance, tirx.BufferStore(room, both, [thread]), None)
            statements += [_barrier(), halve]
            distance //= 2
        # The first thread reads its own result.
        total = {reduction.accumulator: tirx.BufferLoad(room, [0])}
        stored = _stored(nest, substitute(nest.value, total))
        return at_point(nest.axes, block, sequence([*statements, tirx.IfThenElse(thread == 0, stored, None)]))

    return launched(nest.points, threads, of)


def _barrier() -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
