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

from flexcomp.deferred import Array, Deferred, Rows, new_digest, told_by
from flexcomp.errors import UnsupportedModelError
from flexcomp.passes.attributes import SCRATCH
from flexcomp.passes.ir import bindings, dtype, operator, shape

from .weight_operators import BY_ROWS, WHOLE

# Results of fewer bytes are made at once: they cost nothing, and any operator may read them.
_LEAST_DEFERRED = 1 << 16
# Operators, one after the other, that are left for later: each is a few calls on Python's stack.
_DEEPEST = 48


def evaluate(func: relax.Function, weights: Sequence[Array]) -> list[np.ndarray]:
    """The results of a function over weights, as float32 (or other) arrays in the order of its returned tuple."""
    side = _WeightSide(func, weights)
    return [_Making(side).whole(result) for result in side.results]


def evaluate_later(
    func: relax.Function, weights: Sequence[Array], kernels: tvm.IRModule | None = None, made: dict[bytes, Deferred] | None = None
) -> list[Array]:
    """As `evaluate`, but large results are made on request; `kernels` are those that the function may call.

    `made`: results of other functions, by their origins; what has the same origin is the same array. Results join it.
    """
    side = _WeightSide(func, weights, kernels)
    return [side.later(result, made) for result in side.results]


class _WeightSide:
    """A function of weights: the values that are known, and by which operator each of the others is made."""

    def __init__(self, func: relax.Function, weights: Sequence[Array], kernels: tvm.IRModule | None = None) -> None:
        self.known: dict[relax.Var, object] = {}
        self.operators: dict[relax.Var, ir.Expr] = {}
        self._origins: dict[relax.Var, bytes | None] = {}
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
            elif isinstance(value, relax.TupleGetItem):  # parts of tuples are there
                given = _Making(self).given(value)
                self.known[var] = _Making(self).whole(var) if given is None else given
            elif depth[var] > _DEEPEST:
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

    def later(self, result: ir.Expr, made: dict[bytes, Deferred] | None) -> Array:
        known = _Making(self).given(result)
        if known is not None or not isinstance(result, relax.Var):
            return known if isinstance(known, Deferred) and known.nbytes >= _LEAST_DEFERRED else _Making(self).whole(result)
        extents, kind = shape(result), np.dtype(dtype(result))
        if math.prod(extents) * kind.itemsize < _LEAST_DEFERRED:
            return _Making(self).whole(result)
        array = Deferred(extents, kind, extents[0], lambda: partial(_Making(self).piece, result))
        origin = None if made is None else self.origin(result)
        return array if origin is None else made.setdefault(origin, array)

    def origin(self, expr: ir.Expr) -> bytes | None:
        """What a value is made of and how: equal only for equal values; None if that is not known."""
        if not isinstance(expr, relax.Var):
            return self._origin(expr)
        if expr not in self._origins:
            known = self.known.get(expr)
            if known is None:
                found = self._origin(self.operators[expr]) if expr in self.operators else None
            else:
                found = _told(told_by(known)) if isinstance(known, Array) else None
            self._origins[expr] = found
        return self._origins[expr]

    def _origin(self, expr: ir.Expr) -> bytes | None:
        if isinstance(expr, relax.Var):
            return self.origin(expr)
        if isinstance(expr, ir.GenericConst):
            return _told(told_by(expr.value.numpy()))
        if isinstance(expr, relax.ShapeExpr):
            return _told(("shape", *map(int, expr.values)))
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return _told((str(expr.ty), expr.value))
        if isinstance(expr, relax.ExternFunc):
            return _told(("function", str(expr.global_symbol)))
        if isinstance(expr, relax.TupleGetItem):
            given = _Making(self).given(expr)
            return _told(told_by(given)) if isinstance(given, Array) else None
        if isinstance(expr, relax.Tuple):
            parts, what = [self.origin(part) for part in expr.fields], ("tuple",)
        elif isinstance(expr, relax.Call) and operator(expr) and isinstance(expr.ty, relax.TensorType):
            parts, what = [self.origin(arg) for arg in expr.args], (operator(expr), str(expr.attrs), shape(expr), dtype(expr))
        else:
            return None
        return None if None in parts else _told((*what, *parts))


class _Making:
    """Results while they are made: nothing is computed twice, and nothing stays afterwards.

    A value that is needed whole is kept from piece to piece, as little else would be gained by making pieces.
    """

    def __init__(self, side: _WeightSide) -> None:
        self._side = side
        self._wholes: dict[relax.Var, object] = {}
        self._rows: dict[tuple[relax.Var, int, int], np.ndarray] = {}
        self._begun: dict[ir.Expr, Rows] = {}

    def piece(self, result: ir.Expr, first: int, end: int) -> np.ndarray:
        self._rows.clear()
        made = self.rows(result, first, end)
        self._rows.clear()
        return made

    def rows(self, expr: ir.Expr, first: int, end: int) -> np.ndarray:
        """The rows `first` to `end` of a tensor, which has axes."""
        known = self.given(expr)
        if isinstance(known, Deferred) and expr not in self._wholes:
            if expr not in self._begun:
                self._begun[expr] = known.slices()
            return self._begun[expr](first, end)
        if known is not None or not isinstance(expr, relax.Var) or expr in self._wholes:
            return self.whole(expr)[first:end]
        key = (expr, first, end)
        if key not in self._rows:
            found = self._by_rows(self._side.operators[expr], first, end)
            self._rows[key] = self.whole(expr)[first:end] if found is None else found
        return self._rows[key]

    def whole(self, expr: ir.Expr):
        """The value of any expression: an array, or a list for a tuple."""
        if isinstance(expr, relax.Var):
            if expr in self._wholes:
                return self._wholes[expr]
            known = self._side.known.get(expr)
            if known is not None and not isinstance(known, Deferred):
                return known
            self._wholes[expr] = self._value(self._side.operators[expr]) if known is None else np.asarray(known)
            return self._wholes[expr]
        return self._value(expr)

    def given(self, expr: ir.Expr) -> object | None:
        """The value of a variable or of a tuple's part that is known, which may be deferred; None for all else."""
        if isinstance(expr, relax.TupleGetItem):
            values = self.given(expr.tuple_value)
            return values[expr.index] if isinstance(values, list) else None
        return self._side.known.get(expr) if isinstance(expr, relax.Var) else None

    def _value(self, expr: ir.Expr):
        if isinstance(expr, ir.GenericConst):
            return expr.value.numpy()
        if isinstance(expr, relax.Tuple):
            return [self.whole(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return np.asarray(self.whole(expr.tuple_value)[expr.index])
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


def _told(parts: tuple) -> bytes:
    """Equal only for equal tuples of numbers, texts, and other things that are told by these."""
    digest = new_digest()
    digest.update(repr(parts).encode())
    return digest.digest()


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
