"""A function as a list of stages, the form in which it is scheduled, and questions about their expressions.

`generic/parse.py` reads stages from a PrimFunc, `generic/merge.py` reduces their number; this folder makes loops again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to `extent`."""

    var: tirx.Var
    extent: int


@dataclass(frozen=True)
class Reduction:
    """accumulator = init; over all `axes`: accumulator = update."""

    axes: tuple[Axis, ...]
    init: ir.Expr
    update: ir.Expr  # reads `accumulator`
    accumulator: tirx.Var

    @property
    def kind(self) -> str | None:
        """ "sum", "max" or "min" if the update is accumulator ∘ term; None for any other."""
        for kind, node in (("sum", tirx.Add), ("max", tirx.Max), ("min", tirx.Min)):
            if isinstance(self.update, node) and self.term is not None:
                return kind
        return None

    @property
    def term(self) -> ir.Expr | None:
        """The other operand of the update, if the accumulator is one of them."""
        a, b = getattr(self.update, "a", None), getattr(self.update, "b", None)
        for own, other in ((a, b), (b, a)):
            if own is not None and own.same_as(self.accumulator) and not uses(other, [self.accumulator]):
                return other
        return None


@dataclass(frozen=True)
class Stage:
    """For all `axes`: buffer[indices] = value; a reduction comes first and `value` reads its accumulator."""

    axes: tuple[Axis, ...]
    buffer: tirx.Buffer
    indices: tuple[ir.Expr, ...]
    value: ir.Expr
    reduction: Reduction | None = None

    @property
    def points(self) -> int:
        return math.prod(axis.extent for axis in self.axes)

    @property
    def iterations(self) -> int:
        return self.points * (math.prod(axis.extent for axis in self.reduction.axes) if self.reduction else 1)

    @property
    def expressions(self) -> list[ir.Expr]:
        """Everything the stage evaluates, besides its store indices."""
        return [self.value] + ([self.reduction.update] if self.reduction else [])

    def map(self, function: Callable[[ir.Expr], ir.Expr]) -> Stage:
        """The stage with `function` applied to its expression; an update stays accumulator ∘ term."""
        reduction = self.reduction
        if reduction is not None:
            if reduction.kind is None:
                update = function(reduction.update)
            else:
                update = type(reduction.update)(reduction.accumulator, function(reduction.term))
            reduction = replace(reduction, update=update)
        return replace(self, value=function(self.value), reduction=reduction)


def substitute(expr: ir.Expr, values: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
    """`expr` with variables replaced. A Let gets a variable of its own: the expression may come to several places of a kernel."""
    return tvm_ffi.structural_map(expr, [(ir.Var, lambda var: values.get(var, var)), (tirx.Let, _renamed)])


def _renamed(let: tirx.Let) -> tirx.Let:
    variable = tirx.Var(let.var.name, let.var.ty.dtype)
    body = tvm_ffi.structural_map(let.body, (ir.Var, lambda var: variable if var.same_as(let.var) else var))
    return tirx.Let(variable, let.value, body)


def uses(expr: ir.Expr, variables: Iterable[tirx.Var]) -> bool:
    """Whether one of the variables occurs."""
    wanted = set(variables)
    found = []
    tvm_ffi.structural_walk(expr, (ir.Var, lambda var: found.append(var) if var in wanted else None))
    return bool(found)


def loads(expr: ir.Expr) -> list[ir.TensorLoad]:
    """Every load in the expression, those inside indices included."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append))
    return found


def replace_loads(expr: ir.Expr, of: Callable[[ir.TensorLoad], ir.Expr]) -> ir.Expr:
    """`expr` with every load replaced by `of(load)`, innermost first."""
    return tvm_ffi.structural_map(expr, (ir.TensorLoad, of))


def called_operators(expr: ir.Expr) -> set[str]:
    """Names of the operators that the expression calls."""
    names: set[str] = set()

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op):
            names.add(call.op.name)

    tvm_ffi.structural_walk(expr, (ir.Call, visit))
    return names


def contains(expr: ir.Expr, kinds: type | tuple[type, ...]) -> bool:
    """Whether a node of one of the kinds occurs."""
    found: list[ir.Expr] = []
    tvm_ffi.structural_walk(expr, [(kinds, found.append)])
    return bool(found)


def is_constant(expr: ir.Expr) -> bool:
    """Whether the expression is a literal number."""
    return isinstance(expr, (tirx.IntImm, tirx.FloatImm))


def is_zero(expr: ir.Expr) -> bool:
    """Whether the expression is the integer 0."""
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def simplify(expr: ir.Expr, axes: Iterable[Axis]) -> ir.Expr:
    """`expr` simplified with the axes' extents."""
    analyzer = sym.Analyzer()
    for axis in axes:
        dtype = axis.var.ty.dtype
        analyzer.bind(axis.var, ir.Range(tirx.const(0, dtype), tirx.const(axis.extent, dtype)))
    return analyzer.simplify(expr)
