"""Small constants that a network makes large: they are no weights of that size, and results are ONNX Runtime's."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import flexcomp

N = helper.make_node
RNG = np.random.default_rng(0)
PER_CHANNEL = RNG.standard_normal((1, 16, 1, 1)).astype("f4")
ROW = RNG.standard_normal((1, 100, 24)).astype("f4")


def constant_of_shape(value, name: str) -> object:
    return N("ConstantOfShape", [f"{name}_shape"], [name], value=numpy_helper.from_array(np.asarray([value])))


# Nodes from x to y, the shape of x, and constants.
NETWORKS = {
    "copies of a channel's number": (
        [N("Tile", ["t", "copies"], ["b"]), N("Mul", ["x", "b"], ["y"])],
        (1, 1, 80, 50), {"t": PER_CHANNEL, "copies": [1, 1, 80, 50]},
    ),
    "ones like the input": (
        [N("Shape", ["x"], ["o_shape"]), constant_of_shape(np.float32(1), "o"), N("Add", ["x", "o"], ["y"])], (200, 300), {},
    ),
    "a vector of one number": (
        [constant_of_shape(np.float32(2), "o"), N("Add", ["x", "o"], ["y"])], (1, 40000), {"o_shape": [40000]},
    ),
    "queries of a batch, larger than the input": (
        [N("Expand", ["q", "s"], ["b"]), N("Add", ["b", "x"], ["y"])], (20, 1, 1), {"q": ROW, "s": [20, 100, 24]},
    ),
    "both are smaller than the result": (
        [N("Expand", ["q", "s"], ["b"]), N("Sub", ["x", "b"], ["y"])], (1, 1, 24), {"q": ROW[:, :, :1], "s": [40, 100, 24]},
    ),
    "arithmetic and moved axes in between": (
        [N("Expand", ["q", "s"], ["e"]), N("Exp", ["e"], ["f"]), N("Mul", ["f", "row"], ["g"]),
         N("Transpose", ["g"], ["h"], perm=[1, 2, 0]), N("Unsqueeze", ["h", "zero"], ["i"]),
         N("Max", ["i", "row"], ["j"]), N("Abs", ["j"], ["k"]),
         N("Div", ["x", "i"], ["l"]), N("Add", ["l", "k"], ["y"])],
        (1, 100, 24, 24), {"q": ROW, "s": [24, 100, 24], "row": ROW[0, 0], "zero": [0]},
    ),
    "merged axes": (
        [N("Expand", ["q", "s"], ["e"]), N("Reshape", ["e", "to"], ["b"]), N("Mul", ["x", "b"], ["y"])], (2000, 24),
        {"q": ROW, "s": [20, 100, 24], "to": [2000, 24]},
    ),
    "copies of rows": (
        [N("Tile", ["t", "copies"], ["b"]), N("Add", ["x", "b"], ["y"])], (2000, 24), {"t": ROW[0], "copies": [20, 1]},
    ),
    "a causal mask of all heads": (
        [constant_of_shape(np.float32(-1e9), "o"), N("Trilu", ["o", "one"], ["t"], upper=1), N("Expand", ["t", "s"], ["e"]),
         N("Add", ["x", "e"], ["a"]), N("Softmax", ["a"], ["y"], axis=-1)],
        (1, 3, 192, 192), {"o_shape": [192, 192], "one": 1, "s": [1, 3, 192, 192]},
    ),
    "a mask of positions": (
        [N("Range", ["zero", "n", "one"], ["r"]), N("Unsqueeze", ["r", "last"], ["c"]), N("LessOrEqual", ["r", "c"], ["m"]),
         N("Where", ["m", "x", "low"], ["y"])],
        (2, 400, 400), {"zero": 0, "n": 400, "one": 1, "last": [1], "low": np.float32(-1)},
    ),
}  # fmt: skip


def network(nodes, shape, constants) -> ModelProto:
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_file_holds_what_a_network_makes_large(name, tmp_path):
    nodes, shape, constants = NETWORKS[name]
    model = network(nodes, shape, constants)
    artifact = flexcomp.build(model, target="native", threads=1)
    own = sum(np.asarray(value).nbytes for value in constants.values())
    assert artifact.program.weights_nbytes <= 3 * own + 3 * 4096, name
    artifact.export_library(tmp_path / "network.so")
    x = RNG.standard_normal(shape).astype("f4")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with flexcomp.load(tmp_path / "network.so") as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_broadcast_costs_no_more_than_an_operator_that_broadcasts():
    nodes, shape, constants = NETWORKS["copies of a channel's number"]
    plain = network([N("Mul", ["x", "t"], ["y"])], shape, {"t": PER_CHANNEL})
    tiled, simple = (flexcomp.build(model, threads=1).program for model in (network(nodes, shape, constants), plain))
    assert len(tiled.layers) == len(simple.layers) == 1
    assert tiled.rungs[0].arena == simple.rungs[0].arena


def test_what_is_little_larger_than_its_sources_is_folded():
    """It is read faster than it is computed."""
    pair = {"a": RNG.standard_normal((200, 1)).astype("f4"), "b": RNG.standard_normal((200, 200)).astype("f4")}
    model = network([N("Add", ["a", "b"], ["c"]), N("Mul", ["x", "c"], ["y"])], (200, 200), pair)
    program = flexcomp.build(model, threads=1).program
    assert len(program.layers) == 1 and program.weights_nbytes == 160_000 // 4096 * 4096 + 4096
