"""Networks whose axis "n" is padded: some in which that moves no output, and some in which it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

import flexcomp
from tests.shaped import Nodes

WIDTH = 8
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def masked_encoder(width: int = 32, vocabulary: int = 50) -> onnx.ModelProto:
    """Embeddings of `ids` and attention to those whose `mask` is 1; the rows, and their mean where the mask is 1."""
    g = Nodes(seed=0)
    x = g.op("Gather", g.weight(vocabulary, width), "ids")
    heads, whole = g.constant([0, 0, 2, width // 2]), g.constant([0, 0, width])
    q, k, v = (g.op("Reshape", g.op("MatMul", x, g.weight(width, width)), heads) for _ in range(3))
    scores = g.op("MatMul", g.op("Transpose", q, perm=[0, 2, 1, 3]), g.op("Transpose", k, perm=[0, 2, 3, 1]))
    here = g.op("Cast", "mask", to=FLOAT)
    away = g.op("Mul", g.op("Sub", g.constant(np.float32(1)), here), g.constant(np.float32(-1e9)))
    seen = g.op("Softmax", g.op("Add", scores, g.op("Unsqueeze", away, g.constant([1, 2]))), axis=-1)
    mixed = g.op("MatMul", seen, g.op("Transpose", v, perm=[0, 2, 1, 3]))
    rows = g.named("rows", "Add", x, g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), whole))
    some = g.op("ReduceSum", g.op("Mul", rows, g.op("Unsqueeze", here, g.constant([2]))), g.constant([1]), keepdims=0)
    g.named("mean", "Div", some, g.op("ReduceSum", here, g.constant([1]), keepdims=1))
    inputs = [("ids", INT64, [1, "n"]), ("mask", INT64, [1, "n"])]
    return g.model(inputs, [("rows", FLOAT, [1, "n", width]), ("mean", FLOAT, [1, width])])


def masked_library(path: Path) -> Path:
    """The masked encoder built for 5 and 12 rows, and lengths between, at `path`."""
    flexcomp.build(
        masked_encoder(), input_shapes={"ids": (1, "n"), "mask": (1, "n")}, shapes={"n": [12, 5]}, pad={"ids": 0, "mask": 0},
        threads=1, probe=False, progress=False,
    ).export_library(path)  # fmt: skip
    return path


def recurrence(direction: str = "forward", *, last: bool = False) -> onnx.ModelProto:
    """A GRU over n, and its last state if it is an output."""
    g = Nodes(seed=1)
    weights = g.weight(1, 3 * WIDTH, WIDTH), g.weight(1, 3 * WIDTH, WIDTH), g.weight(1, 6 * WIDTH)
    g.named("y", "GRU", "x", *weights, direction=direction, hidden_size=WIDTH)
    if last:
        g.nodes[-1].output.append("last")
    outputs = [("y", FLOAT, ["n", 1, 1, WIDTH]), ("last", FLOAT, [1, 1, WIDTH])]
    return g.model([("x", FLOAT, ["n", 1, WIDTH])], outputs[: 1 + last])


def subsampled(*, causal: bool = True, doubled: bool = False) -> onnx.ModelProto:
    """Two convolutions of stride 2 of frames x, [1, 8, n], which look back only if `causal`; z, if `doubled`, is two of each."""
    g = Nodes(seed=4)
    pads = [2, 0] if causal else [1, 1]
    x = g.op("Relu", g.op("Conv", "x", g.weight(WIDTH, WIDTH, 3), g.weight(WIDTH), strides=[2], pads=pads))
    g.named("y", "Conv", x, g.weight(4, WIDTH, 3), g.weight(4), strides=[2], pads=pads)
    outputs = [("y", FLOAT, [1, 4, "m"])]
    if doubled:
        scales = g.constant(np.array([1, 1, 2], "float32"))
        g.named("z", "Resize", "x", "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        outputs.append(("z", FLOAT, [1, WIDTH, "l"]))
    return g.model([("x", FLOAT, [1, WIDTH, "n"])], outputs)


def rows(of, extents=("n", WIDTH)) -> onnx.ModelProto:
    """Two outputs of x, whose rows are n: "kept", each element by itself, and "moved", which is that of `of`."""
    g = Nodes(seed=2)
    g.named("kept", "Tanh", "x")
    kind, *inputs = of(g)
    attributes = inputs.pop() if isinstance(inputs[-1], dict) else {}
    g.named("moved", kind, *inputs, **attributes)
    return g.model([("x", FLOAT, ["n", WIDTH])], [("kept", FLOAT, ["n", WIDTH]), ("moved", FLOAT, list(extents))])


def _shifted(g: Nodes) -> str:
    """No zeros where x is padded with zeros."""
    return g.op("Add", "x", g.constant(np.float32(1.5)))


def _normalised(g: Nodes) -> tuple:
    """By mean and variance of each column."""
    apart = g.op("Sub", "x", g.op("ReduceMean", "x", g.constant([0])))
    return "Div", apart, g.op("Sqrt", g.op("ReduceMean", g.op("Mul", apart, apart), g.constant([0])))


def _convolved(g: Nodes) -> tuple:
    """Twice: the second sees the bias of the first where x ends."""
    x = g.op("Unsqueeze", g.op("Transpose", "x", perm=[1, 0]), g.constant([0]))
    for _ in range(2):
        x = g.op("Conv", x, g.weight(WIDTH, WIDTH, 3), g.weight(WIDTH), pads=[1, 1])
    return "Transpose", g.op("Squeeze", x, g.constant([0])), {"perm": [1, 0]}


def _summed_from_the_end(g: Nodes) -> tuple:
    return "CumSum", _shifted(g), g.constant(np.int64(0)), {"reverse": 1}


LEAKS = {
    "mean": lambda: rows(lambda g: ("ReduceMean", "x", g.constant([0])), (1, WIDTH)),
    "statistics of the batch": lambda: rows(_normalised),
    "softmax over the axis": lambda: rows(lambda g: ("Softmax", "x", {"axis": 0})),
    "sum from the end": lambda: rows(_summed_from_the_end),
    "convolutions with a bias": lambda: rows(_convolved),
}


def left_out(width: int) -> onnx.ModelProto:
    """Outputs that padding would move, if kernels did not leave it out: of reductions over rows, and of products with what a
    range over all rows quantises."""
    g = Nodes(seed=3)
    x = g.op("LayerNormalization", g.op("MatMul", "x", g.weight(width, width)), g.weight(width), g.weight(width))
    g.named("largest", "ReduceMax", g.op("Sub", x, g.constant(np.float32(9))), g.constant([0]), keepdims=0)
    g.named("least", "ReduceMin", g.op("Add", x, g.constant(np.float32(9))), keepdims=0)
    g.named("sum", "ReduceSum", x, g.constant([0]), keepdims=0)
    for number in range(2):  # the second range is of what padding would move
        scale, zero = f"scale_{number}", f"zero_{number}"
        bytes_of = g.op("DynamicQuantizeLinear", x)
        g.nodes[-1].output.extend([scale, zero])
        product = g.op("MatMulInteger", bytes_of, g.constant(g.random.integers(-128, 128, (width, width)).astype("int8")), zero)
        by = g.op("Mul", scale, g.constant(np.float32(0.003)))
        x = g.op("Add", g.op("Mul", g.op("Cast", product, to=FLOAT), by), g.weight(width))
    scores = g.op("MatMul", x, g.op("Transpose", x, perm=[1, 0]))
    g.named("attended", "MatMul", g.op("Softmax", scores, axis=-1), x)
    g.named("y", "Identity", x)
    shapes = {"largest": [width], "least": [], "sum": [width], "attended": ["n", width], "y": ["n", width]}
    return g.model([("x", FLOAT, ["n", width])], [(name, FLOAT, shape) for name, shape in shapes.items()])
