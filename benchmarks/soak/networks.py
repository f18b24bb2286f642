"""Small networks of the four shapes that stress different parts of the runtime: each builds in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.networks.graph import Graph

VERSIONS = ("a", "b")  # of every network: the same graph with other weights, which replace each other's files
_EXAMPLES = 3


@dataclass(frozen=True)
class Network:
    """A graph, and its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[dict[str, np.ndarray], ...]


def networks(version: str) -> list[Network]:
    """All of them, with the weights of one of VERSIONS. The inputs are the same for every version."""
    inputs = np.random.default_rng(7)
    pixels = lambda shape: inputs.standard_normal(shape).astype("f4")  # noqa: E731
    rows = lambda shape: inputs.integers(0, _ROWS, shape)  # noqa: E731
    made = []
    for build, shape, draw in (
        (_convolutions, (1, 16, 16, 16), pixels),
        (_transformer, (1, 32, 128), pixels),
        (_embedding, (1, 24), rows),
        (_decoder, (1, 96, 6, 6), pixels),
    ):
        made.append(_network(build, shape, VERSIONS.index(version), draw))
    return made


def _network(build: Callable, shape: Sequence[int], seed: int, draw: Callable) -> Network:
    name = build.__name__.removeprefix("_")
    graph = Graph(name, seed)
    x = graph.input("x", shape, TensorProto.INT64 if build is _embedding else TensorProto.FLOAT)
    output, extents = build(graph, x)
    return Network(name, graph.model(output, extents), tuple({"x": draw(shape)} for _ in range(_EXAMPLES)))


def _convolutions(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """A residual block between convolutions, and a dense layer that makes up most of the weights (2 MiB)."""
    x = graph.conv(x, 32, 3)
    y = graph.op("Add", graph.conv(x, 32, 3), graph.conv(x, 32, 1))
    y = graph.conv(graph.max_pool(y, 2, 2), 64, 3)
    y = graph.op("Flatten", y, channels=64 * 64)
    return graph.linear(graph.linear(y, 128), 10), (1, 10)


def _transformer(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """Two layers of attention (two heads) and feed-forward on 32 tokens of 128 numbers: many small segments."""
    graph.channels[x] = 128
    for _ in range(2):
        heads = [
            graph.op("Transpose", graph.reshape(graph.linear(x, 128), 1, 32, 2, 64), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        ]
        scores = graph.op("Mul", graph.op("MatMul", heads[0], heads[1]), graph.number(64**-0.5))
        mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), heads[2])
        joined = graph.reshape(graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), 1, 32, 128, channels=128)
        x = graph.layer_norm(graph.op("Add", x, graph.linear(joined, 128)))
        hidden = graph.relu(graph.linear(x, 512))
        x = graph.layer_norm(graph.op("Add", x, graph.linear(hidden, 128)))
    return x, (1, 32, 128)


_ROWS = 8192


def _embedding(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """Rows of a table of 4 MiB, which is sliced by rows, and a dense layer."""
    rows = graph.op("Gather", graph.normal((_ROWS, 128), 1.0), x, channels=128)
    return graph.linear(graph.layer_norm(rows), 64), (1, 24, 64)


def _decoder(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """Three convolutions that grow an image. On its smallest budgets everything that is not pinned is read ahead."""
    for channels in (64, 32):
        x = graph.relu(graph.conv(x, channels, 3))
        scales = graph.floats(1, 1, 2, 2)
        x = graph.op("Resize", x, "", scales, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return graph.conv(x, 3, 3), (1, 3, 24, 24)
