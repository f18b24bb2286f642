"""Networks computed in float16: right as ARM code in an emulator, smaller, and refused where that is not built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.compiler.options import Weights
from flexcomp.errors import InputError
from flexcomp.program import Program
from flexcomp.runtime import runner
from tests.uncompiled import planned

from .emulator import emulated, needs_emulator

TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76"
QUICK = f"{TARGET} -opt-level=0"  # for numbers alone: the same kernels, in a part of the time
SHAPE = (1, 3, 42, 42)
# Of the largest output: ten layers, each of which rounds to 11 bits.
MOST_ERROR = 1e-2


def pictures() -> onnx.ModelProto:
    """A stem whose columns are joined, depthwise layers, groups that share a vector and larger ones, long sums of few and of many
    channels, a residual, both poolings, concatenated branches, SiLU and Softmax, a dense head."""
    g = Graph("pictures", seed=3)
    x = g.relu(g.conv(g.input("x", SHAPE), 24, 7, 2))
    x = g.op("Clip", g.conv(x, 44, 1), g.number(0.0), g.number(6.0))
    for kernel, stride in ((3, 1), (5, 2)):
        x = g.relu(g.conv(x, 44, kernel, stride, groups=44))
    x = g.relu(g.conv(x, 44, 3, groups=22))
    x = g.relu(g.conv(x, 160, 3, groups=4))
    x = g.op("Concat", g.relu(g.conv(x, 40, 1)), g.max_pool(x, 3, 1, 1), axis=1, channels=200)
    x = g.op("Add", g.conv(x, 200, 3), x)
    x = g.op("Mul", x, g.op("Sigmoid", x))
    x = g.relu(g.conv(x, 50, 3, 2))
    x = g.op("Mul", x, g.op("Softmax", x, axis=1))
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1, channels=50)
    return g.model(g.dense(pooled, 70), (1, 70))


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return pictures()


@pytest.fixture(scope="module")
def artifact(model):
    return flexcomp.build(model, TARGET, kernels="smallest", threads=1, arithmetic="float16")


def test_values_of_unknown_range_are_not_passed_over(caplog):
    """A network whose layers were not named and not measured on inputs may give infinities."""
    g = Graph("dense", seed=1)
    network = g.model(g.dense(g.input("x", (1, 16)), 16), (1, 16))
    options = {"target": TARGET, "kernels": "smallest", "threads": 1, "arithmetic": "float16"}
    planned(network, **options, weights={"*": "float16"})
    assert not caplog.records
    planned(network, **options)
    (warning,) = caplog.messages
    assert warning.startswith("arithmetic='float16': values beyond 65504 become infinite") and "calibration" in warning
    calibrated = Weights(arithmetic="float16", calibration={"x": np.ones((1, 16), "f4")})
    assert not any(one.unlimited for one in (calibrated, Weights(), Weights(arithmetic="auto"), Weights(arithmetic="bfloat16")))


def bytes_of(program: Program) -> int:
    """The smallest budget, without the inputs and outputs that keep their type."""
    ports = sum(port.type.nbytes for port in (*program.inputs, *program.outputs))
    return program.rungs[0].budget - ports


def test_all_layers_compute_in_it(artifact):
    layers = [layer for layer in artifact.program.layers if layer.op in ("conv2d", "matmul")]
    assert len(layers) >= 10 and all(layer.description.endswith("computed in float16") for layer in layers)
    families = {layer.implementation.split()[0] for layer in layers}
    assert families == {"direct", "depthwise", "grouped", "gemv"}
    pools = [layer.description for layer in artifact.program.layers if "_pool " in layer.description]
    assert len(pools) == 2 and all(pool.endswith(", float16") for pool in pools)


def test_inputs_and_outputs_keep_their_type(artifact):
    program = artifact.program
    assert [port.type.dtype for port in (*program.inputs, *program.outputs)] == ["float32"] * 2
    written = {str(arg.type.dtype) for layer in program.layers for arg in layer.args if getattr(arg, "written", False)}
    assert written >= {"float16"}


@needs_emulator
def test_outputs_against_onnxruntime(model, artifact, tmp_path: Path):
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    np.save(tmp_path / "x.npy", x)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    artifact.export_library(tmp_path / "half.so")
    found = []
    for budget in ("min", "all"):
        inputs, out = {"x": tmp_path / "x.npy"}, tmp_path / budget
        report = runner.run(tmp_path / "half.so", budget=budget, inputs=inputs, output_dir=out, emulator=emulated())
        assert report["arena_bytes"] <= report["budget_bytes"]
        found.append(np.load(runner.output_file(out, model.graph.output[0].name)))
    assert 1e-5 < abs(found[-1] - expected).max() / abs(expected).max() < MOST_ERROR
    for one in found[:-1]:
        np.testing.assert_array_equal(one, found[-1])


def block() -> onnx.ModelProto:
    """A transformer block: norms, attention, a residual, GELU's cousin, and Softmax as the last operator."""
    g, width, tokens = Graph("block", seed=1), 48, 20
    x = g.op("Relu", g.input("x", (1, tokens, width)), channels=width)
    x = g.linear(x, width)
    y = g.op("LayerNormalization", x, g.normal((width,), 1.0), g.normal((width,), 0.1), axis=-1)
    heads = [g.op("Transpose", g.reshape(g.linear(y, width), 1, tokens, 3, 16), perm=[0, 2, 1, 3]) for _ in range(3)]
    scores = g.op("MatMul", heads[0], g.op("Transpose", heads[1], perm=[0, 1, 3, 2]))
    mixed = g.op("MatMul", g.op("Softmax", g.op("Mul", scores, g.number(0.25)), axis=-1), heads[2])
    mixed = g.reshape(g.op("Transpose", mixed, perm=[0, 2, 1, 3]), 1, tokens, width)
    g.channels[mixed] = width
    x = g.op("Add", x, g.linear(mixed, width), channels=width)
    inner = g.linear(x, 4 * width)
    x = g.op("Add", x, g.linear(g.op("Mul", inner, g.op("Sigmoid", inner), channels=4 * width), width), channels=width)
    return g.model(g.op("Softmax", g.linear(x, 30), axis=-1), (1, tokens, 30))


@needs_emulator
def test_a_transformer_has_nothing_wide_within(tmp_path):
    model = block()
    artifact = flexcomp.build(model, QUICK, kernels="smallest", threads=1, arithmetic="float16")
    layers = [layer for layer in artifact.program.layers if layer.implementation != "generic"]
    assert all(layer.description.endswith((", computed in float16", ", on float16")) for layer in layers)
    assert {"attention", "layer_norm", "matmul", "softmax"} <= {layer.op for layer in layers}
    x = np.random.default_rng(0).standard_normal((1, 20, 48)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    artifact.export_library(tmp_path / "block.so")
    runner.run(tmp_path / "block.so", inputs={"x": tmp_path / "x.npy"}, output_dir=tmp_path, emulator=emulated())
    found = np.load(runner.output_file(tmp_path, model.graph.output[0].name))
    assert abs(found - expected).max() < MOST_ERROR * abs(expected).max()


def test_the_smallest_budget_falls_with_the_activations():
    g = Graph("wide", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 8, 28, 28)), 128, 1))
    x = g.op("Transpose", g.op("Sigmoid", x), perm=[0, 1, 3, 2])  # not in bands
    model = g.model(g.conv(g.relu(g.conv(x, 128, 1)), 8, 1), (1, 8, 28, 28))
    wide, half = (
        planned(model, TARGET, threads=1, kernels="smallest", arithmetic=kind) for kind in ("float32", "float16")
    )
    assert bytes_of(half) <= 0.55 * bytes_of(wide)


@pytest.mark.parametrize("cpu", ["cortex-a76", "neoverse-v1", "znver4", "sapphirerapids"])
def test_nothing_is_narrower_unasked(model, cpu):
    """On processors that compute in 16 bits, too."""
    arm = "-mtriple=aarch64-linux-gnu " * cpu.startswith(("cortex", "neoverse"))
    for network in (model, block()):
        layers = planned(network, f"llvm {arm}-mcpu={cpu}").layers
        types = {str(arg.type.dtype) for layer in layers for arg in layer.args if hasattr(arg, "type")}
        assert types == {"float32"} and not any("computed in" in layer.description for layer in layers)


def test_layers_kept_in_float32_are_computed_in_it(model):
    nodes = [node.name for node in model.graph.node if node.op_type == "Conv"]
    program = planned(
        model, TARGET, kernels="smallest", arithmetic="float16", weights={"*": "float16", nodes[1]: "float32", nodes[-1]: "int8"}
    )
    convolutions = [layer for layer in program.layers if layer.op == "conv2d"]
    halves = [layer.description.endswith("computed in float16") for layer in convolutions]
    assert halves == [i not in (1, len(nodes) - 1) for i in range(len(nodes))]
    assert convolutions[-1].description.endswith(", int8")


def test_weights_that_do_not_fit_are_multiplied_in_float32():
    g = Graph("large", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 8, 16, 16)), 16, 1))
    x = g.op("Conv", x, g.weight(np.full((16, 16, 1, 1), 1e5, "f4")), channels=16)
    model = g.model(g.conv(x, 8, 1), (1, 8, 16, 16))
    layers = planned(model, TARGET, kernels="smallest", arithmetic="float16").layers
    kinds = [layer.description.endswith("computed in float16") for layer in layers if layer.op == "conv2d"]
    assert kinds == [True, False, True]


@pytest.mark.parametrize(
    ("target", "options", "error"),
    [
        ("raspberry-pi-4b", {}, r"needs half precision \(\+fullfp16\), which the target lacks .*cortex-a72.* leave arithmetic"),
        ("llvm -mcpu=znver5", {}, "arithmetic='float16' is for AArch64, and x86 computes"),
        ("h200", {}, "arithmetic='float16' is for AArch64, and a GPU computes"),
        (TARGET, {"weights": "int8"}, "multiplies weights of float16, not 'int8'"),
        (TARGET, {"weights": "auto"}, "multiplies weights of float16, not 'auto'"),
        (TARGET, {"tuning": "some.db"}, "has no tuning databases"),
    ],
)
def test_what_is_not_built_is_refused(target, options, error):
    with pytest.raises(InputError, match=error):
        flexcomp.build(pictures(), target, arithmetic="float16", **options)


def test_another_arithmetic_is_refused(model):
    with pytest.raises(InputError, match=r"arithmetic.*'float8'.*float16"):
        flexcomp.build(model, TARGET, arithmetic="float8")


def test_a_feature_is_enough(model):
    target = "llvm -mtriple=aarch64-linux-gnu -mattr=+fullfp16"
    assert "asimdhp" in planned(model, target, kernels="smallest", arithmetic="float16").features


def test_quantised_networks_are_refused():
    g = Graph("quantised", seed=1)
    scale, zero = g.number(0.1), g.weight(np.uint8(128))
    x = g.op("DequantizeLinear", g.op("QuantizeLinear", g.input("x", (1, 8, 8, 8)), scale, zero, channels=8), scale, zero)
    model = g.model(g.conv(x, 8, 1), (1, 8, 8, 8))
    with pytest.raises(InputError, match="not for quantised networks"):
        flexcomp.build(model, TARGET, arithmetic="float16")
