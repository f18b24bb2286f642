"""Norms and activations as exporters write them, after a layer: one small network for each exporter and structure."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from benchmarks.networks.graph import Graph

WIDTH = 64

Function = Callable[[Graph, str], str]


def weight(g: Graph, *extents: int) -> str:
    return g.normal(extents or (WIDTH,), 1.0)


def mean(g: Graph, x: str, *axes: int) -> str:
    return g.op("ReduceMean", x, axes=list(axes or (-1,)), keepdims=1)


# -- activations ---------------------------------------------------------------------------------------


def gelu_erf(g: Graph, x: str) -> str:
    return g.gelu(x)


def gelu_halved(g: Graph, x: str) -> str:
    """paddle2onnx: half of x first."""
    error = g.op("Add", g.op("Erf", g.op("Mul", x, g.number(math.sqrt(0.5)))), g.number(1.0))
    return g.op("Mul", g.op("Mul", x, g.number(0.5)), error)


def gelu_tanh(g: Graph, x: str) -> str:
    cube = g.op("Mul", g.number(0.044715), g.op("Pow", x, g.number(3.0)))
    inner = g.op("Tanh", g.op("Mul", g.number(math.sqrt(2 / math.pi)), g.op("Add", x, cube)))
    return g.op("Mul", g.op("Mul", g.number(0.5), x), g.op("Add", g.number(1.0), inner))


def gelu(approximate: str) -> Function:
    return lambda g, x: g.op("Gelu", x, approximate=approximate)


def gelu_quick(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", g.op("Mul", g.number(1.702), x)))


def silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def optimised(kind: str, *, biased: bool = False) -> Function:
    """An operator of com.microsoft."""
    return lambda g, x: g.op(kind, x, *[weight(g)] * biased, domain="com.microsoft")


def hard_swish(g: Graph, x: str) -> str:
    return g.op("HardSwish", x)


def hard_swish_clipped(g: Graph, x: str) -> str:
    clipped = g.op("Clip", g.op("Add", x, g.number(3.0)), g.number(0.0), g.number(6.0))
    return g.op("Mul", x, g.op("Div", clipped, g.number(6.0)))


def hard_swish_sigmoid(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


# -- norms ---------------------------------------------------------------------------------------------


def layer_norm(g: Graph, x: str) -> str:
    return g.op("LayerNormalization", x, weight(g), weight(g), axis=-1)


def layer_norm_written_out(g: Graph, x: str) -> str:
    """torch below opset 17."""
    centred = g.op("Sub", x, mean(g, x))
    variance = mean(g, g.op("Pow", centred, g.number(2.0)))
    y = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.number(1e-5))))
    return g.op("Add", g.op("Mul", y, weight(g)), weight(g))


def layer_norm_shifted(g: Graph, x: str) -> str:
    """Keras: x · r + (b - mean · r)."""
    centre = mean(g, x)
    centred = g.op("Sub", x, centre)
    variance = mean(g, g.op("Mul", centred, centred))
    r = g.op("Reciprocal", g.op("Sqrt", g.op("Add", variance, g.number(1e-3))))
    r = g.op("Mul", r, weight(g))
    return g.op("Add", g.op("Mul", x, r), g.op("Sub", weight(g), g.op("Mul", centre, r)))


def rms_norm(g: Graph, x: str) -> str:
    r = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean(g, g.op("Pow", x, g.number(2.0))), g.number(1e-6))))
    return g.op("Mul", weight(g), g.op("Mul", x, r))


def rms_norm_divided(g: Graph, x: str) -> str:
    """T5's older exports."""
    root = g.op("Sqrt", g.op("Add", mean(g, g.op("Mul", x, x)), g.number(1e-6)))
    return g.op("Mul", g.op("Div", x, root), weight(g))


def rms_norm_operator(g: Graph, x: str) -> str:
    return g.op("RMSNormalization", x, weight(g), axis=-1)


def group_norm(g: Graph, x: str) -> str:
    """torch and paddle2onnx: groups as the channels of an instance norm."""
    groups = g.reshape(x, 0, 8, -1)
    y = g.op("InstanceNormalization", groups, g.weight(np.ones(8, "f4")), g.weight(np.zeros(8, "f4")))
    y = g.reshape(y, 1, WIDTH, 12, 12)
    return g.op("Add", g.op("Mul", y, weight(g, WIDTH, 1, 1)), weight(g, WIDTH, 1, 1))


def instance_norm(g: Graph, x: str) -> str:
    return g.op("InstanceNormalization", x, weight(g), weight(g))


# Exporters and structure → how to make it.
ACTIVATIONS: dict[tuple[str, str], Function] = {
    ("torch, TorchScript", "GELU"): gelu_erf,
    ("torch, TorchScript; tf2onnx", "GELU by tanh"): gelu_tanh,
    ("torch, dynamo", "GELU"): gelu("none"),
    ("torch, dynamo", "GELU by tanh"): gelu("tanh"),
    ("paddle2onnx", "GELU"): gelu_halved,
    ("all", "quick GELU"): gelu_quick,
    ("all", "SiLU"): silu,
    ("torch", "HardSwish"): hard_swish,
    ("tf2onnx, paddle2onnx", "HardSwish"): hard_swish_clipped,
    ("torch, dynamo", "HardSwish"): hard_swish_sigmoid,
    ("ONNX Runtime's optimiser", "Gelu"): optimised("Gelu"),
    ("ONNX Runtime's optimiser", "BiasGelu"): optimised("BiasGelu", biased=True),
    ("ONNX Runtime's optimiser", "FastGelu"): optimised("FastGelu"),
    ("ONNX Runtime's optimiser", "QuickGelu"): optimised("QuickGelu"),
}
def skip_norm(g: Graph, x: str) -> str:
    scale, shift, bias = weight(g), weight(g), weight(g)
    return g.op("SkipLayerNormalization", x, g.inputs[0].name, scale, shift, bias, epsilon=1e-5, domain="com.microsoft")


def skip_norm_simplified(g: Graph, x: str) -> str:
    return g.op("SkipSimplifiedLayerNormalization", x, g.inputs[0].name, weight(g), epsilon=1e-6, domain="com.microsoft")


def norm_simplified(g: Graph, x: str) -> str:
    return g.op("SimplifiedLayerNormalization", x, weight(g), axis=-1, epsilon=1e-6)


NORMS: dict[tuple[str, str], Function] = {
    ("torch, paddle2onnx", "LayerNorm"): layer_norm,
    ("torch below opset 17", "LayerNorm"): layer_norm_written_out,
    ("tf2onnx", "LayerNorm"): layer_norm_shifted,
    ("all", "RMSNorm"): rms_norm,
    ("all", "RMSNorm, a quotient"): rms_norm_divided,
    ("torch, dynamo, opset 23", "RMSNorm"): rms_norm_operator,
    ("ONNX Runtime's optimiser", "SkipLayerNormalization"): skip_norm,
    ("ONNX Runtime's optimiser", "SkipSimplifiedLayerNormalization, RMSNorm"): skip_norm_simplified,
    ("ONNX Runtime's optimiser", "SimplifiedLayerNormalization, RMSNorm"): norm_simplified,
}
IMAGES: dict[tuple[str, str], Function] = {
    ("torch, paddle2onnx", "GroupNorm"): group_norm,
    ("torch, paddle2onnx", "InstanceNorm"): instance_norm,
}
