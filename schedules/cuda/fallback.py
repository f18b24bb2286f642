"""The fallback for GPUs: device functions for every TIR function that the importer, the legaliser and families for CPUs give.

Rules are tried in order, as `schedules/generic` does for CPUs:

    stages    the function is a sequence of perfect nests: stages are merged; a thread for every element that a stage writes, or
              a block of threads for every result of a long reduction
    blocks    blocks of any form, such as an arg-max: a thread for every iteration of the loops that TVM proves independent
    as it is  statements in their order; of a parallel loop every iteration is a thread, and anything else is one thread

The last rule is slow, and right.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..generic import guard, scratch
from ..generic.merge import merge
from ..generic.parse import parse
from ..generic.schedule import Scheduled, UnsupportedKernelError, packed_calls
from ..generic.scratch import Scratch
from ..nests.loops import sequence
from ..nests.stages import loads, substitute
from ..tiles import vector_math
from .architecture import Architecture
from .stages import emit
from .threads import THREADS, launched


def schedule(func: tirx.PrimFunc, architecture: Architecture) -> Scheduled:
    """Device functions of a function (inputs…, outputs…) of static shapes, with a parameter for each scratch at the end.

    Raises UnsupportedKernelError for calls of functions of TVM's runtime.
    """
    packed = packed_calls(func)
    if packed:
        raise UnsupportedKernelError(f"the kernel calls {', '.join(packed)}, which only TVM's own runtime has")
    func = guard.clamp_indices(_plain(func))
    for rule in (_by_stages, _by_blocks, _as_it_is):
        scheduled = rule(func, architecture)
        if scheduled is not None:
            return Scheduled(guard.define(vector_math.expand(vector_math.keep_nan(scheduled.func))), scheduled.scratch)
    raise AssertionError("the last rule takes every function")


def _by_stages(func: tirx.PrimFunc, architecture: Architecture) -> Scheduled | None:
    parsed = parse(func)
    if parsed is None:
        return None
    merged = merge(parsed, func.body.block.alloc_buffers)
    written = {stage.buffer for stage in merged}
    kept = [buffer for buffer in func.body.block.alloc_buffers if buffer in written]
    arguments = [*func.params, *kept]
    flat = {b: tirx.decl_buffer((math.prod(map(int, b.shape)),), b.dtype, name=f"{b.name}_flat") for b in arguments}
    declared = [tirx.stmt.DeclBuffer(view, data=tirx.buffer.buffer_data(buffer)) for buffer, view in flat.items()]
    body = tirx.SeqStmt([*declared, *(emit(stage, flat, architecture) for stage in merged)])
    return Scheduled(tirx.PrimFunc(arguments, body, func.ret_type, func.attrs), tuple(Scratch.of(buffer) for buffer in kept))


def _by_blocks(func: tirx.PrimFunc, architecture: Architecture) -> Scheduled | None:
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    lifted, kept = scratch.lift(func)
    plan = s_tir.Schedule(tvm.IRModule({"main": lifted}))
    blocks = plan.get_child_blocks(plan.get_sblock(lifted.body.block.name_hint))
    if not blocks:
        return None  # loops written by hand, in a block of their own
    for block in blocks:
        _bind(plan, block)
    return Scheduled(plan.mod["main"], kept)


def _bind(plan: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    """Threads for the leading loops that are independent of each other; one thread if there are none."""
    independent = []
    loops = plan.get_loops(block)
    for loop in loops:
        try:
            plan.copy().parallel(loop)
        except s_tir.ScheduleError:
            break  # a reduction, or not provably independent
        independent.append(loop)
    every = plan.fuse(*independent) if independent else plan.add_unit_loop(loops[0] if loops else block)
    outer, inner = plan.split(every, [None, min(THREADS, int(plan.get(every).extent))])
    plan.bind(outer, "blockIdx.x")
    plan.bind(inner, "threadIdx.x")


def _as_it_is(func: tirx.PrimFunc, architecture: Architecture) -> Scheduled:
    lifted, kept = scratch.lift(func)
    return Scheduled(as_threads(lifted), kept)


def as_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function of loops written by hand, as device functions: one for each of its statements, in their order."""
    func = _plain(func)
    body = func.body.block.body if isinstance(func.body, s_tir.SBlockRealize) else func.body
    return tirx.PrimFunc(func.params, _launches(body), func.ret_type, func.attrs)


def _plain(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with tensors that begin where their data does, and whose names are no ONNX names, but such as C has."""
    plain = {
        param: tirx.decl_buffer(param.shape, param.dtype, name=f"p{number}")
        for number, param in enumerate(func.params)
        if tirx.is_buffer_var(param)
    }
    params = [plain.get(param, param) for param in func.params]
    return tirx.PrimFunc(params, substitute(func.body, plain), func.ret_type, func.attrs)


def is_bound(func: tirx.PrimFunc) -> bool:
    """Whether loops of a function are bound to threads."""
    found: list[bool] = []
    kinds = [
        (tirx.For, lambda loop: found.append(loop.kind == tirx.ForKind.THREAD_BINDING)),
        (tirx.AttrStmt, lambda node: found.append(node.attr_key == "thread_extent")),
    ]
    tvm_ffi.structural_walk(func.body, kinds)
    return any(found)


def _launches(stmt: tirx.Stmt) -> tirx.Stmt:
    if isinstance(stmt, tirx.stmt.SeqStmt) and not any(map(_is_of_a_thread, stmt.seq)):
        return sequence([part if _is_declaration(part) else _launches(part) for part in stmt.seq])
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL and isinstance(stmt.extent, tirx.IntImm):
        return _parallel(stmt)
    return launched(1, 1, lambda block, thread: stmt)


def _is_declaration(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, (tirx.stmt.DeclBuffer, tirx.stmt.Bind))


def _is_of_a_thread(stmt: tirx.Stmt) -> bool:
    """Whether the statements after this one need the same thread: this one allocates, or reads memory."""
    return isinstance(stmt, tirx.stmt.AllocBuffer) or (isinstance(stmt, tirx.stmt.Bind) and bool(loads(stmt.value)))


def _parallel(loop: tirx.For) -> tirx.Stmt:
    tasks = int(loop.extent)
    # Tasks are whole rows, each of a thread: many blocks of few threads keep more multiprocessors busy.
    threads = min(32, tasks)

    def of(block: tirx.Var, thread: tirx.Var) -> tirx.Stmt:
        task = block * threads + thread
        body = substitute(loop.body, {loop.loop_var: loop.min + task.astype(loop.loop_var.ty.dtype)})
        return body if tasks % threads == 0 else tirx.IfThenElse(task < tasks, body, None)

    return launched(math.ceil(tasks / threads), threads, of)


__all__ = ["Scheduled", "UnsupportedKernelError", "as_threads", "schedule"]
