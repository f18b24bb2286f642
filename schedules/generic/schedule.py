"""The fallback: a schedule for every TIR function that the importer and the legaliser can give.

Layers without a kernel of their own (elementwise operators, reductions, changes of layout, gathers, …) arrive
as legalised and fused PrimFuncs. Rules are tried in order:

    stages   the function is a sequence of perfect nests: stages are merged and their loops made anew (`nests`)
    blocks   blocks of any form, such as an arg-max: the outer loops run in parallel where TVM allows it
    unchanged

In all of them exponentials and the like become vectorisable arithmetic, and intermediate tensors scratch; indices that depend
on values are clamped (`guard.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from .. import nests
from ..tiles import vector_math
from . import guard, scratch
from .merge import merge
from .parse import parse
from .scratch import Scratch

# Iterations of a block below which it stays serial.
_PARALLEL_ITERATIONS = 100_000
# Calls that only a process with the whole TVM runtime can answer.
_PACKED_CALLS = frozenset(
    f"tirx.{prefix}call_{kind}" for prefix in ("", "tvm_") for kind in ("packed", "cpacked")
) | frozenset(f"tirx.{prefix}call_{kind}_lowered" for prefix in ("", "tvm_") for kind in ("packed", "cpacked"))


class UnsupportedKernelError(Exception):
    """A function that cannot run where only the kernels and the runtime of flexcomp are."""


class Target(Protocol):
    """The properties of a target for the scheduler."""

    vector_width: int  # floats
    vector_registers: int
    num_cores: int
    half: str  # the type of 16 bits that kernels compute in; empty: none


@dataclass(frozen=True)
class Scheduled:
    """A PrimFunc ready to compile. Its parameters: inputs…, outputs…, then one buffer per scratch."""

    func: tirx.PrimFunc
    scratch: tuple[Scratch, ...]


Rule = Callable[[tirx.PrimFunc, Target], "Scheduled | None"]


def schedule(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Schedule a function (inputs…, outputs…) of static shapes.

    Raises UnsupportedKernelError for calls of functions of TVM's runtime.
    """
    packed = packed_calls(func)
    if packed:
        raise UnsupportedKernelError(f"the kernel calls {', '.join(packed)}, which only TVM's own runtime has")
    func = guard.clamp_indices(func)
    for rule in RULES:
        scheduled = rule(func, target)
        if scheduled is not None:
            return Scheduled(guard.define(vector_math.expand(vector_math.keep_nan(scheduled.func))), scheduled.scratch)
    raise AssertionError("the last rule takes every function")


def packed_calls(func: tirx.PrimFunc) -> list[str]:
    """Names of the packed functions that `func` calls, sorted."""
    names: set[str] = set()

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name in _PACKED_CALLS:
            name = call.args[0]
            names.add(name.value if isinstance(name, ir.StringImm) else "a packed function")

    tvm_ffi.structural_walk(func.body, (ir.Call, visit))
    return sorted(names)


def _by_stages(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    parsed = parse(func)
    if parsed is None:
        return None
    merged = merge(parsed, func.body.block.alloc_buffers)
    written = {stage.buffer for stage in merged}
    kept = [buffer for buffer in func.body.block.alloc_buffers if buffer in written]
    arguments = [*func.params, *kept]
    flat = {buffer: _flat(buffer) for buffer in arguments}
    declared = [tirx.stmt.DeclBuffer(view, data=tirx.buffer.buffer_data(buffer)) for buffer, view in flat.items()]
    machine = nests.Machine(target.vector_width, target.vector_registers, target.num_cores, target.half)
    loops = [nests.emit(stage, flat, machine) for stage in merged]
    body = tirx.SeqStmt([*declared, *loops])
    result = tirx.PrimFunc(arguments, body, func.ret_type, func.attrs)
    return Scheduled(result, tuple(Scratch.of(buffer) for buffer in kept))


def _flat(buffer: tirx.Buffer) -> tirx.Buffer:
    extent = math.prod(int(e) for e in buffer.shape)
    return tirx.decl_buffer((extent,), buffer.dtype, name=f"{buffer.name}_flat")


def _by_blocks(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    if not isinstance(func.body, s_tir.SBlockRealize) or target.num_cores == 1:
        return None
    schedule = s_tir.Schedule(tvm.IRModule({"main": func}))
    root = schedule.get_sblock(func.body.block.name_hint)
    for block in schedule.get_child_blocks(root):
        _run_parallel(schedule, block)
    return Scheduled(*scratch.lift(schedule.mod["main"]))


def _run_parallel(schedule: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> None:
    loops = schedule.get_loops(block)
    if not loops or not all(isinstance(schedule.get(loop).extent, tirx.IntImm) for loop in loops):
        return
    if math.prod(int(schedule.get(loop).extent) for loop in loops) < _PARALLEL_ITERATIONS:
        return
    for loop in loops:
        if int(schedule.get(loop).extent) == 1:
            continue
        try:
            schedule.parallel(loop)
        except s_tir.ScheduleError:
            return  # a reduction, or not provably independent
        return


def _as_it_is(func: tirx.PrimFunc, target: Target) -> Scheduled:
    return Scheduled(*scratch.lift(func))


RULES: tuple[Rule, ...] = (_by_stages, _by_blocks, _as_it_is)
