"""Gelu, its approximations, and a bias before them."""

from __future__ import annotations

import math

import numpy as np

from flexcomp.frontend.definition import Define, Definition

_TANH_CUBE = 0.044715  # of the approximation by tanh (Hendrycks and Gimpel, 2016)


def _number(made: Definition, value: float) -> str:
    return made.constant(np.float32(value))


def _biased(made: Definition) -> str:
    return made.emit("Add", [made.input(0), made.input(1)]) if made.input(1) else made.input(0)


def _gelu(made: Definition) -> None:
    """Gelu(X) and BiasGelu(A, B): x Φ(x)."""
    x = _biased(made)
    erf = made.emit("Erf", [made.emit("Div", [x, _number(made, math.sqrt(2))])])
    product = made.emit("Mul", [x, made.emit("Add", [erf, _number(made, 1)])])
    made.emit("Mul", [product, _number(made, 0.5)], made.node.output[0])


def _fast_gelu(made: Definition) -> None:
    """FastGelu(X, bias): by tanh."""
    x = _biased(made)
    cube = made.emit("Mul", [made.emit("Mul", [x, x]), x])
    inner = made.emit("Add", [x, made.emit("Mul", [cube, _number(made, _TANH_CUBE)])])
    tanh = made.emit("Tanh", [made.emit("Mul", [inner, _number(made, math.sqrt(2 / math.pi))])])
    product = made.emit("Mul", [x, made.emit("Add", [tanh, _number(made, 1)])])
    made.emit("Mul", [product, _number(made, 0.5)], made.node.output[0])


def _quick_gelu(made: Definition) -> None:
    """QuickGelu(X): x σ(alpha x)."""
    x = made.input(0)
    scaled = made.emit("Mul", [x, _number(made, made.take("alpha", 1.702))])
    made.emit("Mul", [x, made.emit("Sigmoid", [scaled])], made.node.output[0])


DEFINITIONS: dict[str, Define] = {"BiasGelu": _gelu, "FastGelu": _fast_gelu, "Gelu": _gelu, "QuickGelu": _quick_gelu}
