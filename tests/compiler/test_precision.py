"""Networks of 16-bit floats are computed in float32; float64 and integers in themselves."""

from __future__ import annotations

import logging
import subprocess

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import InputError
from flexcomp.program.program import ScratchArg, ValueArg, WeightArg
from tests.operators.networks import model, node

RNG = np.random.default_rng(3)
HALF, BRAIN, DOUBLE = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE


def numbers(dtype, *shape: int) -> np.ndarray:
    values = RNG.standard_normal(shape) if np.dtype(dtype).kind != "i" else RNG.integers(-9, 9, shape)
    return values.astype(dtype)


def loaded(network: onnx.ModelProto, folder, **options) -> tuple[flexcomp.Artifact, flexcomp.Session]:
    artifact = flexcomp.build(network, threads=2, kernels="smallest", **options)
    artifact.export_library(folder / "network.so")
    return artifact, flexcomp.load(folder / "network.so")


def convolutions() -> onnx.ModelProto:
    weights = {
        "w": numbers("f2", 32, 8, 3, 3) / 8, "b": numbers("f2", 32), "v": numbers("f2", 32, 32, 3, 3) / 16,
        "s": numbers("f2", 32), "t": numbers("f2", 32), "m": numbers("f2", 32), "d": np.abs(numbers("f2", 32)) + 1,
        "u": numbers("f2", 32, 10) / 4, "c": numbers("f2", 10),
    }  # fmt: skip
    nodes = [
        node("Conv", "x", "w", "b", pads=[1, 1, 1, 1], out="c1"), node("Relu", "c1", out="r1"),
        node("Conv", "r1", "v", pads=[1, 1, 1, 1], out="c2"),
        node("BatchNormalization", "c2", "s", "t", "m", "d", out="n"), node("Add", "n", "r1", out="a"),
        node("GlobalAveragePool", "a", out="g"), node("Flatten", "g", out="f"), node("Gemm", "f", "u", "c"),
    ]  # fmt: skip
    return model(nodes, {"x": (1, 8, 20, 20)}, ["y"], weights, {"x": HALF, "y": HALF})


def test_float16_networks_are_as_accurate_as_can_be(tmp_path):
    """What a network in float32 with the same weights gives, rounded once; no kernel computes in 16 bits."""
    network, x = convolutions(), numbers("f2", 1, 8, 20, 20)
    artifact, session = loaded(network, tmp_path)
    found = session(x)
    wide = onnx.ModelProto.FromString(network.SerializeToString())
    for tensor in wide.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f4"), tensor.name))
    for info in (*wide.graph.input, *wide.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    del wide.graph.value_info[:]
    exact = onnxruntime.InferenceSession(wide.SerializeToString()).run(None, {"x": x.astype("f4")})[0]
    assert found.dtype == np.float16 and session.inputs[0].dtype == session.outputs[0].dtype == "float16"
    np.testing.assert_allclose(found.astype("f4"), exact, rtol=6e-4, atol=1e-5)
    assert "direct" in " ".join(layer.implementation for layer in artifact.program.layers if layer.op == "conv2d")
    for layer in artifact.program.layers:
        kinds = {arg.type.dtype for arg in layer.args if isinstance(arg, ValueArg | ScratchArg)}
        assert layer.op == "astype" or kinds == {"float32"}, layer
    kept = [arg.type.dtype for layer in artifact.program.layers for arg in layer.args if isinstance(arg, WeightArg)]
    assert set(kept) == {"float16", "float32"}  # those of a folded normalisation are no numbers of 16 bits


def test_conversions_that_the_model_asks_for_still_round(tmp_path):
    nodes = [node("Cast", "x", to=HALF, out="h"), node("CastLike", "z", "h", out="k"), node("Add", "h", "k", out="s"),
             node("Cast", "h", to=TensorProto.FLOAT), node("Cast", "k", to=TensorProto.FLOAT, out="y2")]  # fmt: skip
    network = model(nodes, {"x": (500,), "z": (500,)}, ["y", "y2", "s"], types={"s": HALF})
    _, session = loaded(network, tmp_path)
    x, z = (numbers("f4", 500) * 10.0 ** RNG.integers(-9, 6, 500).astype("f4") for _ in range(2))
    found = session.run({"x": x, "z": z})
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = [value.astype("f2").astype("f4") for value in (x, z)]
        np.testing.assert_array_equal(found["y"], narrow[0])
        np.testing.assert_array_equal(found["y2"], narrow[1])
        np.testing.assert_array_equal(found["s"], (narrow[0] + narrow[1]).astype("f2"))


def brain() -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    w, x = numbers(ml_dtypes.bfloat16, 24, 9), numbers(ml_dtypes.bfloat16, 5, 24)
    network = model([node("MatMul", "x", "w", out="p"), node("Relu", "p")], {"x": (5, 24)}, ["y"], types={"x": BRAIN, "y": BRAIN})
    network.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return network, x, np.maximum(x.astype("f4") @ w.astype("f4"), 0).astype(ml_dtypes.bfloat16)


def test_bfloat16_comes_and_goes(tmp_path):
    """As arrays of ml_dtypes, or as bits; through the runner too."""
    network, x, expected = brain()
    _, session = loaded(network, tmp_path)
    for given in (x, x.view("u2")):
        found = session(given)
        assert found.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(found.view("u2"), expected.view("u2"))
        np.save(tmp_path / "x.npy", given)
        subprocess.run(
            [str(runtime_ext.runner()), str(tmp_path / "network.so"), "--input", f"x={tmp_path}/x.npy",
             "--output-dir", str(tmp_path)], check=True, capture_output=True,
        )  # fmt: skip
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy").view("u2"), expected.view("u2"))
    with pytest.raises(InputError, match=r'input "x" must be bfloat16\[5, 24\], not float32'):
        session(x.astype("f4"))


@pytest.mark.parametrize("kind", ["f2", ml_dtypes.bfloat16])
def test_constant_outputs_of_16_bits(kind, tmp_path):
    w, dtype = numbers(kind, 9), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    network = model([node("Relu", "x")], {"x": (3,)}, ["y"])
    network.graph.initializer.append(numpy_helper.from_array(w, "w"))
    network.graph.output.append(helper.make_tensor_value_info("w", dtype, [9]))
    _, session = loaded(network, tmp_path)
    np.testing.assert_array_equal(session.run(numbers("f4", 3))["w"], w)


@pytest.mark.parametrize("dtype", ["f8", "i8", "i4"])
@pytest.mark.parametrize(("left", "right"), [((33, 70), (70, 45)), ((2, 9, 70), (70, 16)), ((70,), (70, 45)), ((5, 7), (7, 3))])
def test_products_in_wide_types(dtype, left, right, tmp_path):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, w = numbers(dtype, *left), numbers(dtype, *right)
    types = {"x": kind, "y": kind, "z": kind, "v": kind}
    nodes = [node("MatMul", "x", "w"), node("MatMul", "x", "z", out="v")]
    _, session = loaded(model(nodes, {"x": left, "z": right}, ["y", "v"], {"w": w}, types), tmp_path)
    for found in session.run({"x": x, "z": w}).values():
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_allclose(found, x @ w, rtol=1e-12, atol=1e-12)


def test_layer_norm_in_float64(tmp_path, caplog):
    network = model(
        [node("LayerNormalization", "x", "s", "b", axis=1)], {"x": (2, 5, 24)}, ["y"],
        {"s": numbers("f8", 5, 24), "b": numbers("f8", 5, 24)}, {"x": DOUBLE, "y": DOUBLE},
    )  # fmt: skip
    x = numbers("f8", 2, 5, 24)
    with caplog.at_level(logging.WARNING):
        _, session = loaded(network, tmp_path)
    assert "computes in float64, for which there are only slow kernels" in caplog.text
    expected = onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(session(x), expected, rtol=1e-9, atol=1e-9)


def test_float32_networks_are_not_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        flexcomp.build(model([node("Relu", "x")], {"x": (3,)}, ["y"]), threads=1, kernels="smallest")
    assert "float64" not in caplog.text
