"""Nodes that do not stand in the order of the data."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from flexcomp.errors import ModelError
from flexcomp.frontend import load_model
from flexcomp.frontend.order import sort_nodes

from .imported import compare
from .models import node

FLOAT = TensorProto.FLOAT
CHAIN = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Add", "a b", "c"), node("Sigmoid", "c", "y")]


def network(nodes, functions=(), **more) -> onnx.ModelProto:
    """Not inferred: that asks for sorted nodes."""
    x, y = (helper.make_tensor_value_info(name, FLOAT, (2, 3)) for name in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], **more)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def test_every_order_becomes_that_of_the_data():
    for nodes in itertools.permutations(CHAIN):
        found = network(nodes)
        sort_nodes(found)
        assert list(found.graph.node) == CHAIN


def test_what_is_sorted_stays():
    nodes = [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Abs", "x", "c"), node("Max", "c b a", "y")]
    found = network(nodes)
    sort_nodes(found)
    assert list(found.graph.node) == nodes


def branch(name, outer):
    nodes = [node("Neg", f"{name}_a", name), node("Abs", outer, f"{name}_a")]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, (2, 3))])


def test_branches_and_what_they_read_of_the_outer_graph(tmp_path):
    condition = helper.make_tensor("k", TensorProto.BOOL, [], [True])
    chosen = node("If", "k", "y", then_branch=branch("t", "outer"), else_branch=branch("e", "x"))
    found = network([chosen, node("Relu", "x", "outer")], initializer=[condition])
    onnx.save(found, tmp_path / "net.onnx")
    imported = load_model(tmp_path / "net.onnx")
    assert list(imported.output_names) == ["y"]
    sort_nodes(found)
    compare(found)


def test_functions():
    body = [node("Neg", "inner", "r"), node("Relu", "p", "inner")]
    function = helper.make_function("own", "F", ["p"], ["r"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("F", ["a"], ["y"], domain="own"), node("Abs", "x", "a")]
    unsorted, sorted_ = network(nodes, [function]), network(nodes[::-1], [function])
    sort_nodes(sorted_)
    assert load_model(unsorted).mod.script() == compare(sorted_).mod.script()


def test_nodes_that_need_each_other_are_refused():
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]
    with pytest.raises(ModelError, match=r"nodes 'Add_a' \(Add\), 'Relu_b' \(Relu\) need each other's results"):
        load_model(network(nodes))


def test_a_large_model_is_sorted_in_time():
    nodes = [node("Relu", f"t{i}" if i else "x", f"t{i + 1}") for i in range(20000)] + [node("Neg", "t20000", "y")]
    rng = np.random.default_rng(0)
    found = network([nodes[i] for i in rng.permutation(len(nodes))])
    sort_nodes(found)
    assert list(found.graph.node) == nodes
