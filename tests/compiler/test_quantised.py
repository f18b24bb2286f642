"""Whole networks from ONNX Runtime's quantiser: bit for bit what ONNX Runtime answers, with all kernels, budgets and on ARM."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import flexcomp
from benchmarks.networks.graph import Graph
from benchmarks.networks.quantised import WAYS, Way, quantise
from flexcomp.device import resolve_target
from flexcomp.runtime import runner

from ..uncompiled import planned
from .emulator import emulated, needs_emulator
from .weighted import stored

IMAGE = (1, 3, 26, 26)
AVX2 = "llvm -mcpu=x86-64-v3"
WITHOUT_DOTS = "llvm -mcpu=x86-64-v3 -mattr=-avx2"
GENERIC = ["divide+3", "sum", "multiply+2"]  # the input is rounded; the average is a sum and a factor


@functools.cache
def real() -> onnx.ModelProto:
    """Convolutions of all kinds, residual sums with and without zero points, a pool, joined parts, an average, a dense layer."""
    g = Graph("small", seed=1)
    x = g.relu(g.conv(g.input("x", IMAGE), 16, 3, 2))
    y = g.relu6(g.conv(g.relu6(g.conv(x, 24, 1)), 24, 3, groups=24))
    x = g.op("Add", x, g.conv(y, 16, 1))
    x = g.op("Add", g.conv(g.relu(g.conv(x, 16, 3)), 16, 1), x)
    x = g.relu(g.op("Add", g.conv(x, 32, 3), g.conv(x, 32, 1)))
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("Concat", x, g.relu(g.conv(x, 8, 1)), axis=1, channels=40)
    x = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1, channels=40)
    return g.model(g.dense(x, 10), (1, 10))


def image(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(IMAGE).astype("f4")}


@functools.cache
def quantised(way: Way) -> onnx.ModelProto:
    return quantise(real(), [image(i) for i in range(3)], way)


def wanted(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)[0]


def output_step(model: onnx.ModelProto) -> float:
    """The step between neighbouring values of the first output, which a DequantizeLinear makes; 0 if none does."""
    makers = {name: node for node in model.graph.node for name in node.output}
    maker = makers.get(model.graph.output[0].name)
    while maker is not None and maker.op_type == "Identity":
        maker = makers.get(maker.input[0])
    if maker is None or maker.op_type != "DequantizeLinear":
        return 0.0
    (scale,) = (t for t in model.graph.initializer if t.name == maker.input[1])
    return float(numpy_helper.to_array(scale))


def counted(found: np.ndarray, model: onnx.ModelProto) -> np.ndarray:
    """In steps of the output."""
    return np.rint(found / output_step(model)).astype(int)


def families(artifact: flexcomp.Artifact) -> set[str]:
    return {layer.implementation.partition(" ")[0] for layer in artifact.program.layers}


# Each target with both formats and both kinds of scales, each format with both kinds.
@pytest.mark.parametrize(
    ("target", "way"),
    [
        (target, WAYS[number])
        for target, numbers in {"native": (0, 3), AVX2: (1, 2), WITHOUT_DOTS: (0, 3)}.items()
        for number in numbers
    ],
    ids=str,
)
def test_outputs_are_those_of_onnx_runtime(way, target):
    """In integer arithmetic, where this processor has it, and in float32."""
    model, has_dots = quantised(way), resolve_target(target).vector_unit.dots != ""
    artifact = flexcomp.build(model, target=target, threads=1, kernels="fastest", budget="0.9", progress=False)
    assert {"depthwise", "integer" if has_dots else "winograd"} <= families(artifact)
    for budget in ("min", "0.9", "1.0"):
        with artifact.session(budget=budget) as session:
            for seed in (5, 6):
                want = wanted(model, image(seed))
                np.testing.assert_array_equal(counted(session(image(seed)["x"]), model), counted(want, model))


@pytest.mark.parametrize("way", WAYS[1::2], ids=str)
def test_between_layers_nothing_is_converted(way, tmp_path):
    """Weights have 8 bits in the file; besides layers there are the input's rounding, the pool, the average, the joined parts."""
    artifact = flexcomp.build(quantised(way), threads=1, kernels="smallest", budget="1.0", progress=False)
    artifact.export_library(tmp_path / "network.so")
    assert set(stored(tmp_path / "network.weights").values()) == {"I8"}
    whole = [layer for layer in artifact.program.layers if "[" not in layer.name]
    assert [layer.op for layer in whole if layer.implementation == "generic"] == GENERIC


def test_budgets_are_as_small_as_in_float32():
    """But for a page: layers of integers are computed in bands, with scratch for the rows of a band."""
    found = {}
    for target in ("llvm -mcpu=znver4", "llvm -mcpu=znver4 -mattr=-avx512vnni"):
        program = planned(quantised(WAYS[-1]), target, "min", threads=1, kernels="smallest")
        banded = {layer.implementation.split()[0] for layer in program.layers if "[" in layer.name}
        found[target] = program.rungs[0].budget, banded
    (with_dots, banded), (without, _) = found.values()
    assert "integer" in banded
    assert with_dots <= without + 4096


@needs_emulator
@pytest.mark.parametrize("kernels", ["smallest", "fastest"])
def test_on_arm(kernels, tmp_path):
    model = quantised(WAYS[-1])
    artifact = flexcomp.build(model, target="raspberry-pi-5", budget="0.7", kernels=kernels, progress=False)
    assert "integer" in families(artifact)
    artifact.export_library(tmp_path / "network.so")
    np.save(tmp_path / "x.npy", image(5)["x"])
    want = wanted(model, image(5))
    for budget in ("min", "1.0"):
        out = tmp_path / budget
        runner.run(
            tmp_path / "network.so", budget=budget, inputs={"x": tmp_path / "x.npy"}, output_dir=out, emulator=emulated()
        )
        found = np.load(runner.output_file(out, model.graph.output[0].name))
        assert np.abs(counted(found, model) - counted(want, model)).max() <= 1
