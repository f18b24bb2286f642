"""A stage over flat buffers, and the pattern of its accesses along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from .stages import Axis, Reduction, Stage, called_operators, contains, loads, replace_loads, simplify, substitute, uses

_OPERATIONS_PER_ELEMENT = 2  # of a plain load and store
_OPERATIONS_PER_CALL = 10  # of an exponential and the like


@dataclass(frozen=True)
class Machine:
    """The processor that loops are fitted to."""

    lanes: int  # floats in a vector
    registers: int  # vector registers
    cores: int
    half: str = ""  # the type of 16 bits that instructions convert to float32, if any


@dataclass(frozen=True)
class Nest:
    """A stage over flat buffers: for all axes, buffer[index] = value."""

    axes: tuple[Axis, ...]
    buffer: tirx.Buffer
    index: ir.Expr
    value: ir.Expr
    reduction: Reduction | None = None

    @property
    def points(self) -> int:
        return math.prod(axis.extent for axis in self.axes)

    @property
    def expressions(self) -> list[ir.Expr]:
        return [self.value] + ([self.reduction.update] if self.reduction else [])

    def substitute(self, values: dict[tirx.Var, ir.Expr], axes: Sequence[Axis], reduce_axes: Sequence[Axis] = ()):
        """The nest over other axes, with variables replaced and everything simplified."""
        bounds = [*axes, *reduce_axes]

        def rewrite(expr: ir.Expr) -> ir.Expr:
            return simplify(substitute(expr, values), bounds)

        reduction = self.reduction
        if reduction is not None:
            # The accumulator stays outside: the simplifier may reorder a sum.
            if reduction.kind is None:
                update = rewrite(reduction.update)
            else:
                update = type(reduction.update)(reduction.accumulator, rewrite(reduction.term))
            reduction = replace(reduction, axes=tuple(reduce_axes), update=update)
        return Nest(tuple(axes), self.buffer, rewrite(self.index), rewrite(self.value), reduction)


def nest_of(stage: Stage, flat: dict[tirx.Buffer, tirx.Buffer]) -> Nest:
    """A stage over the one-dimensional views `flat` of its buffers."""
    def flatten(buffer: tirx.Buffer, indices: Sequence[ir.Expr]) -> ir.Expr:
        result: ir.Expr = tirx.const(0, "int64")
        for index, extent in zip(indices, buffer.shape, strict=True):
            result = result * tirx.const(int(extent), "int64") + index.astype("int64")
        return result

    def view(expr: ir.Expr) -> ir.Expr:
        return replace_loads(
            expr, lambda load: tirx.BufferLoad(flat[load.source], [flatten(load.source, load.indices)])
        )

    mapped = stage.map(view)
    return Nest(mapped.axes, flat[stage.buffer], flatten(stage.buffer, stage.indices), mapped.value, mapped.reduction)


def constant(value: int, like: tirx.Var | None = None) -> ir.Expr:
    """An integer of the type of a variable, 64 bits without one."""
    return tirx.const(value, "int64" if like is None else like.ty.dtype)


def new_axis(extent: int, like: Axis | None = None, name: str = "i") -> Axis:
    """An axis of its own, with the type of another's variable."""
    return Axis(tirx.Var(name, like.var.ty.dtype if like else "int64"), extent)


def coefficients(index: ir.Expr, axes: Sequence[Axis]) -> list[int] | None:
    """The factors of the axes' variables in an affine index; None for other indices."""
    if not axes:
        return []
    found = sym.detect_linear_equation(index, [axis.var for axis in axes])
    if not found or not all(isinstance(factor, tirx.IntImm) for factor in found[:-1]):
        return None
    return [int(factor) for factor in found[:-1]]


def load_coefficients(nest: Nest, axes: Sequence[Axis]) -> list[tuple[ir.TensorLoad, list[int] | None]]:
    """Every load of the nest with the factors of the axes in its index."""
    return [(load, coefficients(load.indices[0], axes)) for expr in nest.expressions for load in loads(expr)]


def count_operations(nest: Nest) -> int:
    """A rough count, to tell work that is worth threads."""
    calls = sum(len(called_operators(expr)) for expr in nest.expressions)
    reduce_points = math.prod(axis.extent for axis in nest.reduction.axes) if nest.reduction else 1
    return nest.points * reduce_points * (_OPERATIONS_PER_ELEMENT + _OPERATIONS_PER_CALL * calls)


def conditions(expr: ir.Expr) -> list[ir.Expr]:
    """The conditions of selections and if-then-else, outermost first."""
    found: list[ir.Expr] = []

    def visit(node: ir.Expr) -> None:
        if isinstance(node, tirx.Select):
            found.append(node.condition)
        elif isinstance(node.op, ir.Op) and node.op.name == "prim.if_then_else":
            found.append(node.args[0])

    tvm_ffi.structural_walk(expr, [((ir.Call, tirx.Select), visit)])
    return found


def has_wide_types(nest: Nest, machine: Machine) -> bool:
    """Whether only numbers are read and written that vectors hold as they are, and bytes that are made of float32 or become it.

    Others are left to LLVM's own vectoriser, which has more bytes in a vector, but rounds to bytes one by one.
    """
    types = {nest.buffer.dtype} | {load.ty.dtype for expr in nest.expressions for load in loads(expr)}
    known = ["float32", "int32", "float64", "int64", "uint32", *([machine.half] if machine.half else [])]
    if "float32" in types:
        known += ["uint8", "int8"]
    return all(dtype in known for dtype in types)


def is_vectorisable(nest: Nest, axis: Axis, machine: Machine) -> bool:
    """Whether all accesses along `axis` are contiguous or fixed, and no condition depends on this axis."""
    if not has_wide_types(nest, machine) or (coefficients(nest.index, [axis]) or [0])[0] != 1:
        return False
    for _, factors in load_coefficients(nest, [axis]):
        if factors is None or factors[0] not in (0, 1):
            return False
    for expr in nest.expressions:
        if any(uses(condition, [axis.var]) for condition in conditions(expr)):
            return False
        if contains(expr, (tirx.And, tirx.Or, tirx.Not, tirx.FloorDiv, tirx.FloorMod)) and uses(expr, [axis.var]):
            return False
    return True


def contiguous_last(nest: Nest) -> Nest:
    """The axis along which the store is contiguous becomes the innermost one."""
    factors = coefficients(nest.index, nest.axes)
    if factors is None or factors[-1] == 1 or 1 not in factors:
        return nest
    axis = nest.axes[factors.index(1)]
    return replace(nest, axes=(*[a for a in nest.axes if a is not axis], axis))
