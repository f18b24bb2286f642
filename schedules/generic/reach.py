"""The elements that an index reaches, by loops, attributes and the conditions around a load.

Bounds of TVM's analyser decide nearly all. Other indices are evaluated for every value of their loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

_MOST_POINTS = 1 << 22
_CONDITIONAL = "prim.if_then_else"
_BINARY: dict[type, Callable] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod,
    tirx.Min: np.minimum, tirx.Max: np.maximum, tirx.EQ: np.equal, tirx.NE: np.not_equal, tirx.LT: np.less,
    tirx.LE: np.less_equal, tirx.GT: np.greater, tirx.GE: np.greater_equal, tirx.And: np.logical_and, tirx.Or: np.logical_or,
    tirx.Div: lambda a, b: np.trunc(a / b).astype("int64"), tirx.Mod: np.fmod,
}  # fmt: skip


class _OpenError(Exception):
    """An expression of which this knows no value."""


class Reach:
    """The indices of one function."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.loops: dict[tirx.Var, range] = {}
        self.conditions: dict[ir.Expr, list[tuple[ir.Expr, bool]]] = {}  # by load or store: the conditions under which it runs
        self.analyzer = sym.Analyzer()
        tvm_ffi.structural_walk(
            func.body,
            [
                (tirx.For, lambda loop: self._bind(loop.loop_var, loop.min, loop.extent)),
                (s_tir.SBlock, self._bind_block),
                (tirx.IfThenElse, lambda node: self._guard(node.condition, node.then_case, node.else_case)),
                (ir.Call, self._guard_call),
            ],
        )

    def is_inside(self, access: ir.Expr | tirx.BufferStore, index: ir.Expr, extent: int) -> bool:
        """Whether an index of a load or store is at least 0 and below `extent` wherever that runs."""
        bound = self.analyzer.const_int_bound(index)
        if bound.min_value >= 0 and bound.max_value < extent:
            return True
        try:
            return self._every(index, self.conditions.get(access, []), extent)
        except _OpenError:
            return False

    def is_outside(self, access: ir.Expr | tirx.BufferStore, index: ir.Expr, extent: int) -> bool:
        """Whether an index of a load or store is known to be below 0, or `extent` or more, in some iteration that runs."""
        conditions = self.conditions.get(access, [])
        try:
            return all(self._variables(condition) <= self.loops.keys() for condition, _ in conditions) and not self._every(
                index, conditions, extent
            )
        except _OpenError:
            return False

    def _bind(self, var: tirx.Var, begin: ir.Expr, extent: ir.Expr) -> None:
        if isinstance(begin, tirx.IntImm) and isinstance(extent, tirx.IntImm) and var not in self.loops:
            self.loops[var] = range(int(begin), int(begin) + int(extent))
            self.analyzer.bind(var, ir.Range.from_min_extent(begin, extent))

    def _bind_block(self, block: s_tir.SBlock) -> None:
        for axis in block.iter_vars:
            self._bind(axis.var, axis.dom.min, axis.dom.extent)

    def _guard_call(self, call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name == _CONDITIONAL:
            self._guard(*call.args)

    def _guard(self, condition: ir.Expr, then: tvm_ffi.Object, other: tvm_ffi.Object | None) -> None:
        for part, holds in ((then, True), (other, False)):
            if part is None:
                continue
            note = lambda access, holds=holds: self.conditions.setdefault(access, []).append((condition, holds))  # noqa: E731
            tvm_ffi.structural_walk(part, [(ir.TensorLoad, note), (tirx.BufferStore, note)])

    def _every(self, index: ir.Expr, conditions: list[tuple[ir.Expr, bool]], extent: int) -> bool:
        known = [pair for pair in conditions if self._variables(pair[0]) <= self.loops.keys()]
        variables = set().union(self._variables(index), *(self._variables(condition) for condition, _ in known))
        if not variables <= self.loops.keys() or math.prod(len(self.loops[v]) for v in variables) > _MOST_POINTS:
            raise _OpenError
        grid = {
            var: np.arange(loop.start, loop.stop).reshape([-1 if i == axis else 1 for i in range(len(variables))])
            for axis, (var, loop) in enumerate((v, self.loops[v]) for v in variables)
        }
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self._value(index, grid)
            outside = (value < 0) | (value >= extent)
            for condition, holds in known:
                outside = outside & (np.asarray(self._value(condition, grid), bool) == holds)
        return not outside.any()

    def _variables(self, expr: ir.Expr) -> set[tirx.Var]:
        found: set[tirx.Var] = set()
        tvm_ffi.structural_walk(expr, [(ir.Var, found.add)])
        return found

    def _value(self, expr: ir.Expr, grid: dict[tirx.Var, np.ndarray]) -> np.ndarray:
        of = lambda part: self._value(part, grid)  # noqa: E731
        match expr:
            case tirx.IntImm():
                return np.int64(expr.value)
            case ir.Var() if expr in grid:
                return grid[expr]
            case tirx.Not():
                return np.logical_not(of(expr.a))
            case tirx.Cast() if str(expr.ty.dtype) in ("int32", "int64"):
                return of(expr.value)
            case tirx.Select():
                return np.where(of(expr.condition), of(expr.true_value), of(expr.false_value))
            case ir.Call() if isinstance(expr.op, ir.Op) and expr.op.name == _CONDITIONAL:
                return np.where(*map(of, expr.args))
        if type(expr) not in _BINARY:
            raise _OpenError
        return _BINARY[type(expr)](of(expr.a), of(expr.b))
