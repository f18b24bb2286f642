"""Large weights are kept out of simplification, and come back unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import onnxslim
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from flexcomp.frontend.onnx_model import simplify_onnx

WIDTH = 600  # a matrix of that width is large


def model(listed: bool = False) -> onnx.ModelProto:
    """y = (x W + b) V with W and V large; V is read through two transpositions, which simplification removes."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype("f4") for name in "WV"}
    weights["b"] = rng.standard_normal(WIDTH).astype("f4")
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Transpose", ["V"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["t"], ["u"], perm=[1, 0]),
        helper.make_node("MatMul", ["s", "u"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, WIDTH))]
    if listed:
        inputs += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in tensors]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, WIDTH))]
    graph = helper.make_graph(nodes, "network", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(network: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return ReferenceEvaluator(network).run(None, {"x": x})[0]


@pytest.mark.parametrize("listed", [False, True])
def test_simplification_sees_small_weights_only(monkeypatch, listed):
    seen = []
    slim = onnxslim.slim

    def spy(given, **options):
        seen.extend(int(np.prod(t.dims)) for t in given.graph.initializer)
        return slim(given, **options)

    monkeypatch.setattr(onnxslim, "slim", spy)
    x = np.random.default_rng(1).standard_normal((2, WIDTH)).astype("f4")
    expected = run(model(listed), x)
    simple = simplify_onnx(model(listed), {})
    assert seen == [WIDTH]
    assert [i.name for i in simple.graph.input] == ["x"]
    assert sum(np.prod(t.dims) == WIDTH * WIDTH for t in simple.graph.initializer) == 2
    assert all(node.op_type != "Transpose" for node in simple.graph.node)
    np.testing.assert_allclose(run(simple, x), expected, rtol=1e-5, atol=1e-3)


def test_weights_come_back_where_simplification_fails(monkeypatch):
    def fail(_):
        raise RuntimeError("no")

    monkeypatch.setattr(onnxslim, "slim", fail)
    x = np.ones((2, WIDTH), "f4")
    np.testing.assert_allclose(run(simplify_onnx(model(), {}), x), run(model(), x), rtol=1e-5, atol=1e-3)
