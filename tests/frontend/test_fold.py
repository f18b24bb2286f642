"""What is known before an inference: constants, shapes, and tensors without elements."""

import numpy as np
import onnx
import onnxslim
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.allowance import Allowance
from flexcomp.frontend.fold import LARGEST, fold_constants
from flexcomp.frontend.onnx_model import OnnxModel, simplify_onnx


def network(*nodes, x=(2, 3), y=None, weights=None, element=TensorProto.FLOAT, opset=18) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", element, y)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def node(kind: str, *inputs: str, out: str = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [out], name=kind.lower(), **attributes)


def kinds(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def run(model: onnx.ModelProto, folder, x: np.ndarray) -> np.ndarray:
    flexcomp.build(model, threads=1).export_library(folder / "network.so")
    with flexcomp.load(folder / "network.so") as session:
        return session.run({"x": x})["y"]


def test_arithmetic_on_shapes_becomes_a_constant():
    model = network(
        node("Shape", "x", out="shape"), node("Mul", "shape", "two", out="twice"), node("Tile", "x", "twice"),
        y=(8, 18), weights={"two": [2, 2]},
    )  # fmt: skip
    fold_constants(model, Allowance())
    assert kinds(model) == ["Tile"]
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[-1]), [4, 6])


def test_types_that_only_the_reference_implementation_knows_are_folded():
    bfloat16 = [node("Cast", "a", out="b", to=TensorProto.BFLOAT16), node("Equal", "b", "b", out="same")]
    model = network(*bfloat16, node("Where", "same", "x", "a"), y=(2, 3), weights={"a": np.float32(2)})
    fold_constants(model, Allowance())
    assert kinds(model) == ["Where"]


def test_what_no_allowance_is_left_for_is_not_folded():
    tables = {"a": np.ones(4096, "f4"), "b": np.ones(4096, "f4")}
    model = network(node("Add", "a", "b", out="c"), node("Mul", "c", "x"), x=(4096,), y=(4096,), weights=tables)
    fold_constants(model, allowance := Allowance(nbytes=20_000))
    assert kinds(model) == ["Mul"] and allowance.nbytes == 20_000 - 16_384
    model = network(node("Add", "a", "b", out="c"), node("Mul", "c", "x"), x=(4096,), y=(4096,), weights=tables)
    fold_constants(model, allowance)
    assert kinds(model) == ["Add", "Mul"]


def test_large_results_and_random_ones_are_not_folded():
    big = network(node("Expand", "one", "shape"), y=(LARGEST + 1,), weights={"one": [1.0], "shape": [LARGEST + 1]})
    fold_constants(big, Allowance())
    random = network(node("RandomUniformLike", "one"), y=(1,), weights={"one": [1.0]})
    fold_constants(random, Allowance())
    assert kinds(big) == ["Expand"] and kinds(random) == ["RandomUniformLike"]


def test_a_sum_over_no_elements_is_zero(tmp_path):
    model = network(node("ReduceSum", "x", "axes"), x=(2, 0, 4), y=(2, 1, 4), weights={"axes": [1]})
    np.testing.assert_array_equal(run(model, tmp_path, np.zeros((2, 0, 4), "f4")), np.zeros((2, 1, 4), "f4"))


def test_an_input_without_elements_that_is_read_for_its_type_alone(tmp_path):
    model = network(node("CastLike", "w", "x"), x=(0,), y=(3,), weights={"w": [1, 2, 3]})
    np.testing.assert_array_equal(run(model, tmp_path, np.zeros(0, "f4")), np.float32([1, 2, 3]))


def test_a_result_without_elements_beside_one_with(tmp_path):
    split = helper.make_node("Split", ["r", "sizes"], ["y", "rest"], axis=1)
    model = network(node("Relu", "x", out="r"), split, y=(2, 3), weights={"sizes": [3, 0]})
    model.graph.output.append(helper.make_tensor_value_info("rest", TensorProto.FLOAT, (2, 0)))
    flexcomp.build(model, threads=1).export_library(tmp_path / "network.so")
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    with flexcomp.load(tmp_path / "network.so") as session:
        found = session.run({"x": x})
    np.testing.assert_array_equal(found["y"], np.maximum(x, 0))
    assert found["rest"].shape == (2, 0)


def test_an_expand_to_a_constant_shape(tmp_path):
    model = network(node("Expand", "x", "shape"), x=(2, 1), y=(4, 2, 3), weights={"shape": [4, 1, 3]})
    x = np.float32([[1], [2]])
    np.testing.assert_array_equal(run(model, tmp_path, x), np.broadcast_to(x, (4, 2, 3)))


@pytest.mark.parametrize(
    ("kind", "number"),
    [(name, getattr(TensorProto, name)) for name in ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1", "INT4", "UINT4")],
)
def test_a_narrow_type_is_refused_with_node_and_type(kind, number):
    model = network(
        node("Cast", "x", out="narrow", to=number), node("Cast", "narrow", to=TensorProto.FLOAT), y=(2, 3), opset=23
    )
    model.ir_version = 11
    with pytest.raises(UnsupportedModelError, match=rf"node 'cast' \(Cast\): result 'narrow' holds {kind.lower()}"):
        simplify_onnx(OnnxModel(model, {}, ""), {})


def test_batch_normalization_in_training_uses_the_batchs_statistics(tmp_path):
    outputs = ["y", "mean", "variance"]
    normalise = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], outputs, training_mode=1)
    ones, zeros = np.ones(3, "f4"), np.zeros(3, "f4")
    model = network(normalise, x=(4, 3, 5), y=(4, 3, 5), weights={"s": ones, "b": zeros, "m": zeros, "v": ones})
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype("f4") * 3 + 2
    mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    np.testing.assert_allclose(run(model, tmp_path, x), (x - mean) / np.sqrt(variance + 1e-5), rtol=1e-4, atol=1e-5)


def test_dropout_in_training_is_refused_as_it_is_random():
    dropout = helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")
    model = network(dropout, y=(2, 3), weights={"ratio": np.float32(0.5), "training": np.bool_(True)})
    with pytest.raises(UnsupportedModelError, match=r"node 'drop' \(Dropout\): in training mode"):
        flexcomp.build(model, threads=1)


def test_a_network_whose_only_result_has_no_elements(tmp_path):
    model = network(node("Slice", "x", "from", "to", "axes"), y=(2, 0), weights={"from": [3], "to": [9], "axes": [1]})
    assert run(model, tmp_path, np.zeros((2, 3), "f4")).shape == (2, 0)


def test_a_part_without_elements_is_left_out_of_a_concatenation(tmp_path):
    model = network(node("Concat", "x", "none", "x", axis=0), y=(4, 3), weights={"none": np.zeros((0, 3), "f4")})
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(run(model, tmp_path, x), np.concatenate([x, x]))


@pytest.mark.parametrize("where", ["value_info", "output"])
def test_old_shapes_in_a_file_are_not_believed(where, tmp_path):
    """The file says that the Expand changes nothing; that shape would be folded, too."""
    relu, shape = node("Relu", "x", out="r"), node("Shape", "r", out="shape")
    cast, add = node("Cast", "shape", out="extents", to=1), node("Add", "extents", "e")
    model = network(relu, node("Expand", "r", "to", out="e"), shape, cast, add, x=(1, 2), y=(2, 2), weights={"to": [2, 2]})
    getattr(model.graph, where).append(helper.make_tensor_value_info("r", TensorProto.FLOAT, (2, 2)))
    found = run(model, tmp_path, np.ones((1, 2), "f4"))
    np.testing.assert_array_equal(found, np.ones((2, 2)) + [1, 2])


@pytest.mark.parametrize("kind", ["Hardmax", "LogSoftmax", "Softmax"])
def test_an_operator_that_onnxs_reference_gets_wrong_is_not_folded(kind, tmp_path):
    """Before opset 13 a softmax from axis 0 on is one of all elements; the reference computes it along the axis alone."""
    value = np.random.default_rng(0).standard_normal((2, 3)).astype("f4")
    model = network(node(kind, "v", out="s", axis=0), node("Add", "s", "x"), y=(2, 3), weights={"v": value}, opset=12)
    exponents = np.exp(value) / np.exp(value).sum()
    expected = {"Hardmax": value == value.max(), "LogSoftmax": np.log(exponents), "Softmax": exponents}[kind]
    np.testing.assert_allclose(run(model, tmp_path, np.zeros((2, 3), "f4")), expected, rtol=1e-5)


def test_a_recurrent_layer_of_constants():
    """It is folded, but where the reference does not read its attributes."""
    weights = {"v": np.ones((3, 1, 2), "f4"), "w": np.full((1, 2, 2), 0.3, "f4"), "r": np.full((1, 2, 2), 0.2, "f4")}
    model = network(node("RNN", "v", "w", "r", out="h", hidden_size=2), node("Add", "h", "x"), y=(3, 1, 2), weights=weights)
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].attribute.append(helper.make_attribute("activations", ["Relu"]))
    for each, left in ((model, ["Add"]), (other, ["RNN", "Add"])):
        fold_constants(each, Allowance())
        assert kinds(each) == left


def test_a_layer_of_constants_that_cannot_be_computed_is_refused(monkeypatch):
    monkeypatch.setattr(onnxslim, "slim", lambda given, **_: given)  # it folds by ONNX Runtime, where that is installed
    weights = {"v": np.ones((3, 1, 1), "f4"), "w": np.ones((1, 1, 1), "f4"), "r": np.ones((1, 1, 1), "f4")}
    layer = node("RNN", "v", "w", "r", out="h", hidden_size=1, activations=["Relu"])
    with pytest.raises(UnsupportedModelError, match="operator rnn_0 reads weights alone: make its result a constant"):
        flexcomp.build(network(layer, node("Add", "h", "x"), x=(1, 1), y=(3, 1, 1, 1), weights=weights), threads=1)


def test_shapes_of_nothing_that_numpy_cannot_count_are_no_error():
    """A view of no elements whose other extents are the square of the largest that are counted."""
    constants = {"times": np.int64([0, 1]), "wide": np.int64([2**62 - 2**31])}
    nodes = [
        node("Tile", "x", "times", out="none"), node("CenterCropPad", "none", "wide", out="padded", axes=[1]),
        node("Shape", "padded", out="y"),
    ]  # fmt: skip
    fold_constants(network(*nodes, weights=constants, element=TensorProto.INT64), Allowance())
