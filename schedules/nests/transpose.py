"""Loads that are contiguous along another axis than the store: squares of vectors, transposed in registers."""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

from .loops import for_loop, nested, sequence, store
from .nest import Machine, Nest, coefficients, conditions, has_wide_types, load_coefficients, new_axis
from .stages import Axis, replace_loads, substitute


def transposed_loads(nest: Nest, machine: Machine) -> tuple[Axis, list[ir.TensorLoad]] | None:
    """The axis along which loads are contiguous that the store strides along, and these loads; None without."""
    last = nest.axes[-1]
    lanes = machine.lanes
    if last.extent < lanes or not has_wide_types(nest, machine) or (coefficients(nest.index, [last]) or [0])[0] != 1:
        return None
    across: Axis | None = None
    turned: list[ir.TensorLoad] = []
    for load, factors in load_coefficients(nest, nest.axes):
        if factors is None:
            return None
        if factors[-1] in (0, 1):
            continue
        contiguous = [axis for axis, f in zip(nest.axes[:-1], factors, strict=False) if f == 1]
        if len(contiguous) != 1 or contiguous[0].extent < lanes or load.ty.dtype.itemsize != 4:
            return None
        if across is not None and contiguous[0] is not across:
            return None
        across = contiguous[0]
        turned.append(load)
    if across is None or len(turned) > 2 or any(conditions(expr) for expr in nest.expressions):
        return None
    return across, turned


def emit_transposed(
    nest: Nest, across: Axis, turned: list[ir.TensorLoad], machine: Machine, operations: int
) -> tirx.Stmt:
    """Squares of `lanes` × `lanes` elements: vectors are loaded along `across`, stored along the last axis."""
    lanes = machine.lanes
    last = nest.axes[-1]
    tiles: list[Axis] = []
    starts: dict[tirx.Var, ir.Expr] = {}
    for axis in (across, last):
        tile = new_axis(-(-axis.extent // lanes), axis, "tile")
        start = tile.var * tirx.const(lanes, axis.var.ty.dtype)
        if axis.extent % lanes:
            start = tirx.min(start, tirx.const(axis.extent - lanes, axis.var.ty.dtype))
        tiles.append(tile)
        starts[axis.var] = start
    statements: list[tirx.Stmt] = []
    row_start, column_start = (tirx.Var(name, axis.var.ty.dtype) for name, axis in (("row", across), ("col", last)))
    statements += [tirx.stmt.Bind(row_start, starts[across.var]), tirx.stmt.Bind(column_start, starts[last.var])]

    def bound(value: ir.Expr) -> tirx.Var:
        var = tirx.Var("v", value.ty.dtype)
        statements.append(tirx.stmt.Bind(var, value))
        return var

    columns: list[list[tirx.Var]] = []  # per turned load: vectors along the last axis
    squares: list[tirx.Buffer] = []
    for load in turned:
        vectors = []
        for k in range(lanes):
            index = substitute(
                load.indices[0],
                {across.var: row_start, last.var: column_start + tirx.const(k, last.var.ty.dtype)},
            )
            ramp = tirx.Ramp(index, tirx.const(1, index.ty.dtype), lanes)
            vectors.append(bound(tirx.BufferLoad(load.source, [ramp])))
        columns.append(_transpose(vectors, bound))
        squares.append(tirx.decl_buffer((lanes,), load.ty.dtype, name="column"))
    ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
    for k in range(lanes):
        # The vector goes through a variable of `lanes` elements, which LLVM turns back into a register.
        for column, vectors in zip(squares, columns, strict=True):
            statements.append(tirx.BufferStore(column, vectors[k], [ramp]))
        lane = tirx.Var("lane", last.var.ty.dtype)
        values = {across.var: row_start + tirx.const(k, across.var.ty.dtype), last.var: column_start + lane}

        def of(load: ir.TensorLoad, lane: tirx.Var = lane) -> ir.Expr:
            for own, column in zip(turned, squares, strict=True):
                if tvm_ffi.structural_equal(load, own):
                    return tirx.BufferLoad(column, [lane])
            return load

        value = substitute(replace_loads(nest.value, of), values)
        variables, stored = store(nest.buffer, substitute(nest.index, values), value, lane, lanes)
        statements += [*variables, for_loop(lane, lanes, stored, tirx.ForKind.VECTORIZED)]
    statements = [*(tirx.stmt.AllocBuffer(column) for column in squares), *statements]
    outer = [axis for axis in nest.axes if axis is not across and axis is not last]
    return nested([*outer, *tiles], sequence(statements), machine, operations)


def _transpose(vectors: list[tirx.Var], bound: Callable[[ir.Expr], tirx.Var]) -> list[tirx.Var]:
    """The columns of a square of vectors, by log2(n) rounds of shuffles of pairs."""
    count = len(vectors)
    half = count // 2
    while half:
        result = list(vectors)
        # Swap the off-diagonal blocks of every 2 × 2 blocks of half × half elements.
        low = [j if not j & half else count + (j ^ half) for j in range(count)]
        high = [count + j if j & half else j | half for j in range(count)]
        for i in (i for i in range(count) if not i & half):
            pair = [vectors[i], vectors[i | half]]
            for slot, mask in ((i, low), (i | half, high)):
                result[slot] = bound(tirx.Shuffle(pair, [tirx.const(m, "int32") for m in mask]))
        vectors = result
        half //= 2
    return vectors
