"""The weight side: operators that depend on weights only, run once at build time.

Packed weights are several times the raw ones, so they are made while the file is written, a few rows at a time:
rows of a result mostly need rows of its operands. NumPy covers what packing and folding need
(`weight_operators.py`); other functions of weights are compiled by TVM and run on the host, at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import tvm
from tvm import ir, relax, tirx

from flexcomp.errors import UnsupportedModelError
from flexcomp.passes.attributes import SCRATCH
from flexcomp.passes.ir import bindings, operator, shape
from flexcomp.program import Array, Deferred

from .weight_operators import BY_ROWS, WHOLE

# Results of fewer bytes are made at once: they cost nothing, and any operator may read them.
_LEAST_DEFERRED = 1 << 16
# Operators, one after the other, that are left for later: each is a few calls on Python's stack.
_DEEPEST = 48


def evaluate(func: relax.Function, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a function over weights, as float32 (or other) arrays in the order of its returned tuple."""
    side = _WeightSide(func, weights)
    return [_Making(side).whole(result) for result in side.results]


def evaluate_later(
    func: relax.Function, weights: Sequence[np.ndarray], kernels: tvm.IRModule | None = None
) -> list[Array]:
    """As `evaluate`, but large results are made on request; `kernels` are those that the function may call."""
    side = _WeightSide(func, weights, kernels)
    return [side.later(result) for result in side.results]


class _WeightSide:
    """A function of weights: the values that are known, and by which operator each of the others is made."""

    def __init__(self, func: relax.Function, weights: Sequence[np.ndarray], kernels: tvm.IRModule | None = None) -> None:
        self.known: dict[relax.Var, object] = {}
        self.operators: dict[relax.Var, ir.Expr] = {}
        if len(func.params) == 1 and isinstance(func.params[0].ty, relax.TupleType):
            self.known[func.params[0]] = list(weights)
        else:
            self.known.update(zip(func.params, weights, strict=True))
        depth: dict[relax.Var, int] = {}
        for binding in bindings(func):
            var, value = binding.var, binding.value
            self.operators[var] = value
            depth[var] = 1 + max((depth.get(read, 0) for read in _variables(value)), default=0)
            if operator(value) == "call_tir":
                self.known[var] = _called(value, _Making(self).whole(value.args[1]), kernels)
            elif isinstance(value, relax.Call) and operator(value) not in BY_ROWS.keys() | WHOLE.keys():
                self.known[var] = _compiled(value, [_Making(self).whole(arg) for arg in value.args])
            elif isinstance(value, relax.TupleGetItem) or depth[var] > _DEEPEST:  # parts of tuples are there
                self.known[var] = _Making(self).whole(var)
            else:
                continue
            depth[var] = 0
        returned = func.body.body
        while isinstance(made := self.operators.get(returned), relax.Var | relax.Tuple):
            returned = made
        if isinstance(returned, relax.Tuple):
            self.results = list(returned.fields)
        elif isinstance(returned.ty, relax.TupleType):  # the parameters, unchanged
            self.results = [relax.TupleGetItem(returned, i) for i in range(len(returned.ty.fields))]
        else:
            self.results = [returned]

    def later(self, result: ir.Expr) -> Array:
        if not isinstance(result, relax.Var) or result in self.known:
            return _Making(self).whole(result)
        extents, dtype = shape(result), np.dtype(str(result.ty.dtype))
        if math.prod(extents) * dtype.itemsize < _LEAST_DEFERRED:
            return _Making(self).whole(result)
        return Deferred(extents, dtype, extents[0], lambda: partial(_Making(self).piece, result))


class _Making:
    """Results while they are made: nothing is computed twice, and nothing stays afterwards.

    A value that is needed whole is kept from piece to piece, as little else would be gained by making pieces.
    """

    def __init__(self, side: _WeightSide) -> None:
        self._side = side
        self._wholes: dict[relax.Var, object] = {}
        self._rows: dict[tuple[relax.Var, int, int], np.ndarray] = {}

    def piece(self, result: ir.Expr, first: int, end: int) -> np.ndarray:
        self._rows.clear()
        made = self.rows(result, first, end)
        self._rows.clear()
        return made

    def rows(self, expr: ir.Expr, first: int, end: int) -> np.ndarray:
        """The rows `first` to `end` of a tensor, which has axes."""
        if not isinstance(expr, relax.Var):
            return self.whole(expr)[first:end]
        if expr in self._side.known or expr in self._wholes:
            return self.whole(expr)[first:end]
        key = (expr, first, end)
        if key not in self._rows:
            found = self._by_rows(self._side.operators[expr], first, end)
            self._rows[key] = self.whole(expr)[first:end] if found is None else found
        return self._rows[key]

    def whole(self, expr: ir.Expr):
        """The value of any expression: an array, or a list for a tuple."""
        if isinstance(expr, relax.Var):
            if expr in self._side.known:
                return self._side.known[expr]
            if expr not in self._wholes:
                self._wholes[expr] = self._value(self._side.operators[expr])
            return self._wholes[expr]
        return self._value(expr)

    def _value(self, expr: ir.Expr):
        if isinstance(expr, ir.GenericConst):
            return expr.value.numpy()
        if isinstance(expr, relax.Tuple):
            return [self.whole(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.whole(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return tuple(int(extent) for extent in expr.values)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr.value
        if isinstance(expr, relax.ExternFunc):
            return expr.global_symbol
        if isinstance(expr, relax.Var):
            return self.whole(expr)
        assert isinstance(expr, relax.Call), f"cannot evaluate {type(expr).__name__} on the weight side"
        if isinstance(expr.ty, relax.TensorType) and shape(expr):
            found = self._by_rows(expr, 0, shape(expr)[0])
            if found is not None:
                return found
        return _typed(expr, WHOLE[operator(expr)](expr.attrs, *map(self.whole, expr.args)))

    def _by_rows(self, expr: ir.Expr, first: int, end: int) -> np.ndarray | None:
        """Rows of an operator's result, from the needed rows of its operands; None where all rows are needed."""
        if isinstance(expr, relax.Var):
            return self.rows(expr, first, end)
        rule = BY_ROWS.get(operator(expr))
        found = rule(self, expr, first, end) if rule else None
        return None if found is None else _typed(expr, found)


def _typed(call: relax.Call, result):
    if not isinstance(call.ty, relax.TensorType):
        return result
    result, wanted = np.asarray(result), str(call.ty.dtype)
    return result if str(result.dtype) == wanted else result.astype(wanted)


def _variables(expr: ir.Expr) -> Iterator[relax.Var]:
    """The variables that an expression in A-normal form reads."""
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.TupleGetItem):
        yield from _variables(expr.tuple_value)
    elif isinstance(expr, relax.Tuple | relax.Call):
        for part in expr.fields if isinstance(expr, relax.Tuple) else expr.args:
            yield from _variables(part)


def _called(call: relax.Call, args: list, kernels: tvm.IRModule | None):
    """A kernel's results. Raises UnsupportedModelError for an unknown one."""
    if kernels is None:
        raise UnsupportedModelError(
            f"operator {call.args[0].name_hint} of weights alone decides how the network is compiled: make its result a constant"
        )
    if SCRATCH in (kernels[call.args[0]].attrs or {}):  # a layer's, which only a network runs
        raise UnsupportedModelError(f"operator {call.args[0].name_hint} reads weights alone: make its result a constant")
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", arg.ty) for i, arg in enumerate(call.args[1].fields)]
    kernel = builder.add_func(kernels[call.args[0]], "kernel")
    made = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else call.ty
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.call_tir(kernel, params, made))
        builder.emit_func_output(result)
    return _run(builder.get(), args)


def _compiled(call: relax.Call, args: list):
    """One operator through TVM's own legalisation and virtual machine."""
    given: list[np.ndarray] = []
    params: list[relax.Var] = []

    def parameter(expr: ir.Expr, value) -> ir.Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([parameter(f, v) for f, v in zip(expr.fields, value, strict=True)])
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        given.append(np.asarray(value, order="C"))
        params.append(relax.Var(f"p{len(params)}", expr.ty))
        return params[-1]

    operands = [parameter(arg, value) for arg, value in zip(call.args, args, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(call.op, operands, call.attrs, call.ty_args))
        builder.emit_func_output(result)
    return _run(builder.get(), given)


def _run(mod: tvm.IRModule, given: Sequence[np.ndarray]):
    executable = tvm.compile(mod, target=tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    output = machine["main"](*(tvm.runtime.tensor(np.asarray(array, order="C")) for array in given))
    return output.numpy() if hasattr(output, "numpy") else [part.numpy() for part in output]
