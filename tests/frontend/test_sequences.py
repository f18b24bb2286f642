"""Sequences of known length, compared with ONNX's own implementation: ONNX Runtime fails where parts differ in length."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend import load_model

from ..passes.reference import evaluate
from .imported import operators
from .models import FLOAT, model, node, random

X = {"x": (2, 7, 3)}


def compare(proto, tolerance=1e-6):
    imported = load_model(proto)
    given = {i.name: random(*(d.dim_value for d in i.type.tensor_type.shape.dim)) for i in proto.graph.input}
    expected = ReferenceEvaluator(proto).run(None, given)
    for found, want in zip(evaluate(imported.mod, [*given.values(), *imported.weights]), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance, strict=True)
    return imported


def at(sequence, i, out):
    return [node("SequenceAt", f"{sequence} i{i}", out)]


def network(nodes, inputs=None, outputs=("y",), weights=None, opset=17):
    """`iN` is the constant N."""
    used = {name for one in nodes for name in one.input if name[:1] == "i" and name[1:].lstrip("-").isdigit()}
    numbers = {name: np.int64(int(name[1:])) for name in used}
    return model(nodes, inputs or X, list(outputs), {**numbers, **(weights or {})}, opset)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("weights", "attributes"),
    [
        ({"split": np.int64([3, 4])}, {"axis": 1}),
        ({"split": np.int64(4)}, {"axis": -2}),
        ({"split": np.int64([7])}, {"axis": 1}),
        ({}, {"axis": 0}),
        ({}, {"axis": 0, "keepdims": 0}),
        ({"split": np.int64([1, 1])}, {"axis": 0, "keepdims": 0}),
    ],
)
def test_a_tensor_split_and_joined(weights, attributes, opset):
    nodes = [node("SplitToSequence", "x split" if weights else "x", "s", **attributes)]
    nodes += [*at("s", 0, "a"), *at("s", -1, "b"), node("SequenceLength", "s", "n")]
    nodes += [node("Exp", "a", "y"), node("Neg", "b", "z"), node("Cast", "n", "m", to=FLOAT)]
    proto = network(nodes, outputs=("y", "z", "m"), weights=weights, opset=opset)
    compare(proto)


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [11, 17])
def test_tensors_joined(axis, new_axis, opset):
    nodes = [
        node("Relu", "x", "a"), node("Neg", "x", "b"), node("SequenceEmpty", "", "none"),
        node("SequenceConstruct", "a b", "s"), node("SequenceInsert", "s x i1", "t"), node("SequenceInsert", "t a", "u"),
        node("SequenceInsert", "u b i-1", "v"), node("SequenceErase", "v i0", "w"), node("SequenceErase", "w", "q"),
        node("SequenceInsert", "none x", "one"), node("ConcatFromSequence", "one", "alone", axis=0),
        node("ConcatFromSequence", "q", "joined", axis=axis, new_axis=new_axis), node("Exp", "joined", "y"),
        node("Neg", "alone", "z"),
    ]  # fmt: skip
    nodes[2].ClearField("input")
    imported = compare(network(nodes, outputs=("y", "z"), opset=opset))
    assert "concat" in operators(imported)


def test_sequences_of_constants_are_no_tensors():
    weights = {"p": random(2, 3), "q": random(2, 3, seed=1)}
    nodes = [node("SequenceConstruct", "p q", "s"), *at("s", 1, "a"), node("Add", "x a", "y")]
    compare(network(nodes, {"x": (2, 3)}, weights=weights))


def test_of_half_precision():
    nodes = [
        node("Cast", "x", "h", to=TensorProto.FLOAT16), node("SplitToSequence", "h", "s", axis=1),
        node("ConcatFromSequence", "s", "c", axis=0), node("Cast", "c", "y", to=FLOAT),
    ]  # fmt: skip
    compare(network(nodes), tolerance=1e-3)


def sequence(name, shape=None):
    return helper.make_tensor_sequence_value_info(name, FLOAT, shape)


def test_a_loop_that_collects_and_a_branch_that_hands_on():
    """As torch writes a list to which a loop appends."""
    index, condition = (helper.make_tensor_value_info(n, k, ()) for n, k in (("k", 7), ("c", 9)))
    body = helper.make_graph(
        [
            node("Identity", "c", "going"), node("Gather", "x k", "part", axis=1), node("Exp", "part", "made"),
            node("SequenceInsert", "held made", "more"),
        ],
        "body", [index, condition, sequence("held")], [helper.make_tensor_value_info("going", 9, ()), sequence("more")],
    )  # fmt: skip
    branches = [
        helper.make_graph([node("SequenceErase", "all i0", name)], name, [], [sequence(name)]) for name in ("then", "other")
    ]
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"]), node("Loop", "i5 yes none", "all", body=body),
        node("If", "yes", "chosen", then_branch=branches[0], else_branch=branches[1]),
        node("ConcatFromSequence", "chosen", "y", axis=1, new_axis=1),
    ]  # fmt: skip
    compare(network(nodes, weights={"yes": np.array(True), "i0": np.int64(0)}))


def test_a_map_over_the_parts():
    body = helper.make_graph(
        [node("Sigmoid", "part", "made")], "body", [helper.make_tensor_value_info("part", FLOAT, None)],
        [helper.make_tensor_value_info("made", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        node("SplitToSequence", "x", "s", axis=1), node("SequenceMap", "s", "t", body=body),
        node("ConcatFromSequence", "t", "y", axis=2),
    ]  # fmt: skip
    compare(network(nodes))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_sequence_that_a_loop_reads_as_well(keepdims):
    """It is written out before the loop is."""
    index, condition = (helper.make_tensor_value_info(n, k, ()) for n, k in (("k", 7), ("c", 9)))
    total = helper.make_tensor_value_info("total", FLOAT, None)
    body = helper.make_graph(
        [node("Identity", "c", "going"), node("SequenceAt", "s k", "part"), node("Add", "total part", "more")],
        "body", [index, condition, total],
        [helper.make_tensor_value_info("going", 9, ()), helper.make_tensor_value_info("more", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        node("SplitToSequence", "x", "s", axis=1, keepdims=keepdims), *at("s", 2, "first"), node("SequenceLength", "s", "n"),
        node("Sub", "n i0", "times"), node("Loop", "times yes first", "y", body=body),
    ]  # fmt: skip
    compare(network(nodes, weights={"yes": np.array(True)}))


def test_a_sequence_that_is_too_long_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match=r"node 'SplitToSequence_s' \(SplitToSequence\): 9000 parts are more than"):
        load_model(network([node("SplitToSequence", "x", "s"), *at("s", 0, "y")], {"x": (9000, 1)}))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (at("s", 3, "y"), r"node 'SequenceAt_y' \(SequenceAt\): there is no position 3 among 2"),
        ([node("SequenceErase", "s i-3", "e"), *at("e", 0, "y")], r"\(SequenceErase\): there is no position -1 among 2"),
        ([node("SequenceEmpty", "", "n"), node("ConcatFromSequence", "n", "y", axis=0)], r"FromSequence\): its sequence is"),
    ],
)
def test_positions_outside_are_refused_by_name(nodes, message):
    for one in nodes:
        if one.op_type == "SequenceEmpty":
            one.ClearField("input")
    with pytest.raises(ModelError, match=message):
        load_model(network([node("SplitToSequence", "x", "s"), *nodes]))


def test_a_position_that_is_computed_is_refused_by_name():
    nodes = [
        node("SplitToSequence", "x", "s"), node("ReduceMax", "x", "m", keepdims=0), node("Cast", "m", "k", to=7),
        node("SequenceAt", "s k", "y"),
    ]  # fmt: skip
    message = r"node 'SequenceAt_y' \(SequenceAt\): its position, .* depends on the network's inputs"
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(network(nodes))


def test_a_sequence_that_is_returned_is_refused_by_name():
    proto = network([node("SplitToSequence", "x", "y")])
    with pytest.raises(UnsupportedModelError, match="'y' is no tensor but of kind sequence"):
        load_model(proto)
