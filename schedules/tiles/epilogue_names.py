"""Names of epilogues: those of operators, and of activations that models spell out in several operators.

There are many ways to write GELU. So an activation is recognised by its values at a few points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from .epilogue import IDENTITY, OPERATORS, Epilogue

_POINTS = (-4.1, -2.3, -0.9, -0.2, 0.4, 1.1, 2.7, 3.8)
_SAME = 1e-4  # of 1: constants of models are rounded


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _clip(x: float, low: float, high: float) -> float:
    return min(high, max(low, x))


def _gelu(x: float) -> float:
    return x / 2 * (1 + math.erf(x / math.sqrt(2)))


_NUMBERS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": max,
    "minimum": min,
    "negative": lambda x: -x,
    "abs": abs,
    "relu": lambda x: max(0.0, x),
    "relu6": lambda x: _clip(x, 0.0, 6.0),
    "clip": _clip,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": math.tanh,
    "exp": math.exp,
    "erf": math.erf,
    "round": round,
    "gelu": _gelu,
}

_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": _gelu,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * _clip(x + 3, 0.0, 6.0) / 6,
    "hardsigmoid": lambda x: _clip(x + 3, 0.0, 6.0) / 6,
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
}


@lru_cache(maxsize=256)
def describe(epilogue: Epilogue) -> str:
    """Operator names in order of computation, for people: `add+relu`, `gelu`."""
    head, *args = epilogue
    for of in _parts(epilogue):
        name = _activation(epilogue, of)
        if name is not None:
            return "+".join(part for part in (describe(of), name) if part)
    inner = [describe(arg) for arg in args if isinstance(arg, tuple)]
    own = [head] if head in OPERATORS else []
    return "+".join(part for part in [*inner, *own] if part)


def _parts(epilogue: Epilogue) -> Iterator[Epilogue]:
    """The parts of an epilogue, itself excluded, the largest first."""
    found = dict.fromkeys(_inside(epilogue))
    return iter(sorted(found, key=lambda part: -len(repr(part))))


def _inside(epilogue: Epilogue) -> Iterator[Epilogue]:
    for arg in epilogue[1:]:
        if isinstance(arg, tuple) and arg[0] != "const":
            yield arg
            yield from _inside(arg)


def _activation(epilogue: Epilogue, of: Epilogue) -> str | None:
    """The name of the activation that `epilogue` is of its part `of`; None if without a name, or a single operator."""
    if epilogue[0] not in _NUMBERS or epilogue[1:] == (of,):
        return None
    try:
        computed = [_value(epilogue, of, x) for x in _POINTS]
    except (KeyError, ArithmeticError):  # reads something else, or is no activation
        return None
    for name, function in _ACTIVATIONS.items():
        if all(math.isclose(y, function(x), abs_tol=_SAME) for x, y in zip(_POINTS, computed, strict=True)):
            return name
    return None


def _value(epilogue: Epilogue, of: Epilogue, x: float) -> float:
    if epilogue == of:
        return x
    if epilogue[0] == "const":
        return float(epilogue[1])
    if epilogue == IDENTITY:
        raise KeyError(epilogue)
    return _NUMBERS[epilogue[0]](*(_value(arg, of, x) for arg in epilogue[1:]))
