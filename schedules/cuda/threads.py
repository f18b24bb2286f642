"""Statements as device functions: every iteration of a loop a thread of its own, or everything in one thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

from ..nests.stages import Axis, substitute
from .emit import ceil_div

THREADS = 256  # of a block


def bound(kind: str, extent: int, body: Callable[[tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """A loop whose iterations are blocks or threads: `kind` is "blockIdx.x" or "threadIdx.x"."""
    index = tirx.Var(kind.split(".")[0], "int32")
    axis = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, kind)
    return tirx.For(index, tirx.const(0, "int32"), tirx.const(extent, "int32"), tirx.ForKind.THREAD_BINDING, body(index), axis)


def launched(blocks: int, threads: int, body: Callable[[tirx.Var, tirx.Var], tirx.Stmt]) -> tirx.Stmt:
    """A device function of (block, thread)."""
    return bound("blockIdx.x", blocks, lambda block: bound("threadIdx.x", threads, lambda thread: private(body(block, thread))))


def for_each(axes: Sequence[Axis], body: tirx.Stmt) -> tirx.Stmt:
    """A device function in which a thread does `body` for one point of the axes; neighbours differ in the last axis."""
    points = math.prod(axis.extent for axis in axes)
    threads = min(THREADS, points)

    def at(block: tirx.Var, thread: tirx.Var) -> tirx.Stmt:
        point = block * threads + thread
        inner = at_point(axes, point, body)
        return inner if points % threads == 0 else tirx.IfThenElse(point < points, inner, None)

    return launched(ceil_div(points, threads), threads, at)


def at_point(axes: Sequence[Axis], point: ir.Expr, body: tirx.Stmt) -> tirx.Stmt:
    """`body` at one point of the axes, which is counted over all of them."""
    values = {}
    for axis in reversed(axes):
        extent = tirx.const(axis.extent, "int32")
        value = point if axis is axes[0] else tirx.floormod(point, extent)
        values[axis.var] = value.astype(axis.var.ty.dtype)
        point = tirx.floordiv(point, extent)
    return substitute(body, values)


def private(body: tirx.Stmt) -> tirx.Stmt:
    """`body` with its buffers allocated in a thread's own memory, and its loops without threads and vectors."""
    moved: dict[ir.Var, ir.Var] = {}

    def note(node: tirx.stmt.AllocBuffer) -> None:
        buffer = node.buffer
        if buffer.scope() in ("", "global"):
            moved[buffer] = tirx.decl_buffer(buffer.shape, buffer.dtype, name=buffer.name, scope="local")

    tvm_ffi.structural_walk(body, [(tirx.stmt.AllocBuffer, note)])
    serial = (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED)

    def in_order(loop: tirx.For) -> tirx.For:
        if loop.kind not in serial:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return tvm_ffi.structural_map(body, [(ir.Var, lambda var: moved.get(var, var)), (tirx.For, in_order)])
