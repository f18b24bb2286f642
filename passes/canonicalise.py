"""Bring main into the one form that the other passes expect."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import tvm
from tvm import ir, relax, tirx
from tvm.relax import op

from .ir import BROADCASTING, dtype, operator, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter, permuted_axes


@module_pass(opt_level=0)
class Canonicalise:
    """Rewrite `main` into one dataflow block of plain operators, without operators that do nothing.

    Tuples that a split or a dropout makes go:    p = split(x, 2, axis=1)      a = strided_slice(x, …)
                                                  a = p[0]                  →
    So do operators that do nothing, and of chains of reshapes or permutations only the last stays:
                                                  y = reshape(reshape(x))   →  y = reshape(x)
    Scalars are constants of rank 0, zero padding before a convolution becomes part of it, every shape change
    without a permutation is `reshape`, equal expressions are computed once. Batch norms stay for FoldBatchNorm.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        mod = _Canonicaliser(mod).rewrite()
        mod = relax.transform.EliminateCommonSubexpr()(mod)
        return relax.transform.CanonicalizeBindings()(mod)  # removes the left aliases


class _Canonicaliser(MainRewriter):
    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        value = self.substitute(value)
        rule = _RULES.get(operator(value))
        return rule(self, value) if rule else _with_plain_scalars(value)


Rule = Callable[[_Canonicaliser, relax.Call], ir.Expr]


def _reshape(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """reshape, squeeze, expand_dims, flatten: the last of a chain, nothing if the shape stays."""
    data = call.args[0]
    if not static_tensor(data):
        return call
    return rewriter.reshape(data, _result_shape(call))


def _permute(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    return rewriter.permute(call.args[0], permuted_axes(call)) if static_tensor(call.args[0]) else call


def _split(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """A split is so many slices: no tuple, and unread parts are not computed."""
    data, axis = call.args[0], int(call.attrs.axis)
    if not static_tensor(data):
        return call
    axis %= len(shape(data))
    extent, sections = shape(data)[axis], call.attrs.indices_or_sections
    if isinstance(sections, int | tirx.IntImm):
        step = -(-extent // int(sections))
        inner = [min(step * i, extent) for i in range(1, int(sections))]
    else:
        inner = [min(int(i), extent) for i in sections]
    bounds = [0, *inner, extent]
    slices = [op.strided_slice(data, [axis], [low], [high]) for low, high in pairwise(bounds)]
    return relax.Tuple([data] if len(slices) == 1 else [rewriter.emit(part) for part in slices])


def _slice(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    return call.args[0] if _result_shape(call) == shape(call.args[0]) and _forwards(call) else call


def _forwards(call: relax.Call) -> bool:
    """Whether no axis of a strided slice runs backwards."""
    return len(call.args) < 5 or all(int(step) > 0 for step in _numbers(call.args[4]))


def _numbers(expr: ir.Expr) -> list:
    return list(expr.fields) if isinstance(expr, relax.Tuple) else list(expr.values)


def _same_shape(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """Operators that do nothing where shape and element type stay."""
    data = call.args[0]
    done = static_tensor(data) and _result_shape(call) == shape(data) and _normalised(call).ty.dtype == data.ty.dtype
    return data if done else call


def _concat(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    parts = call.args[0]
    return parts.fields[0] if isinstance(parts, relax.Tuple) and len(parts.fields) == 1 else call


def _stack(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple):
        return call
    new_shape = list(shape(parts.fields[0]))
    axis = (int(call.attrs.axis) if call.attrs.axis is not None else 0) % (len(new_shape) + 1)
    new_shape.insert(axis, 1)
    return op.concat([rewriter.emit(rewriter.reshape(part, tuple(new_shape))) for part in parts.fields], axis)


def _adaptive_average(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """Averaging the whole image is a mean."""
    layout = call.attrs.layout
    if call.attrs.out_layout not in ("", layout):
        return call
    axes = [layout.index("H"), layout.index("W")]
    if any(_result_shape(call)[axis] != 1 for axis in axes):
        return call
    return op.mean(call.args[0], axes, keepdims=True)


def _convolution(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """Zero padding that nothing else reads becomes the convolution's own."""
    attrs = call.attrs
    pad = rewriter.producer(call.args[0], "pad")
    if pad is None or pad.attrs.pad_mode != "constant" or float(pad.attrs.pad_value) != 0:
        return call
    width = [int(p) for p in pad.attrs.pad_width]
    before_after = dict(zip(attrs.data_layout, zip(width[::2], width[1::2], strict=True), strict=True))
    if before_after["N"] != (0, 0) or before_after["C"] != (0, 0):
        return call
    top, left, bottom, right = (int(p) for p in attrs.padding)
    (above, below), (before, after) = before_after["H"], before_after["W"]
    return op.nn.conv2d(
        pad.args[0], call.args[1],
        strides=attrs.strides,
        padding=(top + above, left + before, bottom + below, right + after),
        dilation=attrs.dilation, groups=attrs.groups,
        data_layout=attrs.data_layout, kernel_layout=attrs.kernel_layout, out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype,
    )  # fmt: skip


def _layer_norm(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """TVM has the operator for float32 and float16 only; its parts, for all types."""
    data, scale, bias = call.args
    kind, axes = dtype(data), [int(axis) for axis in call.attrs.axes]
    if kind in ("float32", "float16"):
        return call
    emit = rewriter.emit
    centred = emit(op.subtract(data, emit(op.mean(data, axes, keepdims=True))))
    variance = emit(op.mean(emit(op.multiply(centred, centred)), axes, keepdims=True))
    deviation = emit(op.sqrt(emit(op.add(variance, relax.const(float(call.attrs.epsilon), kind)))))
    result = op.divide(centred, deviation)
    if call.attrs.scale:
        result = op.multiply(emit(result), scale)
    return op.add(emit(result), bias) if call.attrs.center else result


def _gelu_tanh(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))): layers take these operators up, but not theirs together."""
    data, emit = call.args[0], rewriter.emit
    number = lambda value: relax.const(value, dtype(data))  # noqa: E731
    cube = emit(op.multiply(emit(op.multiply(data, data)), data))
    inner = emit(op.add(data, emit(op.multiply(cube, number(0.044715)))))
    root = emit(op.tanh(emit(op.multiply(inner, number(math.sqrt(2 / math.pi))))))
    return op.multiply(emit(op.multiply(data, number(0.5))), emit(op.add(root, number(1.0))))


def _dropout(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    return relax.Tuple([call.args[0], call.args[0]])  # the mask is never read


def _argument(rewriter: _Canonicaliser, call: relax.Call) -> ir.Expr:
    return call.args[0]


def _with_plain_scalars(value: ir.Expr) -> ir.Expr:
    """Broadcast constants of one element at rank 0, where the other operand gives the result its shape."""
    if not isinstance(value, relax.Call) or operator(value) not in BROADCASTING:
        return value
    ranks = [len(shape(arg)) if static_tensor(arg) else None for arg in value.args]
    args = list(value.args)
    for i, arg in enumerate(args):
        others = [r for j, r in enumerate(ranks) if j != i]
        one = isinstance(arg, ir.GenericConst) and ranks[i] and math.prod(shape(arg)) == 1
        if one and all(r is not None for r in others) and max(others) >= ranks[i]:
            args[i] = relax.const(arg.value.numpy().reshape(()), dtype(arg))
            ranks[i] = 0
    return relax.Call(value.op, args, value.attrs, value.ty_args)


def _normalised(call: relax.Call) -> ir.Expr:
    return relax.BlockBuilder().normalize(call)


def _result_shape(call: relax.Call) -> tuple[int, ...]:
    return shape(_normalised(call))


_RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "flatten": _reshape,
    "batch_flatten": _reshape,
    "permute_dims": _permute,
    "split": _split,
    "strided_slice": _slice,
    "broadcast_to": _same_shape,
    "astype": _same_shape,
    "concat": _concat,
    "stack": _stack,
    "adaptive_avg_pool2d": _adaptive_average,
    "conv2d": _convolution,
    "dropout": _dropout,
    "gelu_tanh": _gelu_tanh,
    "layer_norm": _layer_norm,
    "builtin.stop_lift_params": _argument,
}
