"""Reads a legalised PrimFunc as a list of stages: the form in which the generic scheduler rewrites it.

Every TIR function that a tensor expression gives is a sequence of perfect loop nests, each with one block that stores one
element. A function of another form (loops written by hand in the legaliser, external calls) has no stages.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..nests.stages import Axis, Reduction, Stage, is_constant, is_zero, loads, replace_loads, substitute, uses


def parse(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of `func` in order; None if it has another form."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    root = func.body.block
    if root.iter_vars or root.match_buffers or root.init is not None:
        return None
    nests = root.body.seq if isinstance(root.body, tirx.stmt.SeqStmt) else [root.body]
    stages: list[Stage] = []
    for nest in nests:
        parsed = _parse_nest(nest)
        if parsed is None:
            return None
        stages += parsed
    written = [stage.buffer for stage in stages]
    if len(set(written)) != len(written):
        return None
    return stages


def _parse_nest(stmt: tirx.Stmt) -> list[Stage] | None:
    """The stages of one nest: several if its block stores to several buffers that do not depend on each other."""
    loops: list[Axis] = []
    while isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or not is_zero(stmt.min) or not isinstance(stmt.extent, tirx.IntImm):
            return None
        if stmt.step is not None or int(stmt.extent) < 1:
            return None
        loops.append(Axis(stmt.loop_var, int(stmt.extent)))
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or not _is_true(stmt.predicate):
        return None
    block = stmt.block
    if block.alloc_buffers or block.match_buffers:
        return None
    bound = {var.var: value for var, value in zip(block.iter_vars, stmt.iter_values, strict=True)}
    reduced = [value for var, value in zip(block.iter_vars, stmt.iter_values, strict=True) if _is_reduced(var)]
    reduce_axes = tuple(axis for axis in loops if any(uses(value, [axis.var]) for value in reduced))
    axes = tuple(axis for axis in loops if axis not in reduce_axes)
    stores = _stores(block.body, bound)
    inits = [] if block.init is None else _stores(block.init, bound)
    if not stores or inits is None or (reduce_axes and not inits):
        return None
    stages = []
    for store in stores:
        others = [other.buffer for other in stores if other is not store]
        if any(load.source in others for load in loads(store.value)):
            return None
        if any(uses(index, [axis.var for axis in reduce_axes]) for index in store.indices):
            return None
        if inits:
            init = next((init.value for init in inits if init.buffer.same_as(store.buffer)), None)
            stage = _reduction_stage(axes, reduce_axes, store, init)
        elif any(load.source.same_as(store.buffer) for load in loads(store.value)):
            stage = None
        else:
            stage = Stage(axes, store.buffer, tuple(store.indices), store.value)
        if stage is None:
            return None
        stages.append(stage)
    return stages


def _stores(body: tirx.Stmt, bound: Mapping[tirx.Var, ir.Expr]) -> list[tirx.BufferStore] | None:
    """The stores of a block whose body consists of these and of bindings, which are resolved; None otherwise."""
    values = dict(bound)
    stores = []
    for stmt in body.seq if isinstance(body, tirx.stmt.SeqStmt) else [body]:
        if isinstance(stmt, tirx.stmt.Bind):
            values[stmt.var] = substitute(stmt.value, values)
        elif isinstance(stmt, tirx.BufferStore):
            indices = [substitute(index, values) for index in stmt.indices]
            stores.append(tirx.BufferStore(stmt.buffer, substitute(stmt.value, values), indices))
        else:
            return None
    return stores


def _reduction_stage(
    axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...], store: tirx.BufferStore, init: ir.Expr | None
) -> Stage | None:
    if init is None or not is_constant(init):
        return None
    accumulator = tirx.Var("accumulator", store.buffer.dtype)

    def own(load: ir.TensorLoad) -> ir.Expr:
        if not load.source.same_as(store.buffer):
            return load
        same = all(tvm_ffi.structural_equal(a, b) for a, b in zip(load.indices, store.indices, strict=True))
        return accumulator if same else load

    update = replace_loads(store.value, own)
    if any(load.source.same_as(store.buffer) for load in loads(update)):
        return None
    reduction = Reduction(reduce_axes, init, update, accumulator)
    return Stage(axes, store.buffer, tuple(store.indices), accumulator, reduction)


def _is_true(expr: ir.Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 1


def _is_reduced(var: tirx.IterVar) -> bool:
    return var.iter_type == tirx.IterVar.CommReduce
