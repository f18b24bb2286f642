"""Loops and stores that every kind of nest is made of."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from ..tiles.vector_math import EXPANSIONS
from .nest import Machine, conditions, constant
from .stages import Axis, contains, substitute

# Less work than this is not worth other threads.
PARALLEL_OPERATIONS = 400_000
TASKS_PER_CORE = 4


def for_loop(axis_var: tirx.Var, extent: ir.Expr | int, body: tirx.Stmt, kind=tirx.ForKind.SERIAL) -> tirx.Stmt:
    """A loop from 0, or its body alone if that runs once."""
    if isinstance(extent, int):
        if extent == 1:
            return substitute(body, {axis_var: constant(0, axis_var)})
        extent = constant(extent, axis_var)
    return tirx.For(axis_var, constant(0, axis_var), extent, kind, body)


def store(buffer: tirx.Buffer, index: ir.Expr, value: ir.Expr, lane: tirx.Var | None = None, lanes: int = 1):
    """(variables to allocate, statement): buffer[index] = value, inside a vectorised loop over `lane` if given.

    Values that are bound at the top of the expression, and results of calls that other calls take, pass through
    variables of `lanes` elements, which LLVM turns back into registers. TVM's simplifier tracks every `Let` as
    its expression, so that chains grow exponentially; the simplifier does not look into memory.
    """
    position = tirx.const(0, "int32") if lane is None else lane
    variables: list[tirx.Buffer] = []
    statements: list[tirx.Stmt] = []

    def keep(expr: ir.Expr) -> ir.Expr:
        variable = tirx.decl_buffer((lanes,), expr.ty.dtype, name="value")
        variables.append(variable)
        statements.append(tirx.BufferStore(variable, expr, [position]))
        return tirx.BufferLoad(variable, [position])

    def keep_nested(call: ir.Call) -> ir.Expr:
        # Arguments come first; a load of a variable already is not changed.
        is_math = isinstance(call.op, ir.Op) and call.op.name in EXPANSIONS
        return keep(call) if is_math and call.ty.dtype == "float32" else call

    def evaluate(expr: ir.Expr) -> ir.Expr:
        while isinstance(expr, tirx.Let):
            expr = substitute(expr.body, {expr.var: keep(evaluate(expr.value))})
        if conditions(expr) or contains(expr, tirx.Let):
            return expr
        return tvm_ffi.structural_map(expr, (ir.Call, keep_nested))

    statements.append(tirx.BufferStore(buffer, evaluate(value), [index]))
    return [tirx.stmt.AllocBuffer(variable) for variable in variables], sequence(statements)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement of one or more."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def fused_loop(axes: Sequence[Axis], body: tirx.Stmt, kind: tirx.ForKind) -> tirx.Stmt:
    """One loop over the product of the axes."""
    if len(axes) == 1:
        return for_loop(axes[0].var, axes[0].extent, body, kind)
    fused = tirx.Var("fused", "int64")
    values, inner = {}, 1
    for axis in reversed(axes):
        position = fused if inner == 1 else tirx.floordiv(fused, constant(inner))
        if axis is not axes[0]:
            position = tirx.floormod(position, constant(axis.extent))
        values[axis.var] = position.astype(axis.var.ty.dtype)
        inner *= axis.extent
    return for_loop(fused, inner, substitute(body, values), kind)


def nested(axes: Sequence[Axis], body: tirx.Stmt, machine: Machine, operations: int) -> tirx.Stmt:
    """Nested loops over axes, of which leading ones run in parallel if the work in all is worth it."""
    single = [axis for axis in axes if axis.extent == 1]
    body = sequence([*(tirx.stmt.Bind(axis.var, tirx.const(0, axis.var.ty.dtype)) for axis in single), body])
    axes = [axis for axis in axes if axis.extent > 1]
    shared = 0
    if machine.cores > 1 and operations >= PARALLEL_OPERATIONS:
        tasks = 1
        while shared < len(axes) and tasks < TASKS_PER_CORE * machine.cores:
            tasks *= axes[shared].extent
            shared += 1
    for axis in reversed(axes[shared:]):
        body = for_loop(axis.var, axis.extent, body)
    return fused_loop(axes[:shared], body, tirx.ForKind.PARALLEL) if shared else body
