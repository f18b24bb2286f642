"""ONNX's activations of recurrent layers as float32 arithmetic on vectors.

Names are in lower case, as ONNX Runtime ignores case. Defaults are those of the operators of the same
names; `affine` and `scaledtanh`, which are no operators any more, have those of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import vector_math
from ..tiles.emit import vector
from ..tiles.vector_math import constant, let
from .spec import Activation

Function = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]


def _leaky(x, alpha, _):
    zero = constant(0.0, x)
    return let(x, lambda x: tirx.Select(x >= zero, x, alpha * x))


def _thresholded(x, alpha, _):
    return let(x, lambda x: tirx.Select(x <= alpha, constant(0.0, x), x))


def _hard_sigmoid(x, alpha, beta):
    return tirx.min(constant(1.0, x), tirx.max(constant(0.0, x), alpha * x + beta))


def _elu(x, alpha, _):
    zero, one = constant(0.0, x), constant(1.0, x)
    return let(x, lambda x: tirx.Select(x >= zero, x, alpha * (vector_math.exp_nonpositive(tirx.min(zero, x)) - one)))


def _magnitude(x):
    return tirx.max(x, constant(0.0, x) - x)


def _softsign(x, *_):
    return let(x, lambda x: x / (constant(1.0, x) + _magnitude(x)))


# Of log((1 + s) / (1 - s)) / s, by powers of s², for s up to 1/3: within 4e-8.
_LOG_RATIO = (2.0, 2 / 3, 2 / 5, 2 / 7, 2 / 9, 2 / 11, 2 / 13)


def _softplus(x, *_):
    """max(x, 0) + log(1 + e), e = exp(-|x|): nothing overflows, and no logarithm of a small number is taken."""
    zero = constant(0.0, x)
    x = _held(x)
    e = _held(vector_math.exp_nonpositive(zero - _magnitude(x)))
    s = _held(e / (constant(2.0, e) + e))
    return tirx.max(zero, x) + s * vector_math.polynomial(s * s, _LOG_RATIO)


def _held(x: tirx.Expr) -> tirx.Expr:
    """A value in a register, emitted here. TVM's simplifier takes minutes where one expression holds the whole chain."""
    lanes = vector_math.lanes(x)
    register = T.alloc_buffer((lanes,), "float32", scope="global")
    T.buffer_store(register, x, [vector(0, lanes)])
    return register[vector(0, lanes)]


_FUNCTIONS: dict[str, Function] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": _elu,
    "hardsigmoid": _hard_sigmoid,
    "leakyrelu": _leaky,
    "relu": lambda x, *_: tirx.max(constant(0.0, x), x),
    "scaledtanh": lambda x, alpha, beta: alpha * vector_math.tanh(beta * x),
    "sigmoid": lambda x, *_: vector_math.sigmoid(x),
    "softplus": _softplus,
    "softsign": _softsign,
    "tanh": lambda x, *_: vector_math.tanh(x),
    "thresholdedrelu": _thresholded,
}
NAMES = tuple(_FUNCTIONS)

# Name → the defaults of alpha and beta, None where the function has no such parameter.
DEFAULTS: dict[str, tuple[float | None, float | None]] = dict.fromkeys(_FUNCTIONS, (None, None)) | {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "scaledtanh": (1.0, 1.0),
    "thresholdedrelu": (1.0, None),
}


def activate(activation: Activation, x: tirx.Expr) -> tirx.Expr:
    """The activation of a float32 expression or vector; NaN stays NaN."""
    name, alpha, beta = activation
    return _FUNCTIONS[name](x, constant(alpha, x), constant(beta, x))


def clipped(limit: float | None, x: tirx.Expr) -> tirx.Expr:
    """The nearest value within [-limit, limit]; NaN stays NaN."""
    if limit is None:
        return x
    return tirx.min(constant(limit, x), tirx.max(constant(-limit, x), x))
