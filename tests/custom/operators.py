"""Custom operators, of kernels in TVMScript and in C, and a network of them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm.script import tirx as T

from flexcomp import CKernel, CustomOperator, Tensor

DOMAIN = "com.example"
SCAN = """
#include <stdint.h>

static float decayed(float sum, float value) { return sum * DECAY + value; }

void scan(int32_t task, int32_t tasks, const float *x, float *y, float *sums) {
  for (int row = task; row < ROWS; row += tasks) {
    sums[row] = 0;
    for (int i = 0; i < COLUMNS; ++i) y[row * COLUMNS + i] = sums[row] = decayed(sums[row], x[row * COLUMNS + i]);
  }
}
"""


def same(inputs, attributes):
    return inputs[0]


def scan(node):
    """y[i] = decay · y[i - 1] + x[i], along rows."""
    rows, columns = node.shape
    defined = (f"-DROWS={rows}", f"-DCOLUMNS={columns}", f"-DDECAY={node.attrs['decay']}f")
    kernel = CKernel(SCAN, "scan", tasks=2, scratch=(rows,), options=("-O2", *defined))
    return node.call(kernel, node.inputs, operations=2 * rows * columns)


def scaled_kernel(rows, columns):
    @T.prim_func
    def scaled(x: T.Buffer((rows, columns), "float32"), w: T.Buffer((columns,), "float32"),
               y: T.Buffer((rows, columns), "float32"), sums: T.Buffer((rows,), "float32")):  # fmt: skip
        for i in T.parallel(rows):
            sums[i] = 0.0
            for j in T.serial(columns):
                y[i, j] = x[i, j] * w[j]
                sums[i] = sums[i] + y[i, j]

    return scaled


def scaled(node):
    """x · w, and the sums of its rows."""
    rows, columns = node.shape
    return node.call(scaled_kernel(rows, columns), node.inputs, operations=2 * rows * columns)


def scaled_shapes(inputs, attributes):
    return inputs[0], Tensor(inputs[0].shape[:1])


OPERATORS = (CustomOperator("Scan1D", same, scan, DOMAIN), CustomOperator("Scaled", scaled_shapes, scaled, DOMAIN, since=2))
WEIGHTS = np.random.default_rng(0).standard_normal(12).astype("f4")


def model(nodes, inputs, weights=None, outputs=("z",), version=2, functions=(), opset=17):
    """A network of `nodes` with float32 inputs, by their shapes."""
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, functions=list(functions))


def network() -> onnx.ModelProto:
    """x [4, 6] → two scans, of other shapes, and a scaling, of whose results shapes are asked."""
    nodes = [
        helper.make_node("Scan1D", ["x"], ["a"], "first", domain=DOMAIN, decay=0.5),
        helper.make_node("Reshape", ["a", "two"], ["b"]),
        helper.make_node("Scan1D", ["b"], ["c"], "second", domain=DOMAIN, decay=0.25),
        helper.make_node("Scaled", ["c", "w"], ["d", "sums"], "third", domain=DOMAIN),
        helper.make_node("Shape", ["sums"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["ones"]),
        helper.make_node("Sub", ["sums", "ones"], ["s"]),
        helper.make_node("Relu", ["d"], ["z"], "last"),
    ]
    weights = {"two": np.array([2, 12]), "w": WEIGHTS, "one": np.ones(1, "f4")}
    return model(nodes, {"x": (4, 6)}, weights, outputs=("z", "s"))


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    c = _scanned(_scanned(x, 0.5).reshape(2, 12), 0.25)
    d = c * WEIGHTS
    return {"z": np.maximum(d, 0), "s": d.sum(axis=1) - 1}


def _scanned(x: np.ndarray, decay: float) -> np.ndarray:
    y, total = np.zeros_like(x), np.zeros(len(x), "f4")
    for i in range(x.shape[1]):
        total = total * np.float32(decay) + x[:, i]
        y[:, i] = total
    return y
