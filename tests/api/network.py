"""The network of the tests of the C interface: two inputs and outputs of other types, a state, and a megabyte of weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 512
STATE = {"h_out": "h_in"}


def weights() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    return tuple(random.standard_normal((rows, WIDTH)).astype("f4") / np.float32(rows**0.5) for rows in (16, WIDTH))


def model() -> onnx.ModelProto:
    """s = x + h_in; y = (s · a) · b; h_out = s; next = n + 1."""
    f4, i8 = TensorProto.FLOAT, TensorProto.INT64
    info, node = helper.make_tensor_value_info, helper.make_node
    a, b = weights()
    nodes = [
        node("Add", ["x", "h_in"], ["s"]),
        node("Identity", ["s"], ["h_out"]),
        node("MatMul", ["s", "a"], ["t"]),
        node("MatMul", ["t", "b"], ["y"]),
        node("Add", ["n", "one"], ["next"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [info("x", f4, (1, 16)), info("n", i8, (3,)), info("h_in", f4, (1, 16))],
        [info("y", f4, (1, WIDTH)), info("next", i8, (3,)), info("h_out", f4, (1, 16))],
        [numpy_helper.from_array(array, name) for name, array in (("a", a), ("b", b), ("one", np.int64([1])))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def expected(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """y of an inference that begins with the state h."""
    a, b = weights()
    return ((x + h).astype("f8") @ a @ b).astype("f4")
