"""Results that would have less than no elements along an axis are refused before ONNX's inference ends the process at a Slice."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from flexcomp.errors import ModelError
from flexcomp.frontend import load_model

from .models import node

CONSTANTS = {
    "a": np.int64([0]), "b": np.int64([1]), "d": np.int64([3]), "back": np.int64([-1]), "w": np.ones((1, 1, 3, 3), "f4"),
    "less": np.int64([-2]), "yes": np.array(True),
}  # fmt: skip
CUT = node("Slice", "x a b d", "cut")  # of 4 columns one is left


def branch(name: str):
    """A graph that slices a tensor of the graph around it."""
    made = helper.make_tensor_value_info("part", TensorProto.FLOAT, None)
    bounds = [numpy_helper.from_array(CONSTANTS[one], one) for one in "abd"]
    return helper.make_graph([node("Slice", f"{name} a b d", "part")], "branch", [], [made], bounds)


def network(*nodes, shape=(1, 1, 4, 4)):
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph(list(nodes), "extents", given, made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(
    ("nodes", "maker"),
    [
        ([node("MaxPool", "x", "p", kernel_shape=[9, 9]), node("Slice", "p a b d", "y")], "MaxPool"),
        ([node("MaxPool", "x", "p", kernel_shape=[9, 9]), node("Slice", "p b a d back", "y")], "MaxPool"),
        ([node("Conv", "x w", "p", dilations=[9, 9]), node("Relu", "p", "r"), node("Slice", "r a b d", "y")], "Conv"),
        ([node("TopK", "x less", "p i"), node("Slice", "p a b d", "y")], "TopK"),
        ([CUT, node("AveragePool", "cut", "p", kernel_shape=[3, 3]), node("Slice", "p a b d", "y")], "AveragePool"),
        (
            [node("MaxPool", "x", "q", kernel_shape=[3, 3], pads=[1] * 4), node("Slice", "q a b d", "s"),
             node("LpPool", "s", "p", kernel_shape=[3, 3]), node("Slice", "p a b d", "y")], "LpPool",
        ),
        (
            [node("MaxPool", "x", "p", kernel_shape=[9, 9]),
             helper.make_node("If", ["yes"], ["y"], then_branch=branch("p"), else_branch=branch("p"))], "MaxPool",
        ),
    ],
)  # fmt: skip
def test_they_are_refused_with_the_node_that_makes_them(nodes, maker):
    with pytest.raises(ModelError, match=rf"node '\w+' \({maker}\): a result has .*: its input is too small"):
        load_model(network(*nodes))


def test_windows_between_slices_that_leave_something_are_taken():
    nodes = [
        node("MaxPool", "x", "q", kernel_shape=[3, 3], pads=[1] * 4), node("Slice", "q a b d", "s"),
        node("Conv", "s w", "p", pads=[1] * 4), node("Slice", "p a b d", "y"),
    ]  # fmt: skip
    load_model(network(*nodes))
