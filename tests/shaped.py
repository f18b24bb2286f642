"""Networks whose inputs have extents with names."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS = {"ids": (1, "n")}


class Nodes:
    """A graph that grows node by node."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def named(self, output: str, kind: str, *inputs: str, **attributes) -> str:
        self.op(kind, *inputs, **attributes)
        self.nodes[-1].output[0] = output
        return output

    def weight(self, *shape: int) -> str:
        return self.constant((0.2 * self.random.standard_normal(shape)).astype("float32"))

    def constant(self, value) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def model(self, inputs, outputs) -> onnx.ModelProto:
        ports = [[helper.make_tensor_value_info(*port) for port in of] for of in (inputs, outputs)]
        graph = helper.make_graph(self.nodes, "shaped", *ports, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def encoder(width: int = 64, vocabulary: int = 300, most: int = 64) -> onnx.ModelProto:
    """Embeddings of `ids`, rows of positions, one layer of attention and one of two dense layers."""
    g = Nodes(seed=0)
    count = g.op("Gather", g.op("Shape", "ids"), g.constant(1))
    rows = g.op("Gather", g.weight(most, width), g.op("Range", g.constant(0), count, g.constant(1)))
    x = g.op("Add", g.op("Gather", g.weight(vocabulary, width), "ids"), rows)
    heads, whole = g.constant([0, 0, 4, width // 4]), g.constant([0, 0, width])
    q, k, v = (g.op("Reshape", g.op("MatMul", x, g.weight(width, width)), heads) for _ in range(3))
    scores = g.op("MatMul", g.op("Transpose", q, perm=[0, 2, 1, 3]), g.op("Transpose", k, perm=[0, 2, 3, 1]))
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), g.op("Transpose", v, perm=[0, 2, 1, 3]))
    x = g.op("Add", x, g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), whole))
    wide = g.op("Relu", g.op("MatMul", x, g.weight(width, 4 * width)))
    g.nodes[-1].output[0] = wide
    y = g.op("Add", x, g.op("MatMul", wide, g.weight(4 * width, width)))
    g.nodes[-1].output[0] = "y"
    assert y
    return g.model([("ids", TensorProto.INT64, [1, "n"])], [("y", TensorProto.FLOAT, [1, "n", width])])


def sums() -> onnx.ModelProto:
    """A state of one row: y is x times a matrix plus the state, which grows by the sum of all rows of x."""
    g = Nodes(seed=1)
    y = g.op("Add", g.op("MatMul", "x", g.weight(32, 32)), "total_in")
    total = g.op("Add", "total_in", g.op("ReduceSum", "x", g.constant([0]), keepdims=1))
    g.nodes[1].output[0], g.nodes[-1].output[0] = "y", "total_out"
    assert y and total
    return g.model(
        [("x", TensorProto.FLOAT, ["n", 32]), ("total_in", TensorProto.FLOAT, [1, 32])],
        [("y", TensorProto.FLOAT, ["n", 32]), ("total_out", TensorProto.FLOAT, [1, 32])],
    )


def pictures() -> onnx.ModelProto:
    """Two convolutions of a picture of any size."""
    g = Nodes(seed=2)
    x = g.op("Relu", g.op("Conv", "x", g.weight(32, 3, 3, 3), pads=[1, 1, 1, 1]))
    g.op("Conv", x, g.weight(16, 32, 3, 3), pads=[1, 1, 1, 1])
    g.nodes[-1].output[0] = "y"
    return g.model([("x", TensorProto.FLOAT, [1, 3, "h", "w"])], [("y", TensorProto.FLOAT, [1, 16, "h", "w"])])
