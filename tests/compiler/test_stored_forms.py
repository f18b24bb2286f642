"""Which bytes a weights file holds does not depend on sizes that the weights do not have."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks.graph import Graph
from tests.uncompiled import artifact

TARGET = "llvm -mcpu=x86-64-v3"


def pictures(image: int) -> onnx.ModelProto:
    """Convolutions of all kinds; what follows them has no picture."""
    g = Graph("pictures", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, image, image)), 64, 3))
    x = g.relu(g.conv(g.relu(g.conv(x, 64, 3, groups=64)), 96, 1))
    return g.model(g.conv(g.op("GlobalAveragePool", g.relu(g.conv(x, 96, 3))), 40, 1), (1, 40, 1, 1))


def test_pictures_of_two_sizes_have_one_weights_file(tmp_path):
    files = []
    for image in (24, 40):
        artifact(pictures(image), TARGET, "all", threads=1).write_weights(tmp_path / f"{image}.weights")
        files.append((tmp_path / f"{image}.weights").read_bytes())
    assert files[0] == files[1]


def products(*rows: int) -> onnx.ModelProto:
    """So many rows each, times one matrix."""
    matrix = numpy_helper.from_array(np.random.default_rng(0).standard_normal((128, 256)).astype("f4"), "w")
    inputs = [helper.make_tensor_value_info(f"x{some}", TensorProto.FLOAT, (some, 128)) for some in rows]
    outputs = [helper.make_tensor_value_info(f"y{some}", TensorProto.FLOAT, (some, 256)) for some in rows]
    nodes = [helper.make_node("MatMul", [f"x{some}", "w"], [f"y{some}"]) for some in rows]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [matrix])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_one_row_and_many_agree_on_a_form_in_one_network():
    """Though a single row alone takes wider blocks than others."""
    alone, together = (artifact(products(*rows), TARGET, "all", threads=1) for rows in ((1,), (1, 16)))
    assert together.program.weights_nbytes == alone.program.weights_nbytes
    assert len({layer.weights for layer in together.program.layers if layer.weights and not layer.weights.preparation}) == 1
