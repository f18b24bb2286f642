"""Convolutions and products with an activation after them."""

from __future__ import annotations

import numpy as np

from flexcomp.frontend.definition import Define, Definition

# Of activations that have any, the names of their parameters.
_PARAMETERS = {
    "": (), "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}  # fmt: skip


def _activated(made: Definition, data: str, kind: str, parameters: dict[str, float]) -> None:
    result = made.output(0)
    if kind == "Clip":
        bounds = [made.constant(np.float32(parameters[name])) for name in _PARAMETERS[kind]]
        made.emit(kind, [data, *bounds], result)
    else:
        made.emit(kind or "Identity", [data], result, **parameters)


def _known(made: Definition, kind: str) -> str:
    if kind not in _PARAMETERS:
        known = ", ".join(filter(None, _PARAMETERS))
        raise made.refuse(f"its activation is {kind}, and {known} can be compiled: optimise the network less")
    return kind


def _convolution(made: Definition) -> None:
    """FusedConv(X, W, B, Z): Z is added before the activation."""
    kind = _known(made, made.take("activation", b"").decode())
    given = made.take("activation_params", [])
    names = _PARAMETERS[kind]
    if len(given) not in (0, len(names)) or (kind == "Clip" and not given):
        raise made.refuse(f"its activation {kind} has {len(given)} parameters, and {len(names)} belong to it: optimise it again")
    data = made.emit("Conv", [made.input(i) for i in range(3)], **made.attributes)
    if made.input(3):
        data = made.emit("Add", [data, made.input(3)])
    _activated(made, data, kind, dict(zip(names, given, strict=False)))


def _gemm(made: Definition) -> None:
    """FusedGemm(A, B, C)."""
    kind = _known(made, made.take("activation", b"").decode())
    given = {name: made.take(f"activation_{name}") for name in ("alpha", "beta", "gamma")}
    data = made.emit("Gemm", [made.input(i) for i in range(3)], **made.attributes)
    if kind == "Clip":
        raise made.refuse("its activation is Clip, whose bounds have no names here: optimise it less")
    _activated(made, data, kind, {name: given[name] for name in _PARAMETERS[kind] if given[name] is not None})


DEFINITIONS: dict[str, Define] = {"FusedConv": _convolution, "FusedGemm": _gemm}
