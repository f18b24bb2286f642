"""The fuzzer of models draws the same graphs whenever it is asked, and notices a wrong result."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress

import numpy as np
import onnx

from flexcomp.errors import FlexcompError
from flexcomp.frontend import load_model
from tests.fuzz.models import doubts, judge, oracle
from tests.fuzz.models.draw import OPSETS, draw, schemas


def drawn(number: int, opset: int = 20):
    return draw(random.Random(number), opset)


def test_a_graph_is_the_same_whenever_it_is_drawn():
    for number in range(30):
        one, two = drawn(number), drawn(number)
        assert one.model() == two.model()
        assert all(np.array_equal(one.inputs[n], two.inputs[n], equal_nan=v.dtype.kind == "f") for n, v in two.inputs.items())


def test_every_operator_of_the_schema_is_drawn_from():
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.deprecated}
    assert names <= {name.rpartition(".")[2] for name in schemas(max(OPSETS))}


def test_most_graphs_are_what_onnx_allows():
    allowed = 0
    for number in range(60):
        try:
            onnx.shape_inference.infer_shapes(drawn(number).model(), check_type=True, strict_mode=True)
            allowed += 1
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
            pass
    assert allowed > 36


def test_graphs_that_are_put_together_keep_their_results():
    candidates = []
    for number in range(30):
        graph = drawn(number)
        truth = oracle.by_onnxruntime(graph.model().SerializeToString(), graph.inputs)
        with suppress(FlexcompError):
            if truth is not None:
                subject = judge.Subject(number, graph.model(), graph.inputs)
                candidates.append(judge.Candidate(subject, oracle.Truth("onnxruntime", truth), load_model(subject.model)))
    assert len(candidates) > 8
    stages = []
    verdicts = judge.build(candidates, lambda at, stage: stages.append(stage))
    assert [v.outcome for v in verdicts] == ["right"] * len(candidates) and stages == ["build", "run"]


def test_a_softmax_of_several_axes_is_known_to_both_oracles():
    """Before opset 13 it is one of all axes from its own on."""
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f4")}
    for name, opset, axis in itertools.product(("Hardmax", "LogSoftmax", "Softmax"), (5, 12, 13), (0, 1, 2)):
        model = _model([onnx.helper.make_node(name, ["x"], ["y"], axis=axis)], {"y": x["x"]}, x)
        model.opset_import[0].version = opset
        known = oracle.by_onnxruntime(model.SerializeToString(), x)
        assert not oracle.difference(known, oracle.by_reference(model, x)), (name, opset, axis)


def test_a_global_pool_of_any_axes_is_known_to_both_oracles():
    for shape in ((2, 3, 4), (2, 3, 4, 5, 2)):
        x = {"x": np.random.default_rng(0).standard_normal(shape).astype("f4")}
        model = _model([onnx.helper.make_node("GlobalMaxPool", ["x"], ["y"])], {"y": x["x"]}, x)
        known = oracle.by_onnxruntime(model.SerializeToString(), x)
        assert not oracle.difference(known, oracle.by_reference(model, x)), shape


def test_a_wrong_result_is_noticed():
    want = {"y": np.array([1.0, np.nan, np.inf, 0.0], "f4")}
    for at, value in enumerate([1.01, 2.0, -np.inf, 0.01]):
        got = want["y"].copy()
        got[at] = value
        assert f"y[{at}] is" in oracle.difference(want, {"y": got})
    assert not oracle.difference(want, {"y": want["y"] * np.float32(1 + 1e-6)})
    assert "instead of float32[4]" in oracle.difference(want, {"y": want["y"].astype("f8")})
    assert oracle.difference({"y": np.array([3])}, {"y": np.array([4])})


def _info(name, array, shape):
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _model(nodes, outputs, inputs):
    declared = [_info(name, array, array.shape) for name, array in inputs.items()]
    results = [_info(name, array, None) for name, array in outputs.items()]
    graph = onnx.helper.make_graph(nodes, "doubtful", declared, results)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)


def test_a_difference_is_doubtful_where_onnx_leaves_it_open_and_nowhere_else():
    make = onnx.helper.make_node

    def doubt(nodes, want, got, **inputs):
        return doubts.doubt(_model(nodes, want, inputs), inputs, oracle.Truth("onnxruntime", want), got)

    cast = [make("Cast", ["x"], ["y"], to=onnx.TensorProto.UINT8)]
    want, got = {"y": np.array([44, 1], "u1")}, {"y": np.array([255, 1], "u1")}
    assert "hold" in doubt(cast, want, got, x=np.float32([300, 1]))
    want, got = {"y": np.array([3, 1], "u1")}, {"y": np.array([0, 1], "u1")}  # the smallest number, and wrong all the same
    assert not doubt(cast, want, got, x=np.float32([3, 1]))
    # A difference of equal numbers is 0 however the input moves, and rounding of either makes it another.
    variance = [make("Mul", ["x", "x"], ["a"]), make("Mul", ["x", "x"], ["b"]), make("Sub", ["a", "b"], ["y"])]
    x = np.float32([3.1])
    assert "small changes" in doubt(variance, {"y": x * 0}, {"y": x * 0 + np.float32(5e-7)}, x=x * 1000)
    assert not doubt(variance, {"y": x * 0}, {"y": x * 0 + np.float32(0.1)}, x=x)
    # What a sum leaves of numbers that cancel may have either sign.
    sign = [make("ReduceSum", ["x", "axes"], ["a"]), make("Sign", ["a"], ["y"])]
    cancelling, alone = np.float32([[0.3, 0.7, -1.0 + 3e-8]] * 9), np.float32([[0.3, 0.7, -0.9]] * 9)
    for x, is_open in ((cancelling, True), (alone, False)):
        want, got = ({"y": np.full((9, 1), one, "f4")} for one in (1, -1))
        assert bool(doubt(sign, want, got, x=x, axes=np.array([1]))) == is_open
    # An error in a sum is as large as in the largest one, and however the inputs move it may be the same.
    signs = [make("MatMul", ["x", "w"], ["a"]), make("Sign", ["a"], ["y"])]
    for largest, is_open in ((100, True), (1, False)):
        want, got = ({"y": np.float32([[1, one]])} for one in (1, -1))
        found = doubt(signs, want, got, x=np.float32([[1]]), w=np.float32([[largest, 3e-6]]))
        assert bool(found) == is_open
    window = [make("BlackmanWindow", ["n"], ["y"], output_datatype=onnx.TensorProto.UINT8)]
    for off in (1, 2):
        want, got = {"y": np.uint8([0, 3, 0])}, {"y": np.uint8([0, 3 - off, 0])}
        assert ("last bit" in doubt(window, want, got, n=np.int64(3))) == (off == 1)
    # Equal numbers have any place, if they were computed: the places of a model's inputs are exact.
    places, computed = make("ArgMin", ["a"], ["y"]), make("ReduceSum", ["x", "axes"], ["a"])
    want, got = {"y": np.array([[2]])}, {"y": np.array([[1]])}
    for gap, is_open in ((2**-23, True), (2**-18, False)):
        x = np.float32([[3], [1 + gap], [1]])
        assert ("equal" in doubt([computed, places], want, got, x=x, axes=np.array([1]))) == is_open
        assert "equal" not in doubt([places], want, got, a=x)
    # Integers beyond 2^53 excuse their own differences only.
    power = [make("Mod", ["x", "z"], ["y"])]
    large = np.array([2**60 + 1, 5])
    want, got = {"y": np.array([2**60 + 1, 5])}, {"y": np.array([2**60, 5])}
    assert "float64" in doubt(power, want, got, x=large, z=np.array([2**61, 7]))
    assert not doubt(power, want, {"y": np.array([2**60 + 1, 4])}, x=large, z=np.array([2**61, 7]))
    # A range of nothing but zeros has the scale 0, by which ONNX Runtime would not divide.
    quantise = [make("DynamicQuantizeLinear", ["x"], ["", "y", ""])]
    for x in (np.zeros(3, "f4"), np.float32([0, 0, 255])):
        assert bool(doubt(quantise, {"y": np.float32(1)}, {"y": np.float32(0)}, x=x)) == (not x.any())
    squares = [make("ReduceSumSquare", ["x"], ["y"], keepdims=0)]
    for x, sum_of_squares in ((np.array([50_000, 1], "i4"), 2**31 - 1), (np.array([5, 1], "i4"), 26)):
        assert bool(doubt(squares, {"y": np.int32(sum_of_squares)}, {"y": np.int32(7)}, x=x)) == (x[0] > 5)
