"""ONNX networks through the frontend and the graph passes, against ONNX Runtime."""

import logging

import numpy as np
import onnx
import onnxslim
import pytest
from onnx import helper

from flexcomp.errors import InputError, ModelError, UnsupportedModelError
from flexcomp.frontend import load_model

from .imported import compare, operators
from .models import FLOAT, model, node, random

IMAGE = (1, 4, 9, 8)


def norm_weights(channels: int) -> dict:
    return {
        "gamma": random(channels, seed=2),
        "beta": random(channels, seed=3),
        "mean": random(channels, seed=4),
        "variance": np.abs(random(channels, seed=5)) + np.float32(0.5),
    }


def test_residual_network():
    nodes = [
        node("Conv", "x w0 b0", "a", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a gamma beta mean variance", "b"),
        node("Relu", "b", "c"),
        node("Conv", "c w1", "d", group=8, pads=[1, 1, 1, 1]),
        node("Sum", "d c c", "e"),
        node("GlobalAveragePool", "e", "f"),
        node("Flatten", "f", "g"),
        node("Gemm", "g w2 b2", "h", transB=1),
        node("Softmax", "h", "y"),
    ]
    weights = {"w0": random(8, 4, 3, 3), "b0": random(8), "w1": random(8, 1, 3, 3), "w2": random(5, 8), "b2": random(5)}
    imported = compare(model(nodes, {"x": IMAGE}, ["y"], {**weights, **norm_weights(8)}))
    assert imported.input_names == ("x",)
    assert imported.output_names == ("y",)
    assert "stack" not in operators(imported)
    assert len(imported.weights) == len(imported.mod["main"].params) - 1


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("beta", [0.75, 0.5, 1.0, 0.6])
def test_local_response_normalisation(size, beta):
    nodes = [node("LRN", "x", "y", size=size, beta=beta, alpha=0.3, bias=1.5)]
    imported = compare(model(nodes, {"x": IMAGE}, ["y"], opset=13))
    assert "avg_pool3d" not in operators(imported)


@pytest.mark.parametrize("operator_name", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_many_operands(operator_name, count):
    inputs = {"a": IMAGE, "b": (4, 1, 1), "c": IMAGE}
    nodes = [node("Relu", "a", "r"), node(operator_name, " ".join(["r", "b", "c"][:count]), "y")]
    imported = compare(model(nodes, {k: inputs[k] for k in list(inputs)[:count]}, ["y"]))
    assert "stack" not in operators(imported)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 6.0, "clip"), (0.0, None, "relu"), (None, 0.5, "minimum"), (-0.5, None, "maximum"), (np.nan, 1.0, "minimum")],
)
def test_clip(low, high, expected):
    weights = {name: np.float32(v) for name, v in (("low", low), ("high", high)) if v is not None}
    nodes = [node("Clip", f"x {'low' if low is not None else '-'} {'high' if high is not None else ''}", "y")]
    assert operators(compare(model(nodes, {"x": IMAGE}, ["y"], weights))) == [expected]


def test_clip_with_attributes():
    nodes = [node("Clip", "x", "y", min=-1.0, max=1.0)]
    assert operators(load_model(model(nodes, {"x": IMAGE}, ["y"], opset=9))) == ["clip"]


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 0.5, -0.5, -1.0, 1.7])
def test_powers(exponent):
    nodes = [node("Exp", "x", "e"), node("Pow", "e p", "y")]
    imported = compare(model(nodes, {"x": IMAGE}, ["y"], {"p": np.float32(exponent)}))
    assert ("power" in operators(imported)) == (exponent == 1.7)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_padding(mode):
    weights = {"pads": np.array([0, 0, 1, 2, 0, 0, 3, 0]), "value": np.float32(0.5)}
    nodes = [node("Conv", "x w", "a"), node("Pad", "a pads value", "b", mode=mode), node("Conv", "b w", "y")]
    imported = compare(model(nodes, {"x": IMAGE}, ["y"], {**weights, "w": random(4, 4, 3, 3)}))
    assert "pad" in operators(imported)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    "make",
    [
        lambda pad: node("Conv", "x w", "y", strides=[2, 3], auto_pad=pad),
        lambda pad: node("MaxPool", "x", "y", kernel_shape=[4, 3], strides=[3, 2], auto_pad=pad),
        lambda pad: node("AveragePool", "x", "y", kernel_shape=[2, 3], strides=[1, 2], auto_pad=pad),
    ],
    ids=["Conv", "MaxPool", "AveragePool"],
)
def test_automatic_padding(auto_pad, make):
    operation = make(auto_pad)
    weights = {"w": random(6, 4, 4, 3)} if operation.op_type == "Conv" else {}
    compare(model([operation], {"x": IMAGE}, ["y"], weights))


def test_upsampling_detector():
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Sigmoid", "a", "s"),
        node("Mul", "a s", "b"),
        node("Split", "b sizes", "p q", axis=1),
        node("Concat", "q p", "c", axis=1),
        node("Resize", "c - scales", "d", mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        node("Reshape", "d shape", "e"),
        node("Transpose", "e", "y", perm=[0, 2, 1]),
    ]  # fmt: skip
    weights = {
        "w": random(6, 4, 3, 3),
        "sizes": np.array([2, 4]),
        "scales": np.array([1, 1, 2, 2], "float32"),
        "shape": np.array([1, 6, -1]),
    }
    compare(model(nodes, {"x": IMAGE}, ["y", "b"], weights))


def test_dynamic_axes_are_fixed():
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Concat", "n minus", "t", axis=0),
             node("Reshape", "x t", "y")]  # fmt: skip
    weights = {"zero": np.array([0]), "minus": np.array([-1])}
    proto = model(nodes, {"x": ("batch", 4, "h", "w")}, ["y"], weights)
    imported = compare(proto, {"x": (2, 4, 5, 3)})
    assert operators(imported) == ["reshape"]


def test_dynamic_axes_are_reported():
    proto = model([node("Relu", "x", "y")], {"x": ("batch", 3, "height", 7)}, ["y"])
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(proto)
    assert str(caught.value) == (
        "input 'x' has a dynamic shape (batch, 3, height, 7); fix it with input_shapes={'x': (1, 3, 224, 7)} "
        "or --input x:1,3,224,7"
    )


def test_strings_are_refused():
    proto = model([node("Identity", "x", "y")], {"x": (4,)}, ["y"])
    for port in (*proto.graph.input, *proto.graph.output):
        port.type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(UnsupportedModelError, match="input 'x' holds strings"):
        load_model(proto)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 3)}, "input_shapes names 'z', but the model's inputs are 'x'"),
        ({"x": (1, 3)}, r"input 'x' has 4 axes \(n, 4, 9, 8\); given was \(1, 3\)"),
        ({"x": (0, 4, 9, 8)}, "must be positive"),
    ],
)
def test_wrong_input_shapes(shapes, message):
    proto = model([node("Relu", "x", "y")], {"x": ("n", 4, 9, 8)}, ["y"])
    with pytest.raises(InputError, match=message):
        load_model(proto, shapes)


@pytest.mark.parametrize("columns", [6, 1 << 17])
def test_an_initialiser_that_is_an_input_may_be_given(columns):
    weights = {"w": random(4, columns), "scale": np.float32([2])}
    proto = model([node("MatMul", "x w", "a"), node("Mul", "a scale", "y")], {"x": (2, 4)}, ["y"], weights)
    for name in ("scale", "w"):
        proto.graph.input.append(helper.make_tensor_value_info(name, FLOAT, weights[name].shape))
    assert load_model(proto).input_names == ("x",)
    for given in (["w"], ["scale"], ["w", "scale"]):
        imported = compare(proto, {name: weights[name].shape for name in given})
        assert set(imported.input_names) == {"x", *given} and len(imported.weights) == ("w" not in given)
    with pytest.raises(InputError, match=r"input 'w' has 2 axes"):
        load_model(proto, {"w": (3,)})


def test_initialisers_listed_as_inputs_and_unread_inputs():
    proto = model([node("Conv", "x w", "y")], {"u": (3,), "x": IMAGE}, ["y"], {"w": random(2, 4, 3, 3)})
    proto.graph.input.append(helper.make_tensor_value_info("w", FLOAT, (2, 4, 3, 3)))
    imported = load_model(proto)
    assert imported.input_names == ("u", "x")
    assert [p.name for p in imported.mod["main"].params[:2]] == ["u", "x"]
    assert [w.shape for w in imported.weights] == [(2, 4, 3, 3)]


def test_names_that_relax_would_not_take():
    proto = model([node("Relu", "gpu_0/in:0", "7/out.1")], {"gpu_0/in:0": IMAGE}, ["7/out.1"])
    imported = compare(proto)
    assert (imported.input_names, imported.output_names) == (("gpu_0/in:0",), ("7/out.1",))


def test_scalars_stay_in_the_ir_and_tables_leave_it():
    nodes = [node("Mul", "x half", "a"), node("Add", "a table", "y")]
    imported = compare(model(nodes, {"x": IMAGE}, ["y"], {"half": np.float32([0.5]), "table": random(4, 1, 1)}))
    assert [w.shape for w in imported.weights] == [(4, 1, 1)]


def test_given_model_is_left_alone():
    proto = model([node("Shape", "x", "s"), node("Reshape", "x s", "y")], {"x": ("n", 4)}, ["y"])
    text = proto.SerializeToString()
    load_model(proto, {"x": (2, 4)})
    assert proto.SerializeToString() == text


def test_simplifier_that_fails_is_reported(monkeypatch, caplog):
    def fail(*_args, **_kwargs):
        raise ValueError("out of\nluck")

    monkeypatch.setattr(onnxslim, "slim", fail)
    with caplog.at_level(logging.WARNING):
        compare(model([node("Relu", "x", "y")], {"x": IMAGE}, ["y"]))
    assert "onnxslim cannot simplify it: out of luck" in caplog.text


def test_nothing_is_printed(capfd):
    load_model(model([node("Relu", "x", "y")], {"x": IMAGE}, ["y"]))
    with pytest.raises(UnsupportedModelError):
        load_model(model([node("Unique", "x", "y")], {"x": (4,)}, ["y"]))
    assert capfd.readouterr() == ("", "")


def test_unknown_operator_of_the_importer():
    proto = model([node("Multinomial", "x", "y")], {"x": (1, 8)}, ["y"])
    with pytest.raises(UnsupportedModelError, match=r"cannot be compiled: Multinomial \(node 'Multinomial_y'\)"):
        load_model(proto)


def test_operator_the_importer_fails_on():
    nodes = [node("Cast", "a", "axis", to=onnx.TensorProto.INT64), node("CumSum", "x axis", "y")]
    proto = model(nodes, {"x": (3, 4), "a": ()}, ["y"])
    with pytest.raises(UnsupportedModelError, match=r"node 'CumSum_y' \(CumSum\): CumSum with non-constant axis"):
        load_model(proto)


def test_shape_that_depends_on_values():
    proto = model([node("Cast", "x", "b", to=onnx.TensorProto.BOOL), node("NonZero", "b", "y")], {"x": (4,)}, ["y"])
    with pytest.raises(UnsupportedModelError, match=r"node 'NonZero_y' \(NonZero\)"):
        load_model(proto)


def test_operator_that_onnx_does_not_know():
    graph = helper.make_graph(
        [helper.make_node("Frobnicate", ["x"], ["y"], name="f")],
        "net",
        [helper.make_tensor_value_info("x", FLOAT, (1,))],
        [helper.make_tensor_value_info("y", FLOAT, (1,))],
    )
    with pytest.raises(UnsupportedModelError, match="node 'f': Frobnicate is not an ONNX operator"):
        load_model(helper.make_model(graph))


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"cannot read .*none\.onnx: No such file"):
        load_model(tmp_path / "none.onnx")


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(100), b"hello, this is text" * 20])
def test_foreign_files(tmp_path, content):
    path = tmp_path / "foreign.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"foreign\.onnx is not an ONNX model"):
        load_model(path)


def test_truncated_file(tmp_path):
    proto = model([node("Conv", "x w", "y")], {"x": IMAGE}, ["y"], {"w": random(2, 4, 3, 3)})
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString()[:200])
    with pytest.raises(ModelError, match=r"net\.onnx"):
        load_model(str(path))


def test_invalid_graph():
    proto = model([node("Relu", "x", "y")], {"x": IMAGE}, ["y"])
    proto.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match=r"is not a valid ONNX model: .*nowhere"):
        load_model(proto)


def test_external_weights(tmp_path):
    proto = model([node("Conv", "x w", "y")], {"x": IMAGE}, ["y"], {"w": random(2, 4, 3, 3)})
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert np.array_equal(load_model(path).weights[0], random(2, 4, 3, 3))
    assert load_model(path).name == "net"
    with pytest.raises(ModelError, match="weight 'w' of the given ONNX model lies in a separate file"):
        load_model(onnx.load(path, load_external_data=False))
    (tmp_path / "net.data").unlink()
    with pytest.raises(ModelError, match="keeps weights in a separate file that cannot be read"):
        load_model(path)


def test_wrong_kind_of_model():
    with pytest.raises(InputError, match=r"a model is a path, an onnx.ModelProto or a tvm.IRModule, not builtins.int"):
        load_model(7)
