"""GPT-2 for decoding token by token: keys and values of all tokens before lie in caches of a fixed capacity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.networks.graph import Graph


@dataclass(frozen=True)
class Sizes:
    """Of a decoder; those of GPT-2 small (Radford et al. 2019)."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024

    @property
    def depth(self) -> int:
        """Of a head."""
        return self.width // self.heads

    def caches(self, capacity: int) -> dict[str, np.ndarray]:
        """Empty ones, by the names of the inputs."""
        shape = (1, self.heads, capacity, self.depth)
        return {f"past.{i}.{part}": np.zeros(shape, np.float32) for i in range(self.layers) for part in ("key", "value")}

    @property
    def state(self) -> dict[str, str]:
        """Which output becomes which input of the next inference."""
        return {name.replace("past", "present"): name for name in self.caches(0)}


def gpt2_decoder(tokens: int, capacity: int, sizes: Sizes = Sizes(), seed: int = 0) -> onnx.ModelProto:
    """(ids int64[1, tokens], at int64[1], caches) → (logits [1, vocabulary] of the last token, caches).

    `at` says how many tokens came before; the same seed gives the same weights for any number of `tokens`.
    """
    g = Graph("gpt2_decoder", seed)
    ids, at = g.input("ids", (1, tokens), TensorProto.INT64), "at"
    g.inputs.append(helper.make_tensor_value_info(at, TensorProto.INT64, [1]))
    shape = [1, sizes.heads, capacity, sizes.depth]
    caches = [*sizes.caches(0)]
    g.inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in caches]
    valid = g.op("Add", at, g.integers(tokens))
    gain = (2 * sizes.layers) ** -0.5  # of branches, whose variances add up

    def cached(new: str, past: str) -> str:
        present = past.replace("past", "present")
        g.nodes.append(helper.make_node("TensorScatter", [past, new, at], [present], name=present))
        return present

    def heads(x: str) -> str:
        return g.op("Transpose", g.reshape(x, 1, tokens, sizes.heads, sizes.depth), perm=[0, 2, 1, 3])

    def attention(x: str, layer: int) -> str:
        query, key, value = map(heads, g.split(g.linear(x, 3 * sizes.width, 1.5), 3, axis=2))
        key, value = cached(key, f"past.{layer}.key"), cached(value, f"past.{layer}.value")
        mixed = g.op("Attention", query, key, value, "", "", "", valid, is_causal=1, scale=1 / math.sqrt(sizes.depth))
        joined = g.reshape(g.op("Transpose", mixed, perm=[0, 2, 1, 3]), 1, tokens, sizes.width, channels=sizes.width)
        return g.linear(joined, sizes.width, gain)

    table = g.normal((sizes.vocabulary, sizes.width), 0.1)
    steps = g.op("Add", at, g.weight(np.arange(tokens, dtype=np.int64)))
    x = g.op("Gather", table, ids, axis=0, channels=sizes.width)
    x = g.op("Add", x, g.op("Gather", g.normal((sizes.positions, sizes.width), 0.05), steps, axis=0))
    for layer in range(sizes.layers):
        x = g.op("Add", x, attention(g.layer_norm(x), layer))
        x = g.op("Add", x, g.linear(g.gelu(g.linear(g.layer_norm(x), 4 * sizes.width)), sizes.width, gain))
    last = g.op("Gather", g.layer_norm(x), g.weight(np.int64(tokens - 1)), axis=1)
    head = g.normal((sizes.width, sizes.vocabulary), sizes.width**-0.5)
    g.nodes.append(helper.make_node("MatMul", [last, head], ["logits"], name="logits"))
    made = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, sizes.vocabulary])]
    made += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in sizes.state]
    graph = helper.make_graph(g.nodes, g.name, g.inputs, made, g.weights)
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 24)])
