"""Frames on the stack that are aligned to vector registers.

LLVM decides whether a function aligns its frame before knowing which registers go there. Calls on x86 align
the stack to 16 bytes only: whether a vector of 64 bytes that is moved to the stack lies in one cache line or in two is then
chance, decided in every process by where its stack begins. A network whose kernels use all registers took 20 % longer in
one process than in the next. A local vector that no optimisation removes makes LLVM align the frame.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ..schedules.tiles.emit import prefetch_line

_CALLS_ALIGN = 16  # bytes, by the calling conventions of x86-64 and AArch64


def AlignStack(vector_nbytes: int) -> tvm.transform.Pass:
    """A TIR pass: the frames of functions, and of the bodies of parallel loops, are aligned to so many bytes."""

    @tirx.transform.prim_func_pass(opt_level=0, name="AlignStack")
    def align(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        if vector_nbytes <= _CALLS_ALIGN:
            return func
        body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: _aligned_loop(loop, vector_nbytes)))
        return func.with_body(_after_vector(body, vector_nbytes))

    return align


def _aligned_loop(loop: tirx.For, nbytes: int) -> tirx.For:
    """A parallel loop's body becomes a function of its own."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    body = _after_vector(loop.body, nbytes)
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step, loop.span
    )


def _after_vector(body: tirx.Stmt, nbytes: int) -> tirx.Stmt:
    """`body`, after a prefetch of a local vector, of a type that kernels do not use: else they would share its place."""
    kept = tirx.decl_buffer((1,), f"int8x{nbytes}", "kept")
    return tirx.SeqStmt([tirx.AllocBuffer(kept), tirx.Evaluate(prefetch_line(kept, 0)), body])
