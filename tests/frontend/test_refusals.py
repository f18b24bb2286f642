"""Models that cannot be compiled are refused once, with the node that is at fault, the cause and the way out."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend import load_model

from .models import model, node

INT64 = TensorProto.INT64


def numbers(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def with_integers(network, **shapes):
    """The network with inputs of integers besides."""
    network.graph.input.extend(helper.make_tensor_value_info(name, INT64, shape) for name, shape in shapes.items())
    return network


def choice():
    """An If whose condition is made from the input `rate`, and whose branches have results of different shapes."""
    then = helper.make_graph([node("Abs", "x", "t")], "then", [], [helper.make_tensor_value_info("t", 1, (4,))])
    other = helper.make_graph([node("ReduceSum", "x", "e")], "else", [], [helper.make_tensor_value_info("e", 1, (1,))])
    chosen = helper.make_node("If", ["c"], ["y"], name="chosen", then_branch=then, else_branch=other)
    network = model([node("Equal", "rate k", "c"), chosen], {"x": (4,)}, ["y"], {"k": np.array(16000)})
    return with_integers(network, rate=())


REFUSED = {
    "a mask": (
        model([node("Greater", "x z", "b"), node("NonZero", "b", "i"), node("Transpose", "i", "k"), node("GatherND", "x k", "y")],
              {"x": (4, 6)}, ["y"], {"z": np.float32(0)}),
        r"node 'NonZero_i' \(NonZero\): the shape of its result depends on the input's values",
    ),
    "a shape that is an input": (
        with_integers(model([node("Reshape", "x s", "y")], {"x": (4, 6)}, ["y"]), s=(2,)),
        r"node 'Reshape_y' \(Reshape\): its input 'shape' is the network's input 's', .*make it a constant",
    ),
    "a condition that is an input": (
        choice(), r"'chosen' \(If\): its condition depends on the network's input 'rate', .* of different shapes: give the input",
    ),
    "a precision that is none": (
        model([node("QuantizeLinear", "x s z", "y", precision=TensorProto.UINT8)], {"x": (4,)}, ["y"],
              {"s": np.float32(0.5), "z": np.uint8(6)}, opset=24),
        r"node 'QuantizeLinear_y' \(QuantizeLinear\): its precision 2 is no type of floats",
    ),
    "64 axes": (model([node("Relu", "x", "y")], {"x": [1] * 64}, ["y"]), "input 'x' has a tensor of 64 axes"),
    "a size below zero": (
        model([node("Pad", "x p", "y")], {"x": (4,)}, ["y"], {"p": numbers(-10, -10)}), r"node 'Pad_y' \(Pad\)",
    ),
    "pads that leave nothing": (
        model([node("Conv", "x w", "y", pads=[-9] * 4)], {"x": (1, 1, 8, 8)}, ["y"], {"w": np.ones((1, 1, 3, 3), "f4")}),
        r"node 'Conv_y' \(Conv\)",
    ),
    "many elements": (
        model([node("Tile", "c s", "e"), node("ReduceSum", "e", "r", keepdims=0), node("Add", "x r", "y")], {"x": (1,)}, ["y"],
              {"s": numbers(2**33), "c": np.ones(4, "f4")}),
        "has a tensor of .* = 34,359,738,368 elements; kernels take fewer than 2,147,483,648",
    ),
    "a step of 0": (
        model([node("Range", "a b c", "e"), node("Cast", "e", "f", to=1), node("Add", "x f", "y")], {"x": (1,)}, ["y"],
              {"a": np.int64(0), "b": np.int64(10), "c": np.int64(0)}),
        r"node 'Range_e' \(Range\): its step is 0",
    ),
    "integers times a fraction": (
        model([node("Cast", "x", "i", to=7), node("Gemm", "i b", "g", alpha=0.5), node("Cast", "g", "y", to=1)], {"x": (2, 3)},
              ["y"], {"b": np.ones((3, 4), "i8")}),
        r"node 'Gemm_g' \(Gemm\): its alpha is 0.5, and it multiplies integers",
    ),
    "a mode that there is not": (
        model([node("Attention", "x x x", "y", q_num_heads=1, kv_num_heads=1, qk_matmul_output_mode=100)], {"x": (1, 4, 8)},
              ["y"], opset=23),
        r"node 'Attention_y' \(Attention\): its qk_matmul_output_mode is 100",
    ),
    "a threshold below zero": (
        model([node("RNN", "x w r", "h", hidden_size=2, clip=-1.0), node("Abs", "h", "y")], {"x": (3, 1, 2)}, ["y"],
              {"w": np.ones((1, 2, 2), "f4"), "r": np.ones((1, 2, 2), "f4")}),
        r"node 'RNN_h' \(RNN\): its clip is -1.0, and a threshold is above 0",
    ),
    "a window of nothing": (
        model([node("MaxPool", "x", "y", kernel_shape=[0, 0])], {"x": (1, 1, 8, 8)}, ["y"]),
        r"node 'MaxPool_y' \(MaxPool\): .*kernel_shape must only contain positive values",
    ),
    "shapes that do not fit": (
        model([node("Add", "x b", "y")], {"x": (4, 8)}, ["y"], {"b": np.ones(3, "f4")}),
        r"node 'Add_y' \(Add\): Incompatible dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_compiled_is_refused_by_its_node(case, capfd):
    network, message = REFUSED[case]
    with pytest.raises((ModelError, UnsupportedModelError), match=message):
        load_model(network)
    assert "BlockBuilder" not in capfd.readouterr().err


def test_declared_shapes_of_results_may_be_old():
    network = model([node("Relu", "x", "h"), node("Abs", "h", "y")], {"x": (4, 6)}, ["y"])
    network.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, (9, 9)))
    network.graph.value_info.append(helper.make_tensor_value_info("h", 1, (9, 9)))
    assert load_model(network, {"x": (2, 6)}).input_names == ("x",)


def test_an_output_that_is_listed_twice_is_one():
    twice = model([node("Relu", "x", "y"), node("Neg", "x", "z")], {"x": (4,)}, ["y", "z"])
    twice.graph.output.append(twice.graph.output[0])
    with flexcomp.build(twice, probe=False).session() as session:
        found = session.run({"x": np.array([-1, 0, 1, 2], "f4")})
    assert list(found) == ["y", "z"] and found["y"].tolist() == [0, 0, 1, 2]
