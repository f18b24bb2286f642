"""Whatever stands in its inputs, a generic kernel stays inside its tensors and does nothing undefined.

Kernels of the importer and the legaliser index by values (gathers, boxes of a suppression, coordinates of a sampler) and
trust them. `clamp_indices` makes every index that depends on a value one of its axis:

    data[ids[i], j]   →   data[max(min(ids[i], n - 1), 0), j]

Which values are right is not decided here: indices that a user gives are checked before (`indices.py`). `define` gives
conversions of floats to integers and quotients of integers a result where the machine has none, or every processor another.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..tiles.vector_math import let, unless_nan
from .reach import Reach

_MANTISSA = {"float16": 11, "float32": 24, "float64": 53}  # bits, the implied one included


def clamp_indices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with every index clamped to its axis that depends on a value, or can leave it."""
    depends, reach = _Dependence(func), Reach(func)

    def clamped(access: ir.TensorLoad | tirx.BufferStore, buffer: tirx.Buffer) -> list[ir.Expr] | None:
        wild = [
            depends.on_values(index) or not reach.is_inside(access, index, int(extent))
            for index, extent in zip(access.indices, buffer.shape, strict=True)
        ]
        if not any(wild):
            return None
        return [
            _clamp(index, extent) if is_wild else index
            for index, extent, is_wild in zip(access.indices, buffer.shape, wild, strict=True)
        ]

    def load(node: ir.TensorLoad) -> ir.Expr:
        indices = clamped(node, node.source)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        indices = clamped(node, node.buffer)
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    return tvm_ffi.structural_map(func, [(ir.TensorLoad, load), (tirx.BufferStore, store)])


def found_outside(func: tirx.PrimFunc) -> str | None:
    """The first access of `func` that is known to leave its tensor, in words; None where none is known to."""
    reach = Reach(func)
    found: list[str] = []

    def check(verb: str, access: ir.TensorLoad | tirx.BufferStore, buffer: tirx.Buffer) -> None:
        for axis, (index, extent) in enumerate(zip(access.indices, buffer.shape, strict=True)):
            if isinstance(extent, tirx.IntImm) and reach.is_outside(access, index, int(extent)):
                found.append(f"{verb} outside of {buffer.name}, {list(map(int, buffer.shape))}, by {index} on axis {axis}")

    def note(realize: s_tir.SBlockRealize) -> None:
        if not (isinstance(realize.predicate, tirx.IntImm) and realize.predicate.value):
            predicates.append(realize)

    predicates: list[s_tir.SBlockRealize] = []  # that keep iterations from running, of which `Reach` knows nothing
    tvm_ffi.structural_walk(func.body, (s_tir.SBlockRealize, note))
    if not predicates:
        loads = (ir.TensorLoad, lambda load: check("reads", load, load.source))
        tvm_ffi.structural_walk(func.body, [loads, (tirx.BufferStore, lambda store: check("writes", store, store.buffer))])
    return found[0] if found else None


class _Dependence:
    """The expressions of a function that depend on the contents of its tensors."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.variables: set[tirx.Var] = set()
        before = -1
        while before != len(self.variables):  # a variable may be bound before one that it depends on is found
            before = len(self.variables)
            tvm_ffi.structural_walk(
                func.body,
                [
                    ((tirx.stmt.Bind, tirx.Let), lambda node: self._bind(node.var, node.value)),
                    (tirx.For, lambda node: self._bind(node.loop_var, node.min, node.extent)),
                    (s_tir.SBlockRealize, self._bind_block),
                ],
            )

    def _bind(self, variable: tirx.Var, *values: ir.Expr) -> None:
        if any(self.on_values(value) for value in values):
            self.variables.add(variable)

    def _bind_block(self, node: s_tir.SBlockRealize) -> None:
        for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            self._bind(axis.var, value)

    def on_values(self, expr: ir.Expr) -> bool:
        """Whether `expr` holds a load, or a variable that depends on one."""
        found = []
        tvm_ffi.structural_walk(
            expr,
            [
                (ir.TensorLoad, lambda _: found.append(True)),
                (ir.Var, lambda var: found.append(True) if var in self.variables else None),
            ],
        )
        return bool(found)


def _clamp(index: ir.Expr, extent: ir.Expr) -> ir.Expr:
    dtype = index.ty.dtype
    assert dtype.lanes == 1, "indices are clamped before anything is a vector"
    return tirx.max(tirx.min(index, tirx.const(int(extent) - 1, dtype)), tirx.const(0, dtype))


def define(node: tvm_ffi.Object) -> tvm_ffi.Object:
    """`node` without undefined arithmetic.

    A float that no integer of the wanted type is near becomes the nearest there is, NaN becomes 0. Quotient and remainder of a
    division by 0 are 0; the least integer divided by -1 is itself.
    """
    return tvm_ffi.structural_map(
        node, [(tirx.Cast, _saturate), ((tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod), _divide)]
    )


def _saturate(cast: tirx.Cast) -> ir.Expr:
    source, wanted = cast.value.ty.dtype, cast.ty.dtype
    base = str(source.with_lanes(1))
    integer = str(wanted.with_lanes(1))
    if base not in _MANTISSA or not integer.startswith(("int", "uint")):
        return cast
    bits = wanted.bits
    low, high = (0, 2**bits) if integer.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    number = lambda value: tirx.const(value, source)  # noqa: E731
    largest = 65504.0 if base == "float16" else math.inf
    # The greatest float below `high`; below 2^mantissa all integers are floats.
    limit = min(float(high - max(1, high >> _MANTISSA[base])), largest)
    lowest = max(float(low), -largest)

    def bounded(value: ir.Expr) -> ir.Expr:
        inside = tirx.max(tirx.min(value, number(limit)), number(lowest))
        return tirx.Cast(wanted, unless_nan(value, inside, number(0.0)))

    return let(cast.value, bounded)


def _divide(quotient: tirx.Div | tirx.Mod | tirx.FloorDiv | tirx.FloorMod) -> ir.Expr:
    dtype = quotient.ty.dtype
    kind, divisor = str(dtype.with_lanes(1)), quotient.b
    plain = divisor.value if isinstance(divisor, tirx.Broadcast) else divisor
    if not kind.startswith(("int", "uint")) or (isinstance(plain, tirx.IntImm) and plain.value not in (0, -1)):
        return quotient
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def of(value: ir.Expr, by: ir.Expr) -> ir.Expr:
        is_zero = tirx.EQ(by, zero)
        # Quotients stand outside of the selects: inside, TVM's simplifier knows that the divisor is not 0, and divides.
        if kind.startswith("uint"):
            safe = type(quotient)(value, tirx.Select(is_zero, one, by))
            return let(safe, lambda found: tirx.Select(is_zero, zero, found))
        minus = tirx.const(-1, dtype)
        negated = zero - value if isinstance(quotient, tirx.Div | tirx.FloorDiv) else zero
        safe = type(quotient)(value, tirx.Select(tirx.And(by >= minus, by <= zero), one, by))
        return let(safe, lambda found: tirx.Select(is_zero, zero, tirx.Select(tirx.EQ(by, minus), negated, found)))

    return let(quotient.a, lambda value: let(divisor, lambda by: of(value, by)))


__all__ = ["clamp_indices", "define", "found_outside"]
