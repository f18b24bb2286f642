"""`build(weights="auto")`: the fewest bytes within an error, on which inputs it is measured, and what it says of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import flexcomp
from benchmarks.networks.recurrent import Recurrent
from flexcomp.compiler import weight_trial
from flexcomp.errors import InputError
from flexcomp.program import weight_errors
from flexcomp.report import describe
from tests import uncompiled
from tests.operators.networks import model, node
from tests.uncompiled import planned

from .weighted import IMAGE, SAFETENSORS, network, normal, stored, weights


def facts_of(artifact: flexcomp.Artifact) -> dict:
    return describe(artifact.program)


def layers_of(facts: dict) -> dict[str, dict]:
    return {layer["node"]: layer for layer in facts["layers"] if layer["weights_errors"]}


@pytest.mark.parametrize("max_error", [0.05, 2e-3, 1e-7])
def test_auto_keeps_the_error(max_error, tmp_path):
    """It is measured on the inputs, all layers together; with less of it there are more bytes."""
    x = normal(*IMAGE)
    artifact = flexcomp.build(
        network(weights()), threads=1, kernels="smallest", weights="auto", max_error=max_error, calibration={"x": x}
    )
    facts = facts_of(artifact)
    (wanted,) = onnxruntime.InferenceSession(network(weights()).SerializeToString()).run(None, {"x": x})
    artifact.export_library(tmp_path / "network.so")
    with flexcomp.load(tmp_path / "network.so") as session:
        error = abs(session(x) - wanted).max() / abs(wanted).max()
    assert error <= max_error + 3e-6 and abs(error - facts["error"]) <= 2e-6
    assert list(layers_of(facts)) == ["/body/conv", "/body/each", "/head/fc"]
    types = [layer["weights_dtype"] for layer in layers_of(facts).values()]
    assert set(stored(tmp_path / "network.weights").values()) == {SAFETENSORS[dtype] for dtype in types}
    assert ("float32" in types) == (max_error < 1e-6) and ("int8" in types) == (max_error > 0.01)

    record = weight_errors.read(artifact.program)
    assert record.max_error == max_error and (record.nbytes, float(f"{record.error:.3g}")) in record.tried
    sizes = [record.float32_nbytes, *(each.nbytes for each in record.narrowings)]
    assert sizes == sorted(sizes, reverse=True), "every narrowing saves bytes"
    assert record.narrowings[-1].nbytes <= record.nbytes <= record.float32_nbytes
    assert {(n.layer, n.dtype) for n in record.narrowings if n.done} >= {
        (node, layer["weights_dtype"]) for node, layer in layers_of(facts).items() if layer["weights_dtype"] != "float32"
    }


def test_auto_builds_what_it_chose(monkeypatch, caplog):
    """Where that errs by more than values alone, less is allowed; in the end nothing is narrow."""
    options = dict(threads=1, kernels="smallest", weights="auto", max_error=0.02)
    measured = weight_trial.Trial.error_of
    loose = weight_errors.read(planned(network(weights()), **options))
    for count in (1, 9):
        found = iter([0.05] * count)
        monkeypatch.setattr(weight_trial.Trial, "error_of", lambda *given, found=found: next(found, None) or measured(*given))
        record = weight_errors.read(planned(network(weights()), **options))
        assert record.max_error == 0.02 and record.nbytes > loose.nbytes
        assert 0 < record.error <= 0.02 * 0.9 * 0.02 / 0.05 + 1e-6 if count == 1 else record.error == 0
    assert record.nbytes == record.float32_nbytes
    assert "weights stay as they are" in caplog.text


def test_auto_is_never_larger_than_what_loses_nothing(tmp_path):
    """Weights of 8 bits with zero points need 9, and in 16 lose nothing: no error is too small for that."""
    integers = np.random.default_rng(1).integers(0, 256, (24, 64), np.uint8)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], "/dequantise", axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"], "/dense"),
    ]
    scales = np.abs(normal(64)) / 50 + np.float32(1e-3)
    given = {"q": integers, "s": scales, "z": np.full(64, 140, np.uint8)}
    artifact = flexcomp.build(
        model(nodes, {"x": (5, 24)}, ["y"], given), threads=1, kernels="smallest", weights="auto", max_error=1e-6
    )
    artifact.export_library(tmp_path / "network.so")
    record = weight_errors.read(artifact.program)
    assert set(stored(tmp_path / "network.weights").values()) == {"BF16"}
    assert record.nbytes == record.float32_nbytes // 2 and record.error <= 1e-6


def products_of_integers() -> onnx.ModelProto:
    """Two dense layers, quantised as ONNX Runtime's quantize_dynamic does."""
    rng, given, nodes, x = np.random.default_rng(1), {}, [], "x"
    for i, (depth, width) in enumerate([(32, 48), (48, 16)]):
        given |= {f"w{i}": rng.integers(-100, 100, (depth, width), np.int8), f"s{i}": np.full(width, 0.01, np.float32)}
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [f"q{i}", f"sx{i}", f"z{i}"]),
            helper.make_node("MatMulInteger", [f"q{i}", f"w{i}", f"z{i}"], [f"p{i}"], f"/dense{i}"),
            helper.make_node("Cast", [f"p{i}"], [f"c{i}"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"sx{i}", f"s{i}"], [f"f{i}"]),
            helper.make_node("Mul", [f"c{i}", f"f{i}"], [f"y{i}"]),
        ]
        x = f"y{i}"
    return model(nodes, {"x": (3, 32)}, [x], given)


@pytest.mark.parametrize("options", [{"weights": "auto"}, {"arithmetic": "auto"}], ids=["weights", "arithmetic"])
def test_auto_of_products_of_integers(options):
    """Their layers are asked about once, and stay products of integers, which lose nothing."""
    target = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76" if "arithmetic" in options else "native"
    artifact = planned(products_of_integers(), target, threads=1, kernels="smallest", max_error=1e-3, **options)
    assert [layer.op for layer in artifact.layers if layer.op == "matmul"] == ["matmul"] * 2
    if "weights" in options:
        record = weight_errors.read(artifact)
        assert record.error <= 1e-3 and record.nbytes * 3.5 < record.float32_nbytes


def test_auto_takes_what_a_type_does_not_have_in_another(tmp_path):
    given = weights()
    given["head"][3, 4] = 1e5
    artifact = uncompiled.artifact(network(given), threads=1, kernels="smallest", weights="auto", max_error=0.5)
    errors = {node: layer["weights_errors"] for node, layer in layers_of(facts_of(artifact)).items()}
    assert "float16" not in errors["/head/fc"] and "bfloat16" in errors["/head/fc"]
    assert "float16" in errors["/body/conv"]
    table = artifact.summary()
    assert "int8" in table and "outputs err by" in table


def test_auto_with_calibration_from_a_file(tmp_path):
    np.savez(tmp_path / "images.npz", x=normal(3, *IMAGE))
    options = {"threads": 1, "kernels": "smallest", "weights": "auto"}
    several = uncompiled.artifact(network(weights()), **options, calibration=tmp_path / "images.npz")
    again = uncompiled.artifact(network(weights()), **options, calibration=[{"x": image} for image in normal(3, *IMAGE)])
    assert facts_of(several)["error"] == facts_of(again)["error"] > 0
    assert layers_of(facts_of(several)) == layers_of(facts_of(again))


def relu_of_products(**given: np.ndarray) -> onnx.ModelProto:
    """Outputs a = relu(x · first), and if there are weights for it b = relu(x · second)."""
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}/p"], f"/{name}") for name in given]
    nodes += [helper.make_node("Relu", [f"{name}/p"], [f"{name}/y"], f"/{name}/relu") for name in given]
    return model(nodes, {"x": (2, 24)}, [f"{name}/y" for name in given], given)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_calibration_that_says_nothing_is_refused(value):
    network = relu_of_products(first=abs(normal(24, 24)))
    x = np.full((2, 24), value, np.float32)
    with pytest.raises(InputError, match="calibration inputs make first/y 0, or no numbers: they say nothing of errors; give"):
        flexcomp.build(network, threads=1, kernels="smallest", weights="auto", calibration={"x": x})
    planned(network, threads=1, kernels="smallest", weights="auto", calibration=[{"x": x}, {"x": np.ones_like(x)}])


def test_random_inputs_that_say_nothing_are_refused():
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=1), helper.make_node("MatMul", ["f", "w"], ["p"], "/p")]
    nodes += [helper.make_node("Relu", ["p"], ["y"])]
    counted = model(nodes, {"x": (2, 24)}, ["y"], {"w": -abs(normal(24, 24))}, {"x": onnx.TensorProto.INT64})
    with pytest.raises(InputError, match="random inputs make y 0, or no numbers"):
        flexcomp.build(counted, threads=1, kernels="smallest", weights="auto")


def test_what_calibration_does_not_reach_is_said(caplog):
    """An output that stays 0, and the layer whose weights nothing depends on."""
    network = relu_of_products(first=abs(normal(24, 24)), second=-abs(normal(24, 24)))
    options = dict(threads=1, kernels="smallest", weights="auto")
    uncompiled.artifact(network, **options, calibration={"x": np.ones((2, 24), np.float32)})
    first, second = (record.message for record in caplog.records)
    assert first == "the calibration inputs make second/y 0, or no numbers: they say nothing of errors there"
    assert second == "the calibration inputs say nothing of /second: no output depends on their weights there"
    caplog.clear()
    uncompiled.artifact(network, **options)
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_error": 0}, "max_error=0 is not a part of the largest output between 0 and 1"),
        ({"max_error": "small"}, "max_error='small'"),
        ({"calibration": {"y": normal(*IMAGE)}}, "calibration inputs are called 'y'; the network's 'x'"),
        ({"calibration": {"x": normal(1, 3, 4, 4)}}, r"calibration input 'x' has shape \(1, 3, 4, 4\): the network takes"),
        ({"calibration": []}, "calibration inputs are a dict"),
        ({"calibration": 5}, "calibration inputs are a dict"),
        ({"calibration": {"x": np.full(IMAGE, "text")}}, "x"),
        ({"calibration": "nothing.npz"}, "cannot read calibration inputs from nothing.npz"),
    ],
)
def test_wrong_calibration(options, message):
    refuse_calibration(options, message)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("one.npy", None, "one.npy holds one array, not inputs by name: write it with numpy.savez"),
        ("empty.npz", b"", "empty.npz is no .npz file of numbers, or it is damaged"),
        ("text.npz", b"these are words", "text.npz is no .npz file of numbers, or it is damaged"),
        ("cut.npz", b"PK\x03\x04 and no more", "cut.npz is no .npz file of numbers, or it is damaged"),
    ],
)
def test_calibration_files_that_are_none(tmp_path, name, data, message):
    if data is None:
        np.save(tmp_path / name, normal(*IMAGE))
    else:
        (tmp_path / name).write_bytes(data)
    refuse_calibration({"calibration": tmp_path / name}, message)


def refuse_calibration(options, message):
    with pytest.raises(InputError, match=message):
        flexcomp.build(network(weights()), threads=1, weights="auto", **options)


def test_auto_where_outputs_move_in_steps():
    """Every layer's error alone may be 0, and that of all together is not."""
    for seed in (89, 120, 535):
        rng = np.random.default_rng(seed)
        nodes = [helper.make_node("MatMul", ["x" if i == 0 else f"r{i - 1}", f"w{i}"], [f"m{i}"], f"m{i}") for i in range(3)]
        nodes += [helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"r{i}") for i in range(3)]
        nodes = [node for pair in zip(nodes[:3], nodes[3:], strict=True) for node in pair]
        nodes.append(helper.make_node("Floor", ["r2"], ["y"], "steps"))
        given = {f"w{i}": rng.standard_normal((24, 24), dtype=np.float32) for i in range(3)}
        stepped = model(nodes, {"x": (1, 24)}, ["y"], given)
        artifact = uncompiled.artifact(stepped, threads=1, kernels="smallest", weights="auto", max_error=1e-3)
        assert facts_of(artifact)["error"] <= 1e-3


def test_auto_of_networks_in_bfloat16():
    brain = onnx.TensorProto.BFLOAT16
    nodes = [node("MatMul", "x", "w")]
    given = {"w": normal(24, 24).astype(ml_dtypes.bfloat16)}
    network = model(nodes, {"x": (2, 24)}, ["y"], given, {"x": brain, "y": brain})
    facts = facts_of(uncompiled.artifact(network, threads=1, kernels="smallest", weights="auto", max_error=0.2))
    (errors,) = [layer["weights_errors"] for layer in facts["layers"] if layer["weights_errors"]]
    assert 0 < errors["int8"] < 0.2


def test_options_of_auto_are_for_auto():
    for option in ({"max_error": 0.1}, {"calibration": {"x": normal(*IMAGE)}}):
        with pytest.raises(InputError, match='are for weights="auto"'):
            flexcomp.build(network(weights()), threads=1, weights="int8", **option)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_are_asked_about(kind, tmp_path):
    """With all panels of their own: a GRU that resets its state behind the product has one, one before it two."""
    g = Recurrent(kind, seed=4)
    x = g.input("x", (9, 1, 24))
    g.channels[x] = 24
    x = g.recurrent(kind, g.recurrent(kind, x, 32), 16, bidirectional=True)
    given = g.model(g.linear(x, 5), (9, 1, 5))
    for layer in given.graph.node:
        for attribute in layer.attribute:
            if attribute.name == "linear_before_reset":
                attribute.i = 0
    x = normal(9, 1, 24)
    artifact = flexcomp.build(given, threads=1, kernels="smallest", weights="auto", max_error=0.01, calibration={"x": x})
    layers = [layer for layer in facts_of(artifact)["layers"] if layer["weights_errors"]]
    assert sum(kind in layer["description"] for layer in layers) == 3
    assert "int8" in {layer["weights_dtype"] for layer in layers} - {"float32"}
    (wanted,) = onnxruntime.InferenceSession(given.SerializeToString()).run(None, {"x": x})
    artifact.export_library(tmp_path / "network.so")
    with flexcomp.load(tmp_path / "network.so") as session:
        assert abs(session(x) - wanted).max() <= 0.01 * abs(wanted).max()


def lstm(*known: str) -> onnx.ModelProto:
    """A layer of 4 steps, 8 features and 16 units; what is not `known` is an input."""
    rng = np.random.default_rng(7)
    shapes = {"w": (1, 64, 8), "r": (1, 64, 16), "b": (1, 128), "h": (1, 1, 16)}
    arrays = {name: (rng.standard_normal(shape) / 4).astype("f4") for name, shape in shapes.items()}
    nodes = [node("LSTM", "x", "w", "r", "b", "", "h", out="y", hidden_size=16)]
    inputs = {"x": (4, 1, 8), **{name: shapes[name] for name in shapes if name not in known}}
    return model(nodes, inputs, ["y"], {name: arrays[name] for name in known})


@pytest.mark.parametrize("known", ["wrbh", "wbh", "wrh"])
@pytest.mark.parametrize("kind", ["auto", "float16"])
def test_recurrent_layers_whose_weights_are_computed_are_not_asked_about(known, kind):
    """A panel is made of the recurrent weights and the bias: both must be known."""
    artifact = uncompiled.artifact(lstm(*known), threads=1, kernels="smallest", weights=kind)
    (layer,) = [layer for layer in facts_of(artifact)["layers"] if "LSTM" in layer["description"]]
    assert layer["weights_dtype"] in ({"float16", "int8"} if known == "wrbh" else {"float32", None})


def test_small_tables_are_not_asked_about():
    """They are no layers in slices."""
    rng = np.random.default_rng(2)
    arrays = {"t": rng.standard_normal((20, 64)).astype("f4"), "m": rng.standard_normal((64, 32)).astype("f4")}
    nodes = [node("Gather", "t", "i", out="g"), node("MatMul", "g", "m")]
    given = model(nodes, {"i": (5,)}, ["y"], arrays, {"i": onnx.TensorProto.INT64})
    facts = facts_of(uncompiled.artifact(given, threads=1, kernels="smallest", weights="auto"))
    assert [layer["op"] for layer in facts["layers"] if layer["weights_errors"]] == ["matmul"]
