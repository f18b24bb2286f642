"""Products of weights in blocks and activations in 8 bits: beside NumPy's integers, and ONNX Runtime's accuracy level 4."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from flexcomp.errors import InputError
from flexcomp.report import describe, summary
from tests.conformance.verdict import UNOPTIMISED
from tests.jointly import together

from .blocks import graph, product, rounded_product
from .networks import node
from .test_weights_in_blocks import families, implementations, stack, tied


def built(model: onnx.ModelProto, **options) -> flexcomp.Artifact:
    usual = {"target": UNOPTIMISED, "threads": 1, "progress": False, "arithmetic": "int8", "kernels": "fastest"}
    return flexcomp.build(model, **usual | options)


def outputs(artifact: flexcomp.Artifact, x: np.ndarray, budget="min") -> np.ndarray:
    with artifact.session(budget=budget) as session:
        (found,) = session.run({"x": x}).values()
    return found


def at_level_4(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """ONNX Runtime's outputs with activations in 8 bits."""
    same = onnx.ModelProto.FromString(model.SerializeToString())
    for one in same.graph.node:
        for attribute in one.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 4
    return onnxruntime.InferenceSession(same.SerializeToString()).run(None, {"x": x})[0]


CASES = [
    (1, (96, 256), 32, 4, False),
    (1, (100, 85), 16, 4, True),  # a last block of 5, blocks of channels that overlap
    (1, (40, 200), 64, 8, True),
    (5, (96, 1100), 128, 4, True),
    (33, (33, 1040), 64, 8, False),
    (3, (33, 7), 16, 4, True),  # one block, in part
    (3, (5, 70), 256, 4, True),  # fewer channels than lanes
    (40, (70, 300), 256, 8, True),
]


@pytest.mark.parametrize("target", ["native", "llvm -mcpu=x86-64-v3"])
def test_sums_are_those_of_the_same_integers(target):
    given, wanted = [], []
    for rows, sizes, block, bits, zeros in CASES:
        rng = np.random.default_rng(1)
        made, weights = product(rng, "x", "y", sizes, block, bits, zeros)
        x = rng.standard_normal((rows, sizes[1])).astype("f4")
        given.append((graph([made], x, weights), {"x": x}))
        wanted.append(rounded_product(x, weights, "y", sizes, block, bits))
    computed = together(given, ("min", None), target=target, arithmetic="int8", kernels="fastest")
    for case, found, want in zip(CASES, computed, wanted, strict=True):
        assert families(found.layers) == {"rows in 8 bits", "bytegemv" if case[0] == 1 else "bytegemm"}
        for one in found.runs:
            np.testing.assert_allclose(one["y"], want, rtol=0, atol=4e-7 * abs(want).max(), err_msg=str(case))


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (8, True)])
def test_onnx_runtime_rounds_activations_alike(bits, zeros):
    rng = np.random.default_rng(2)
    made, weights = product(rng, "x", "y", (128, 512), 32, bits, zeros)
    x = rng.standard_normal((7, 512)).astype("f4")
    model = graph([made], x, weights)
    found, want = outputs(built(model), x), at_level_4(model, x)
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * abs(want).max())
    exact = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    assert abs(want - exact).max() > 1e-4 * abs(exact).max(), "rounding of activations is seen"


@pytest.mark.parametrize("target", ["native", "llvm -mcpu=x86-64-v3"])
def test_no_sum_saturates(target):
    """The largest weights of either sign, of 4 and 8 bits, times the largest inputs, in every place of a block."""
    x = np.concatenate([np.full((2, 64), 127), np.full((2, 64), -127)]).astype("f4")
    given, wanted = [], []
    for bits in (4, 8):
        made, weights = product(np.random.default_rng(3), "x", "y", (32, 64), 32, bits, False)
        weights["y_w"][:16], weights["y_w"][16:] = 255, 0
        weights["y_s"][:] = 1
        given.append((graph([made], x, weights), {"x": x}))
        wanted.append(rounded_product(x, weights, "y", (32, 64), 32, bits))
        assert abs(wanted[-1]).max() >= 64 * 127 * 8
    found = together(given, target=target, arithmetic="int8", kernels="fastest")
    for one, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one["y"], want)


def test_layers_of_one_input_share_its_rows():
    rng = np.random.default_rng(4)
    nodes, weights = [], {}
    for name in "qkv":
        made, own = product(rng, "h", name, (64, 64), 32, 4, False)
        nodes.append(made)
        weights |= own
    nodes = [node("Tanh", "x", out="h"), *nodes, node("Add", "q", "k", out="qk"), node("Mul", "qk", "v")]
    x = rng.standard_normal((4, 64)).astype("f4")
    artifact = built(graph(nodes, x, weights))
    kinds = [layer.implementation.split(" ×")[0].rstrip("0123456789×").strip() for layer in artifact.program.layers]
    assert (kinds.count("rows in 8 bits"), kinds.count("bytegemm")) == (1, 3)
    h = np.tanh(x)
    q, k, v = (rounded_product(h, weights, name, (64, 64), 32, 4) for name in "qkv")
    np.testing.assert_allclose(outputs(artifact, x), (q + k) * v, rtol=0, atol=1e-2 * abs((q + k) * v).max())


def test_the_input_of_a_layer_may_be_added_to_its_result():
    rng = np.random.default_rng(5)
    made, weights = product(rng, "x", "h", (64, 64), 32, 4, True)
    x = rng.standard_normal((4, 64)).astype("f4")
    artifact = built(graph([made, node("Add", "h", "x")], x, weights))
    want = rounded_product(x, weights, "h", (64, 64), 32, 4) + x
    assert implementations(artifact) == {"rows in 8 bits", "bytegemm"}
    np.testing.assert_allclose(outputs(artifact, x), want, rtol=0, atol=1e-6 * abs(want).max())


def test_zeros_and_numbers_that_are_none():
    made, weights = product(np.random.default_rng(6), "x", "y", (32, 96), 32, 4, True)
    x = np.zeros((3, 96), "f4")
    x[1, 40], x[2, 3] = np.inf, np.nan
    found = outputs(built(graph([made], x, weights)), x)
    assert not found[0].any() and not np.isfinite(found[1:]).any()


def test_only_on_request():
    """An attribute of the model changes no arithmetic."""
    rng = np.random.default_rng(7)
    made, weights = product(rng, "x", "y", (64, 64), 32, 4, False)
    x = rng.standard_normal((2, 64)).astype("f4")
    for level in (0, 4):
        (one,) = (attribute for attribute in made.attribute if attribute.name == "accuracy_level")
        one.i = level
        assert implementations(built(graph([made], x, weights), arithmetic="float32")) == {"blockgemm"}


def test_float_weights_that_are_rounded_to_blocks():
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((3, 96)).astype("f4"), rng.standard_normal((96, 64)).astype("f4")
    model = graph([node("MatMul", "x", "w")], x, {"w": w})
    artifact = built(model, weights="int4")
    assert implementations(artifact) == {"rows in 8 bits", "bytegemm"}
    (layer,) = (one for one in artifact.program.layers if one.weights is not None)
    assert layer.description.endswith(", int4 in blocks of 32, float16 scales, computed in int8")
    want = outputs(built(model, weights="int4", arithmetic="float32"), x)
    np.testing.assert_allclose(outputs(artifact, x), want, rtol=0, atol=2e-2 * abs(want).max())


def test_a_table_of_an_embedding_and_a_head_is_stored_once(tmp_path):
    model, ids = tied()
    artifact = built(model)
    assert {"rows", "rows in 8 bits", "bytegemv"} <= implementations(artifact), "the row is fetched from the head's panel"
    artifact.export_library(tmp_path / "m.so")
    constants = sum(len(tensor.raw_data) for tensor in model.graph.initializer) // 2
    assert (tmp_path / "m.weights").stat().st_size <= 1.03 * constants
    for budget in ("min", None):
        want = at_level_4(model, ids)  # numbers of a row in 4 bits often lie between two of 8
        np.testing.assert_allclose(outputs(artifact, ids, budget), want, rtol=0, atol=2e-3 * abs(want).max())


def test_processors_without_the_instructions_compute_in_float32(caplog):
    rng = np.random.default_rng(9)
    made, weights = product(rng, "x", "y", (64, 64), 32, 4, False)
    x = rng.standard_normal((2, 64)).astype("f4")
    assert implementations(built(graph([made], x, weights), target="llvm -mcpu=x86-64")) == {"blockgemm"}
    assert "all layers are computed in float32" in caplog.text


def test_a_network_without_such_layers_says_so(caplog):
    rng = np.random.default_rng(10)
    weights = {"w": rng.standard_normal((64, 32)).astype("f4")}
    x = rng.standard_normal((2, 64)).astype("f4")
    floats = graph([node("MatMul", "x", "w")], x, weights)
    built(floats, weights="int4")
    assert not caplog.text
    built(floats)
    assert "weights='int4' makes blocks" in caplog.text


def test_layers_within_an_error():
    model, x = stack(layers=3, width=128)
    layers = lambda artifact: [one for one in describe(artifact.program)["layers"] if one["weights_dtype"]]  # noqa: E731
    exact = outputs(built(model, arithmetic="float32"), x)
    chosen = {}
    for most in (0.1, 0.012, 1e-6):
        artifact = built(model, max_error=most, calibration={"x": x})
        facts = describe(artifact.program)
        assert facts["error"] <= most and all(0 < one["arithmetic_error"] < 0.1 for one in layers(artifact))
        np.testing.assert_allclose(abs(outputs(artifact, x) - exact).max() / abs(exact).max(), facts["error"], atol=1e-5)
        chosen[most] = [one["arithmetic"] for one in layers(artifact)].count("int8")
        assert ("by arithmetic in int8 outputs err by" in summary(artifact.program)) == bool(facts["error"] is not None)
    assert chosen[0.1] == 3 > chosen[0.012] >= 1 and not chosen[1e-6]


def test_types_of_weights_and_arithmetic_by_errors():
    """Weights and activations together are within the error of float32."""
    rng = np.random.default_rng(11)
    x, weights = rng.standard_normal((4, 96)).astype("f4"), {}
    for name in "abc":
        weights[name] = rng.standard_normal((96, 96)).astype("f4") / 10
    nodes = [node("MatMul", "x", "a", out="h"), node("Relu", "h", out="r"), node("MatMul", "r", "b", out="g")]
    model = graph([*nodes, node("MatMul", "g", "c")], x, weights)
    (exact,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    chosen = {}
    for most in (0.3, 0.02, 1e-6):
        artifact = built(model, weights="auto", max_error=most, calibration={"x": x})
        facts = describe(artifact.program)
        error = abs(outputs(artifact, x) - exact).max() / abs(exact).max()
        np.testing.assert_allclose(error, facts["error"], atol=1e-5)
        assert error <= most and facts["max_error"] == most
        chosen[most] = [(one["weights_dtype"], one["arithmetic"]) for one in facts["layers"] if one["weights_dtype"]]
        assert all(one["weights_errors"] for one in facts["layers"] if one["weights_dtype"])
    assert ("int4", "int8") in chosen[0.3] and chosen[0.3] != chosen[0.02]
    assert chosen[1e-6] == [("float32", "float32")] * 3


def test_gpus_have_none():
    made, weights = product(np.random.default_rng(9), "x", "y", (64, 64), 32, 4, False)
    with pytest.raises(InputError, match="arithmetic='int8' is for CPUs"):
        built(graph([made], np.zeros((2, 64), "f4"), weights), target="cuda -arch=sm_87")
