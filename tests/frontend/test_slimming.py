"""An optimiser that is called changes no result: graphs that onnxslim makes others of, run before and after."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import onnxslim
import pytest
from onnx import helper, numpy_helper

from flexcomp.frontend.slimming import slim

IMAGE = (1, 2, 4, 4)
WEIGHTS = {
    "conv": np.random.default_rng(0).standard_normal((4, 2, 1, 1)).astype("f4"),
    "matrix": np.random.default_rng(1).standard_normal((4, 5)).astype("f4"),
    "rows": np.random.default_rng(2).standard_normal((3, 5)).astype("f4"),
    "turned": np.random.default_rng(3).standard_normal((5, 4)).astype("f4"),
    "scale4": np.arange(1, 5, dtype="f4"),
    "scale5": np.arange(1, 6, dtype="f4"),
    "channels": np.arange(1, 5, dtype="f4").reshape(1, 4, 1, 1),
    "zero": np.zeros(1, "f4"),
    "-zero": -np.zeros(1, "f4"),
    "half": np.float32(0.5),
    "[1, 1, 2, 2]": np.array([1, 1, 2, 2]),
    "[]": np.zeros(0, "i8"),
    "[15, 1]": np.array([15, 1]),
    "[1, 3, 5]": np.array([1, 3, 5]),
    "[2, 3]": np.array([2, 3]),
    "[3, 3]": np.array([3, 3]),
    "[5, 5]": np.array([5, 5]),
    "[1, 2, 1, 5]": np.array([1, 2, 1, 5]),
    "pads": np.array([0, 0, 2, 1, 0, 0, 0, 1]),
    "axes": np.array([0, 1, 3, 2]),
    "none": np.float32(0),
}


def graph(nodes: list[tuple], inputs: dict[str, tuple], outputs: str) -> onnx.ModelProto:
    """Nodes are (operator, inputs, outputs, attributes); names are words."""
    made = [helper.make_node(kind, given.split("|"), made.split("|"), **dict(*more)) for kind, given, made, *more in nodes]
    read = {name for node in made for name in node.input}
    return helper.make_model(
        helper.make_graph(
            made,
            "graph",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs.split("|")],
            [numpy_helper.from_array(value, name) for name, value in WEIGHTS.items() if name in read],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )


def results(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {i.name: given[i.name] for i in session.get_inputs()}), strict=True))


GRAPHS = {
    "Expand of unknown extents": graph(
        [("Col2Im", "x|[5, 5]|[3, 3]", "c", {"strides": [2, 2]}), ("Expand", "c|[1, 2, 1, 5]", "y")], {"x": (1, 9, 4)}, "y"
    ),
    "factors along a row of an image": graph([("Conv", "x|conv", "c"), ("Mul", "c|scale4", "y")], {"x": IMAGE}, "y"),
    "factors along a row, after a norm": graph(
        [("Conv", "x|conv", "c"), ("BatchNormalization", "c|scale4|scale4|scale4|scale4", "n"), ("Mul", "n|scale4", "y")],
        {"x": IMAGE}, "y",
    ),
    "a sum of more rows": graph([("MatMul", "x|matrix", "m"), ("Add", "m|rows", "y")], {"x": (3, 1, 4)}, "y"),
    "a product of more columns": graph(
        [("Gemm", "x|turned", "g", {"transB": 1}), ("Reshape", "g|[15, 1]", "r"), ("Mul", "r|scale5", "y")], {"x": (3, 4)}, "y"
    ),
    "a Gemm with another reader": graph(
        [("Gemm", "x|turned", "g", {"transB": 1}), ("Reshape", "g|[1, 3, 5]", "r"), ("Mul", "r|scale5", "y"), ("Relu", "g", "z")],
        {"x": (3, 4)}, "y|z",
    ),
    "a Gemm that is a result": graph(
        [("Gemm", "x|turned", "g", {"transB": 1}), ("Reshape", "g|[1, 3, 5]", "r"), ("Mul", "r|scale5", "y")],
        {"x": (3, 4)}, "y|g",
    ),
    "no axes": graph([("ReduceSum", "x|[]", "s", {"keepdims": 0}), ("Unsqueeze", "s|[]", "y")], {"x": (3, 4)}, "y"),
    "pads of named axes": graph([("Pad", "x|pads|none|axes", "p"), ("Conv", "p|conv", "y")], {"x": IMAGE}, "y"),
    "zeros of two signs": graph([("Div", "x|zero", "y"), ("Div", "x|-zero", "z")], {"x": (2,)}, "y|z"),
}  # fmt: skip


NOTICED_AFTERWARDS = ("a sum of more rows", "a product of more columns", "no axes")


@pytest.mark.parametrize("case", GRAPHS)
def test_results_stay(case, caplog):
    require_same_results(GRAPHS[case])
    assert bool(caplog.records) is (case in NOTICED_AFTERWARDS)


def require_same_results(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model after slimming."""
    rng, slimmed = np.random.default_rng(5), slim(model)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    given = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    before, after = results(model, given), results(slimmed, given)
    for name, value in before.items():
        assert after[name].shape == value.shape
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-5)
    return slimmed


def test_factors_of_channels_become_weights():
    model = graph(
        [("Conv", "x|conv", "c"), ("BatchNormalization", "c|scale4|scale4|scale4|scale4", "n"), ("Mul", "n|channels", "y")],
        {"x": IMAGE}, "y",
    )  # fmt: skip
    assert [node.op_type for node in require_same_results(model).graph.node] == ["Conv"]


def test_factors_in_a_row_stay_two(caplog):
    """Of a row whose permutation is a reshape: the graph would read the result of a product that is gone."""
    model = graph(
        [
            ("MatMul", "x|turned", "m"), ("Add", "m|scale4", "a"), ("Mul", "a|half", "p"), ("Reshape", "p|[1, 1, 2, 2]", "r"),
            ("Transpose", "r", "t", {"perm": [0, 2, 1, 3]}), ("Mul", "t|half", "y"),
        ],
        {"x": (1, 1, 5)}, "y",
    )  # fmt: skip
    require_same_results(model)
    assert not caplog.text


def test_a_lost_result_is_noticed(monkeypatch, caplog):
    model = graph([("Neg", "x", "n"), ("Abs", "n", "y")], {"x": (3, 4)}, "y")
    other = onnx.ModelProto.FromString(model.SerializeToString())
    del other.graph.node[0]
    monkeypatch.setattr(onnxslim, "slim", lambda *_, **__: other)
    with caplog.at_level(logging.WARNING):
        assert slim(model).graph.node == model.graph.node
    assert "it loses 'n'" in caplog.text


def test_a_changed_shape_is_noticed(monkeypatch, caplog):
    """Whatever does it: here a reduction that keeps its axis."""
    model = graph([("ReduceSum", "x|[]", "y", {"keepdims": 0})], {"x": (3, 4)}, "y")
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].attribute[0].i = 1
    other.graph.output[0].type.tensor_type.shape.SetInParent()  # it says that the result is a scalar still
    monkeypatch.setattr(onnxslim, "slim", lambda *_, **__: other)
    with caplog.at_level(logging.WARNING):
        assert slim(model).graph.node == model.graph.node
    assert "it makes [1, 1] of the [] of 'y'" in caplog.text
