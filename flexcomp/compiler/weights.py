"""Evaluate the weight side: operators that depend on weights only, run once at build time.

NumPy covers what packing and folding need; whatever else a model computes from its weights is compiled by
TVM and run on the host, one operator at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import ir, relax, tirx

from flexcomp.passes.ir import bindings, operator
from flexcomp.schedules.tiles import narrow_panel

_Array = np.ndarray


def evaluate(func: relax.Function, weights: Sequence[_Array]) -> list[_Array]:
    """The results of a function over weights, as float32 (or other) arrays in the order of its returned tuple.

    An array that no later operator reads is let go, so that raw and packed weights are not all held at once.
    """
    order = list(bindings(func))
    last = _last_readers(order, func.body.body)
    values: dict[relax.Var, object] = {}
    if len(func.params) == 1 and isinstance(func.params[0].ty, relax.TupleType):
        values[func.params[0]] = list(weights)
    else:
        values.update(zip(func.params, weights, strict=True))
    for position, binding in enumerate(order):
        values[binding.var] = _value(binding.value, values)
        for var in last.get(position, ()):
            values.pop(var, None)
    result = _value(func.body.body, values)
    return list(result) if isinstance(result, list) else [result]


def _last_readers(order, returned) -> dict[int, list[relax.Var]]:
    last: dict[relax.Var, int] = {}
    for position, binding in enumerate(order):

        def note(node, position=position) -> None:
            if isinstance(node, relax.Var):
                last[node] = position

        relax.analysis.post_order_visit(binding.value, note)
    relax.analysis.post_order_visit(returned, lambda node: last.pop(node, None) if isinstance(node, relax.Var) else None)
    result: dict[int, list[relax.Var]] = {}
    for var, position in last.items():
        result.setdefault(position, []).append(var)
    return result


def _value(expr: ir.Expr, values: dict[relax.Var, object]):
    if isinstance(expr, relax.Var):
        return values[expr]
    if isinstance(expr, ir.GenericConst):
        return expr.value.numpy()
    if isinstance(expr, relax.Tuple):
        return [_value(field, values) for field in expr.fields]
    if isinstance(expr, relax.TupleGetItem):
        return _value(expr.tuple_value, values)[expr.index]
    if isinstance(expr, relax.ShapeExpr):
        return tuple(int(extent) for extent in expr.values)
    if isinstance(expr, tirx.IntImm | tirx.FloatImm):
        return expr.value
    if isinstance(expr, relax.ExternFunc):
        return expr.global_symbol
    assert isinstance(expr, relax.Call), f"cannot evaluate {type(expr).__name__} on the weight side"
    args = [_value(arg, values) for arg in expr.args]
    rule = _RULES.get(operator(expr))
    if rule is None:
        return _compiled(expr, args)
    result = rule(expr.attrs, *args) if rule is not _narrowed else rule(expr.ty, *args)
    if not isinstance(expr.ty, relax.TensorType):
        return result
    result = np.asarray(result)
    wanted = str(expr.ty.dtype)
    return result if str(result.dtype) == wanted else result.astype(wanted)


def _axes(value) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(axis) for axis in value)


def _take(attrs, data, indices):
    return np.take(data, indices, axis=None if attrs.axis is None else int(attrs.axis))


def _argument(function, attrs, data):
    return function(data, axis=None if attrs.axis is None else int(attrs.axis), keepdims=bool(attrs.keepdims))


def _narrowed(type_: relax.TensorType, function: str, *args: _Array) -> _Array:
    """What PretransformWeights calls: flexcomp.pack.DTYPE or flexcomp.round.DTYPE."""
    _, what, name = function.split(".")
    if what == "round":
        return narrow_panel.rounded(*args, name)
    return narrow_panel.pack(*args, name, int(type_.shape[1]))


_RULES: dict[str, Callable[..., _Array]] = {
    "reshape": lambda _, x, shape: x.reshape(shape),
    "expand_dims": lambda attrs, x: np.expand_dims(x, _axes(attrs.axis)),
    "squeeze": lambda attrs, x: np.squeeze(x, _axes(attrs.axis)),
    "permute_dims": lambda attrs, x: np.transpose(x, _axes(attrs.axes)),
    "broadcast_to": lambda _, x, shape: np.broadcast_to(x, shape),
    "concat": lambda attrs, parts: np.concatenate(parts, axis=int(attrs.axis)),
    "take": _take,
    "shape_of": lambda _, x: tuple(x.shape),
    "shape_to_tensor": lambda _, shape: np.array(shape, np.int64),
    "zeros": lambda _, shape: np.zeros(shape, np.float32),
    "add": lambda _, a, b: a + b,
    "subtract": lambda _, a, b: a - b,
    "multiply": lambda _, a, b: a * b,
    "divide": lambda _, a, b: a / b,
    "matmul": lambda _, a, b: np.matmul(a, b),
    "negative": lambda _, a: -a,
    "maximum": lambda _, a, b: np.maximum(a, b),
    "minimum": lambda _, a, b: np.minimum(a, b),
    "max": lambda attrs, a: np.max(a, axis=_axes(attrs.axis), keepdims=bool(attrs.keepdims)),
    "min": lambda attrs, a: np.min(a, axis=_axes(attrs.axis), keepdims=bool(attrs.keepdims)),
    "argmax": lambda attrs, a: _argument(np.argmax, attrs, a),
    "argmin": lambda attrs, a: _argument(np.argmin, attrs, a),
    "sqrt": lambda _, a: np.sqrt(a),
    "rsqrt": lambda _, a: np.float32(1) / np.sqrt(a),
    "astype": lambda attrs, a: a.astype(str(attrs.dtype)),
    "call_pure_packed": _narrowed,
}


def _compiled(call: relax.Call, args: list):
    """One operator through TVM's own legalisation and virtual machine."""
    given: list[_Array] = []
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
    executable = tvm.compile(builder.get(), target=tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    output = machine["main"](*(tvm.runtime.tensor(array) for array in given))
    return output.numpy() if hasattr(output, "numpy") else [part.numpy() for part in output]
