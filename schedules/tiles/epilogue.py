"""Epilogues: operators on an anchor operator's result in registers, before the store.

An epilogue is an expression over the accumulator, written as nested tuples: hashable, comparable and
printable:

    ("acc",)                       the anchor's result
    ("tensor", i)                  extra input i, same shape as the output
    ("channel", i)                 extra per-channel vector i, packed after the bias in the panel
    ("const", 6.0)                 a scalar
    ("relu", e), ("add", e, e) …   an operator of OPERATORS

`("relu", ("add", ("acc",), ("tensor", 0)))` is a residual block's end.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import vector_math

Epilogue = tuple
IDENTITY: Epilogue = ("acc",)


def _like(x: tirx.Expr, value: float) -> tirx.Expr:
    dtype = tvm.DataType(str(x.ty.dtype)) if hasattr(x, "ty") else tvm.DataType(x.dtype)
    constant = tirx.const(value, dtype.with_lanes(1))
    return tirx.Broadcast(constant, dtype.lanes) if dtype.lanes > 1 else constant


# Of max(a, b) and min(a, b), which are one instruction on most processors, b is the result if either is NaN. So the value
# comes second and the bound first: NaN stays NaN.


def _clip(x, low, high):
    return tirx.min(high, tirx.max(low, x))


def _leaky(x, slope):
    return tirx.max(_like(x, 0.0), x) + slope * tirx.min(_like(x, 0.0), x)


def _bound_first(function: Callable, of_two: Callable) -> Callable:
    def of(a, b):
        if vector_math.is_constant(b):
            return function(b, a)
        return function(a, b) if vector_math.is_constant(a) else of_two(a, b)

    return of


OPERATORS: dict[str, Callable[..., tirx.Expr]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": _bound_first(tirx.max, vector_math.largest),
    "minimum": _bound_first(tirx.min, vector_math.smallest),
    "negative": lambda x: _like(x, 0.0) - x,
    "abs": lambda x: tirx.max(x, _like(x, 0.0) - x),
    "relu": lambda x: tirx.max(_like(x, 0.0), x),
    "relu6": lambda x: _clip(x, _like(x, 0.0), _like(x, 6.0)),
    "clip": _clip,
    "leakyrelu": _leaky,
    "prelu": _leaky,
    "sigmoid": vector_math.sigmoid,
    "silu": lambda x: x * vector_math.sigmoid(x),
    "tanh": vector_math.tanh,
    "exp": vector_math.exp,
    "erf": vector_math.erf,
    "round": tirx.nearbyint,  # ties to even
    "gelu": lambda x: _like(x, 0.5) * x * (_like(x, 1.0) + vector_math.erf(x * _like(x, 0.7071067811865476))),
}


# Operations that a core could do meanwhile, for each element: of functions that are dozens of instructions. Those of one or two
# take no time of their own.
_FLOPS = {"exp": 28, "sigmoid": 32, "silu": 32, "tanh": 36, "erf": 44, "gelu": 48, "divide": 8}


def flops(epilogue: Epilogue) -> int:
    """Operations at a core's peak that take as long as the epilogue of one element."""
    head, *args = epilogue
    return _FLOPS.get(head, 0) + sum(flops(arg) for arg in args if isinstance(arg, tuple))


def evaluate(epilogue: Epilogue, acc: tirx.Expr, tensor: Callable, channel: Callable) -> tirx.Expr:
    """The epilogue as a TIR expression; `tensor(i)` and `channel(i)` load the elements at the accumulator's place."""
    head, *args = epilogue
    if head == "acc":
        return acc
    if head == "tensor":
        return tensor(args[0])
    if head == "channel":
        return channel(args[0])
    if head == "const":
        return _like(acc, args[0])
    return OPERATORS[head](*(evaluate(arg, acc, tensor, channel) for arg in args))


# Operators that float16 computes as well as it holds the result.
_IN_HALF = frozenset({"add", "subtract", "maximum", "minimum", "negative", "abs", "relu", "relu6", "clip"})
_MOST_HALF = 65504.0


def is_for_half(epilogue: Epilogue) -> bool:
    """Whether an epilogue loses nothing to speak of in float16."""
    head, *args = epilogue
    if head == "const":
        return abs(args[0]) <= _MOST_HALF
    return head not in OPERATORS or (head in _IN_HALF and all(map(is_for_half, args)))


def operands(epilogue: Epilogue, kind: str) -> int:
    """How many different operands of `kind` ("tensor" or "channel") the epilogue reads."""
    head, *args = epilogue
    if head == kind:
        return args[0] + 1
    return max((operands(arg, kind) for arg in args if isinstance(arg, tuple)), default=0)


__all__ = ["IDENTITY", "OPERATORS", "Epilogue", "evaluate", "flops", "operands", "T"]
