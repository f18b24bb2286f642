"""Legalisations in place of TVM's: the largest and the smallest of many, as values and as indices, and pooling by maximum.

TVM starts from the type's smallest finite number, so that a row of -inf has a maximum of -3.4e38 at index -1.
NaN is larger than every number, and smaller than every number: NaN is always the result, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import ir, relax, te, tirx

from .ir import dtype, operator, shape


def least(kind: str) -> ir.Expr:
    """The number that is never larger than an element: -inf, or the smallest integer."""
    return tirx.const(float("-inf"), kind) if kind.startswith(("float", "bfloat")) else tirx.min_value(kind)


def greatest(kind: str) -> ir.Expr:
    return tirx.const(float("inf"), kind) if kind.startswith(("float", "bfloat")) else tirx.max_value(kind)


def _is_nan(value: ir.Expr) -> ir.Expr:
    is_float = str(value.ty.dtype).startswith(("float", "bfloat"))
    return tirx.isnan(value) if is_float else tirx.const(False, "bool")


_REDUCERS = {
    "max": te.comm_reducer(lambda a, b: tirx.Max(a, b), least, name="max"),
    "min": te.comm_reducer(lambda a, b: tirx.Min(a, b), greatest, name="min"),
}


def _split(call: relax.Call) -> tuple[list[int], list[int], bool]:
    """Axes that are reduced, axes that stay, whether reduced ones stay with extent 1."""
    rank = len(shape(call.args[0]))
    axis = call.attrs.axis
    given = [] if axis is None else [axis] if isinstance(axis, int | tirx.IntImm) else list(axis)
    reduced = sorted({int(a) % rank for a in given}) if axis is not None else list(range(rank))
    return reduced, [a for a in range(rank) if a not in reduced], bool(call.attrs.keepdims)


def _source(reduced: list[int], kept: list[int], keepdims: bool, rank: int, place, over) -> tuple:
    """The index into the operand for a place of the result and reduce variables."""
    index = dict(zip(reduced, over, strict=True))
    index |= {a: place[a if keepdims else i] for i, a in enumerate(kept)}
    return tuple(index[a] for a in range(rank))


def _extreme(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.max and relax.min."""
    name = operator(call)
    extents, (reduced, kept, keepdims) = shape(call.args[0]), _split(call)
    if not reduced or any(extents[a] == 0 for a in reduced):
        if not reduced:
            return call.args[0]
        neutral = (least if name == "max" else greatest)(dtype(call))
        return builder.call_te(lambda: te.compute(shape(call), lambda *_: neutral, name=name), primfunc_name_hint=name)

    def compute(data: te.Tensor) -> te.Tensor:
        over = [te.reduce_axis((0, extents[a]), f"k{a}") for a in reduced]
        return te.compute(
            shape(call),
            lambda *p: _REDUCERS[name](data[_source(reduced, kept, keepdims, len(extents), p, over)], axis=over),
            name=name,
        )

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def _argument(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.argmax and relax.argmin: the first of several equal ones."""
    name, kind, index_kind = operator(call), dtype(call.args[0]), dtype(call)
    extents, (reduced, kept, keepdims) = shape(call.args[0]), _split(call)
    count = math.prod(extents[a] for a in reduced)
    neutral = (least if name == "argmax" else greatest)(kind)

    def better(left, right):
        (i, a), (j, b) = left, right
        first = tirx.any(a > b if name == "argmax" else a < b, tirx.all(a == b, i < j))
        nan_a, nan_b = _is_nan(a), _is_nan(b)
        wins = tirx.any(tirx.all(nan_a, tirx.any(tirx.Not(nan_b), i < j)), tirx.all(tirx.Not(nan_a), tirx.Not(nan_b), first))
        return tirx.Select(wins, i, j), tirx.Select(wins, a, b)

    # The neutral element's index is after all others: an equally small element still wins.
    reducer = te.comm_reducer(
        lambda left, right: better(left, right), lambda _, __: (tirx.const(count, index_kind), neutral), name=name
    )

    def compute(data: te.Tensor) -> te.Tensor:
        over = [te.reduce_axis((0, extents[a]), f"k{a}") for a in reduced]

        def element(*place):
            index = tirx.const(0, index_kind)
            for variable, a in zip(over, reduced, strict=True):
                index = index * extents[a] + variable.var.astype(index_kind)
            value = data[_source(reduced, kept, keepdims, len(extents), place, over)]
            return reducer((index, value), axis=over)

        indices, _ = te.compute(shape(call), element, name=f"{name}_pairs")
        return te.compute(shape(call), lambda *place: indices(*place), name=name)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def _max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """relax.nn.max_pool1d to 3d, in every layout; pixels outside of the image are left out."""
    attrs, data = call.attrs, call.args[0]
    extents, result, kind = shape(data), shape(call), dtype(call)
    spatial = [i for i, letter in enumerate(str(attrs.layout)) if letter in "DHW"]
    ints = lambda values: [int(value) for value in values]  # noqa: E731
    window, strides, dilation = ints(attrs.pool_size), ints(attrs.strides), ints(attrs.dilation)
    before = ints(attrs.padding)[: len(spatial)]

    def compute(source: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, size), f"tap{i}") for i, size in enumerate(window)]

        def element(*place):
            index, inside = list(place), []
            for i, axis in enumerate(spatial):
                index[axis] = place[axis] * strides[i] + taps[i] * dilation[i] - before[i]
                inside += [index[axis] >= 0, index[axis] < extents[axis]]
            value = tirx.if_then_else(tirx.all(*inside), source[tuple(index)], least(kind))
            return _REDUCERS["max"](value, axis=taps)

        return te.compute(result, element, name="max_pool")

    return builder.call_te(compute, data, primfunc_name_hint="max_pool")


LEGALISATIONS: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.max": _extreme,
    "relax.min": _extreme,
    "relax.argmax": _argument,
    "relax.argmin": _argument,
    "relax.nn.max_pool1d": _max_pool,
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.max_pool3d": _max_pool,
}
