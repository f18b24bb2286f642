"""Small networks of the four shapes that stress different parts of the runtime: each builds in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VERSIONS = ("a", "b")  # of every network: the same graph with other weights, which replace each other's files


@dataclass(frozen=True)
class Network:
    """A graph, and inputs to run it with."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[dict[str, np.ndarray], ...]


def networks(version: str) -> list[Network]:
    """All of them, with the weights of one of VERSIONS. The inputs are the same for every version."""
    weights = np.random.default_rng(VERSIONS.index(version))
    inputs = np.random.default_rng(7)
    return [build(weights, inputs) for build in (_convolutions, _transformer, _embedding, _decoder)]


def _convolutions(weights: np.random.Generator, inputs: np.random.Generator) -> Network:
    """A residual block between convolutions, and a dense layer that makes up most of the weights (2 MiB)."""
    graph = _Graph(weights)
    x = graph.conv("x", 16, 32, kernel=3)
    y = graph.conv(x, 32, 32, kernel=3)
    y = graph.add("Add", y, graph.conv(x, 32, 32, kernel=1))
    y = graph.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = graph.add("Flatten", graph.conv(y, 32, 64, kernel=3))
    y = graph.dense(y, 64 * 64, 128)
    return graph.finish("convolutions", {"x": (1, 16, 16, 16)}, graph.dense(y, 128, 10), inputs)


def _transformer(weights: np.random.Generator, inputs: np.random.Generator) -> Network:
    """Two layers of attention (two heads) and feed-forward on 32 tokens of 128 numbers: many small segments."""
    graph = _Graph(weights)
    x = "x"
    for _ in range(2):
        heads = [
            graph.add("Transpose", graph.add("Reshape", graph.dense(x, 128, 128), graph.ints(1, 32, 2, 64)), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        ]
        scores = graph.add("Mul", graph.add("MatMul", heads[0], heads[1]), graph.constant(np.float32(64**-0.5)))
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), heads[2])
        joined = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), graph.ints(1, 32, 128))
        x = graph.norm(graph.add("Add", x, graph.dense(joined, 128, 128)), 128)
        hidden = graph.add("Relu", graph.dense(x, 128, 512))
        x = graph.norm(graph.add("Add", x, graph.dense(hidden, 512, 128)), 128)
    return graph.finish("transformer", {"x": (1, 32, 128)}, x, inputs)


def _embedding(weights: np.random.Generator, inputs: np.random.Generator) -> Network:
    """Rows of a table of 4 MiB, which is sliced by rows, and a dense layer."""
    graph = _Graph(weights)
    table = graph.constant(weights.standard_normal((8192, 128)).astype("f4"))
    x = graph.norm(graph.add("Gather", table, "x"), 128)
    return graph.finish("embedding", {"x": (1, 24)}, graph.dense(x, 128, 64), inputs, indices_below=8192)


def _decoder(weights: np.random.Generator, inputs: np.random.Generator) -> Network:
    """Three convolutions that grow an image. On its smallest budgets everything that is not pinned is read ahead."""
    graph = _Graph(weights)
    x = "x"
    for given, made in ((96, 64), (64, 32)):
        x = graph.add("Relu", graph.conv(x, given, made, kernel=3))
        scales = graph.constant(np.array([1, 1, 2, 2], "f4"))
        x = graph.add("Resize", x, "", scales, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    return graph.finish("decoder", {"x": (1, 96, 6, 6)}, graph.conv(x, 32, 3, kernel=3), inputs)


class _Graph:
    """Collects nodes and weights; every method returns the name of a tensor."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: np.ndarray | np.generic) -> str:
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, "i8"))

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(self, x: str, given: int, made: int, kernel: int) -> str:
        weight = self._draw(made, given, kernel, kernel, terms=given * kernel * kernel)
        return self.add("Conv", x, weight, self._draw(made, terms=16), pads=[kernel // 2] * 4)

    def dense(self, x: str, given: int, made: int) -> str:
        return self.add("Add", self.add("MatMul", x, self._draw(given, made, terms=given)), self._draw(made, terms=16))

    def norm(self, x: str, width: int) -> str:
        return self.add("LayerNormalization", x, self._draw(width, terms=1), self._draw(width, terms=16), axis=-1)

    def finish(
        self,
        name: str,
        shapes: dict[str, Sequence[int]],
        output: str,
        inputs: np.random.Generator,
        indices_below: int | None = None,
    ) -> Network:
        kind = TensorProto.FLOAT if indices_below is None else TensorProto.INT64
        graph = helper.make_graph(
            [*self._nodes, helper.make_node("Identity", [output], ["y"])],
            name,
            [helper.make_tensor_value_info(key, kind, shape) for key, shape in shapes.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            self._constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)

        def draw(shape: Sequence[int]) -> np.ndarray:
            if indices_below is None:
                return inputs.standard_normal(shape).astype("f4")
            return inputs.integers(0, indices_below, shape)

        given = tuple({key: draw(shape) for key, shape in shapes.items()} for _ in range(3))
        return Network(name, model, given)

    def _draw(self, *shape: int, terms: int) -> str:
        return self.constant((self._random.standard_normal(shape) * terms**-0.5).astype("f4"))
