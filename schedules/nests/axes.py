"""Other axes for the same nest: split what a reshape joined, join what every access walks as one."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from .nest import Nest, coefficients, constant, new_axis
from .stages import Axis, loads, replace_loads, simplify, uses

_MAX_SPLITS = 8


def split(nest: Nest) -> Nest:
    """Split the axes that a reshape joined, so that indices need no division: (i // 64, i % 64) → (i0, i1)."""
    for _ in range(_MAX_SPLITS):
        every = [*nest.axes, *(nest.reduction.axes if nest.reduction else ())]
        found: list[tuple[Axis, int]] = []

        def visit(node: ir.Expr, every: list[Axis] = every, found: list = found) -> None:
            if not isinstance(node.b, tirx.IntImm) or loads(node.a):
                return
            divisor = int(node.b)
            factors = coefficients(simplify(node.a, every), every)
            for axis, factor in zip(every, factors or (), strict=False):
                inner = divisor // factor if factor > 0 and divisor % factor == 0 else 0
                if 1 < inner < axis.extent and axis.extent % inner == 0:
                    found.append((axis, inner))

        for expr in (nest.index, *nest.expressions):
            tvm_ffi.structural_walk(expr, [((tirx.FloorDiv, tirx.FloorMod), visit)])
        if not found:
            break
        axis, inner = found[0]
        parts = [new_axis(axis.extent // inner, axis), new_axis(inner, axis)]
        values = {axis.var: parts[0].var * tirx.const(inner, axis.var.ty.dtype) + parts[1].var}

        def replaced(axes: Sequence[Axis], axis: Axis = axis, parts: list[Axis] = parts) -> list[Axis]:
            return [part for a in axes for part in (parts if a is axis else [a])]

        reduced = replaced(nest.reduction.axes) if nest.reduction else ()
        nest = nest.substitute(values, replaced(nest.axes), reduced)
    return nest


def collapse(nest: Nest) -> Nest:
    """Drop axes of one iteration; join neighbours that every access walks as one."""
    reduce_axes = nest.reduction.axes if nest.reduction else ()
    zero = {a.var: constant(0, a.var) for a in (*nest.axes, *reduce_axes) if a.extent == 1}
    axes = [axis for axis in nest.axes if axis.extent > 1]
    reduced = [axis for axis in reduce_axes if axis.extent > 1]
    nest = nest.substitute(zero, axes, reduced)
    every = [*axes, *reduced]
    accesses = [coefficients(nest.index, every)]
    pinned: list[ir.Expr] = [] if accesses[0] is not None else [nest.index]

    def note(load: ir.TensorLoad) -> ir.Expr:
        factors = coefficients(load.indices[0], every)
        if factors is None:
            return load
        accesses.append(factors)
        return tirx.const(0, load.ty.dtype)

    pinned += [replace_loads(expr, note) for expr in nest.expressions]
    factors = {axis.var: tuple(a[i] for a in accesses if a is not None) for i, axis in enumerate(every)}
    fixed = {axis.var for axis in every if any(uses(expr, [axis.var]) for expr in pinned)}
    values: dict[tirx.Var, ir.Expr] = {}

    def join(group: list[Axis]) -> list[Axis]:
        result: list[Axis] = []
        for axis in group:
            previous = result[-1] if result else None
            if (
                previous is not None
                and previous.var not in fixed
                and axis.var not in fixed
                and all(p == f * axis.extent for p, f in zip(factors[previous.var], factors[axis.var], strict=True))
            ):
                joined = new_axis(previous.extent * axis.extent, axis)
                factors[joined.var] = factors[axis.var]
                values[previous.var] = constant(0, previous.var)
                values[axis.var] = joined.var
                result[-1] = joined
            else:
                result.append(axis)
        return result

    axes, reduced = join(axes), join(reduced)
    # Chains: a joined axis may have been joined again.
    for var in list(values):
        values[var] = _resolve(values[var], values)
    return nest.substitute(values, axes, reduced) if values else nest


def _resolve(expr: ir.Expr, values: dict[tirx.Var, ir.Expr]) -> ir.Expr:
    while isinstance(expr, ir.Var) and expr in values:
        expr = values[expr]
    return expr
