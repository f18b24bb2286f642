"""Encoders of texts: BERT's layers, for ids and a mask of any length, as exported from PyTorch."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.networks.graph import Graph

VOCABULARY, POSITIONS = 5000, 512


def encoder(
    layers: int = 2, width: int = 384, heads: int = 12, hidden: float = float(np.finfo(np.float32).min), seed: int = 0
) -> onnx.ModelProto:
    """MiniLM's parts (Wang et al. 2020): "ids" and "mask", int64 [batch, n], become "output", [batch, n, width].

    `hidden` is added to the scores of keys where the mask is 0.
    """
    g = Graph("encoder", seed)
    for name in ("ids", "mask"):
        g.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "n"]))
    split = g.integers(0, 0, heads, width // heads)
    joined = g.integers(0, 0, width)

    def by_heads(x: str, order: list[int]) -> str:
        return g.op("Transpose", g.op("Reshape", x, split), perm=order)

    def attention(x: str, mask: str) -> str:
        query, value = (by_heads(g.linear(x, width, gain), [0, 2, 1, 3]) for gain in (1.5, 1.0))
        key = by_heads(g.linear(x, width, 1.5), [0, 2, 3, 1])
        scores = g.op("Add", g.op("Div", g.op("MatMul", query, key), g.number(math.sqrt(width // heads))), mask)
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
        mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), joined, channels=width)
        return g.linear(mixed, width)

    g.channels["ids"] = width
    count = g.op("Gather", g.op("Shape", "ids"), g.weight(np.int64(1)))
    places = g.op("Range", g.weight(np.int64(0)), count, g.weight(np.int64(1)))
    x = g.op("Gather", g.normal((VOCABULARY, width), 1.0), "ids", channels=width)
    x = g.op("Add", x, g.op("Gather", g.normal((POSITIONS, width), 0.3), places), channels=width)
    x = g.layer_norm(x, 1e-12)
    here = g.op("Cast", g.op("Unsqueeze", "mask", g.integers(1, 2)), to=TensorProto.FLOAT)
    mask = g.op("Mul", g.op("Sub", g.number(1.0), here), g.number(hidden))
    for _ in range(layers):
        x = g.layer_norm(g.op("Add", attention(x, mask), x, channels=width), 1e-12)
        x = g.layer_norm(g.op("Add", g.linear(g.gelu(g.linear(x, 4 * width)), width), x, channels=width), 1e-12)
    return g.model(x, ("batch", "n", width))
