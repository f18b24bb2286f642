"""A network that writes rows to states in place, and the same in NumPy."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WIDTH, CAPACITY = 64, 12
STATE = {"c1": "c0", "d1": "d0"}


class Rings:
    """y = (all of d) · v after u · w was written to a ring c, and all of c · u to another, d; in NumPy."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.w, self.u, self.v = (
            (rng.standard_normal((rows, WIDTH)) / rows**0.5).astype("f4") for rows in (WIDTH, CAPACITY * WIDTH, CAPACITY * WIDTH)
        )
        self.c, self.d = (np.zeros((1, 1, CAPACITY, WIDTH), "f4") for _ in range(2))

    def run(self, x: np.ndarray, at: int) -> np.ndarray:
        self.c[0, 0, at % CAPACITY] = x @ self.w
        self.d[0, 0, at % CAPACITY] = self.c.reshape(1, -1) @ self.u
        return self.d.reshape(1, -1) @ self.v

    def agrees(self, state: dict[str, np.ndarray]) -> bool:
        return np.allclose(state["c0"], self.c, atol=1e-4) and np.allclose(state["d0"], self.d, atol=1e-4)

    def model(self):
        node, f4, info = helper.make_node, TensorProto.FLOAT, helper.make_tensor_value_info
        row, flat, ring = (1, 1, 1, WIDTH), (1, CAPACITY * WIDTH), self.c.shape
        constants = {"w": self.w, "u": self.u, "v": self.v, "row": np.int64(row), "flat": np.int64(flat)}
        nodes = [
            node("MatMul", ["x", "w"], ["a"]), node("Reshape", ["a", "row"], ["a4"]),
            node("TensorScatter", ["c0", "a4", "at"], ["c1"], mode="circular"),
            node("Reshape", ["c1", "flat"], ["all"]), node("MatMul", ["all", "u"], ["b"]), node("Reshape", ["b", "row"], ["b4"]),
            node("TensorScatter", ["d0", "b4", "at"], ["d1"], mode="circular"),
            node("Reshape", ["d1", "flat"], ["dall"]), node("MatMul", ["dall", "v"], ["y"]),
        ]  # fmt: skip
        given = [info("x", f4, (1, WIDTH)), info("at", TensorProto.INT64, (1,)), info("c0", f4, ring), info("d0", f4, ring)]
        made = [info("y", f4, (1, WIDTH)), info("c1", f4, ring), info("d1", f4, ring)]
        graph = helper.make_graph(nodes, "rings", given, made, [numpy_helper.from_array(v, n) for n, v in constants.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
