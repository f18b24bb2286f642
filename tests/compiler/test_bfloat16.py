"""Networks computed in bfloat16, on processors with AVX512_BF16, and on emulated ones of AArch64: right, smaller, and refused
where that is not built.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.compiler import builder, machine_code
from flexcomp.compiler.lowering import compiled_here, lowered_here
from flexcomp.compiler.weight_types import WeightTypes
from flexcomp.compiler.weights import evaluate
from flexcomp.device import resolve_target, with_arithmetic
from flexcomp.errors import CompilerError, InputError
from flexcomp.frontend import load_model
from flexcomp.runtime import runner
from tests.compiler.emulator import emulated, needs_emulator
from tests.compiler.test_half import SHAPE, block, bytes_of, pictures
from tests.uncompiled import planned

HERE = resolve_target("native")
OPTIONS = dict(kernels="smallest", threads=1)
NETWORKS = {"pictures": (pictures, SHAPE), "block": (block, (1, 20, 48))}
needs_bfloat16 = pytest.mark.skipif("avx512_bf16" not in HERE.features, reason="needs AVX512_BF16")


def rounded(model: onnx.ModelProto) -> flexcomp.Artifact:
    """The network in float32, with weights and activations rounded to bfloat16."""
    imported = load_model(model)
    types = WeightTypes(None, partial(evaluate, weights=imported.weights), values_only=True, usual="bfloat16")
    return compiled_here("rounded", False, lowered_here(imported, types, rounded_for=with_arithmetic(HERE, "bfloat16")))


@needs_bfloat16
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_against_onnxruntime(name, tmp_path):
    make, shape = NETWORKS[name]
    model = make()
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    errors = {}
    for kind, artifact in (
        ("computed", flexcomp.build(model, arithmetic="bfloat16", **OPTIONS)), ("rounded", rounded(model)),
    ):  # fmt: skip
        artifact.export_library(tmp_path / f"{kind}.so")
        for budget in ("min", "all"):
            with flexcomp.load(tmp_path / f"{kind}.so", budget=budget) as session:
                (found,) = session.run({"x": x}).values()
            assert found.dtype == np.float32
            errors[kind, budget] = abs(found - expected).max() / abs(expected).max()
    assert errors["computed", "min"] == errors["computed", "all"]
    assert 1e-4 < errors["computed", "all"] < 3 * errors["rounded", "all"]
    assert errors["computed", "all"] < 3e-2


@needs_emulator
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_on_aarch64(name, tmp_path):
    make, shape = NETWORKS[name]
    model = make()
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    np.save(tmp_path / "x.npy", x)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    artifact = flexcomp.build(model, "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1", arithmetic="bfloat16", **OPTIONS)
    assert "bf16" in artifact.program.features
    artifact.export_library(tmp_path / "here.so")
    runner.run(tmp_path / "here.so", inputs={"x": tmp_path / "x.npy"}, output_dir=tmp_path, emulator=emulated("-cpu", "max"))
    found = np.load(runner.output_file(tmp_path, model.graph.output[0].name))
    assert 1e-4 < abs(found - expected).max() / abs(expected).max() < 3e-2


def test_all_layers_compute_in_it():
    """Of another processor's code, too, which no build runs."""
    program = flexcomp.build(pictures(), "llvm -mcpu=znver4 -opt-level=0", arithmetic="bfloat16", **OPTIONS).program
    layers = [layer for layer in program.layers if layer.op in ("conv2d", "matmul")]
    assert len(layers) >= 10 and all(layer.description.endswith("computed in bfloat16") for layer in layers)
    assert {layer.implementation.split()[0] for layer in layers} == {"direct", "depthwise", "grouped", "gemv"}
    pools = [layer.description for layer in program.layers if "_pool " in layer.description]
    assert len(pools) == 2 and all(pool.endswith(", bfloat16") for pool in pools)
    assert "avx512_bf16" in program.features
    assert [port.type.dtype for port in (*program.inputs, *program.outputs)] == ["float32"] * 2


def test_the_smallest_budget_falls_with_the_activations():
    g = Graph("wide", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 8, 28, 28)), 128, 1))
    x = g.op("Transpose", g.op("Sigmoid", x), perm=[0, 1, 3, 2])  # not in bands
    model = g.model(g.conv(g.relu(g.conv(x, 128, 1)), 8, 1), (1, 8, 28, 28))
    wide, half = (
        planned(model, "llvm -mcpu=znver4", arithmetic=kind, **OPTIONS) for kind in ("float32", "bfloat16")
    )
    assert bytes_of(half) <= 0.55 * bytes_of(wide)


def test_auto_takes_the_type_of_the_target():
    g = Graph("two", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 8, 12, 12)), 16, 3))
    model = g.model(g.conv(x, 8, 1), (1, 8, 12, 12))
    options = dict(OPTIONS, arithmetic="auto")
    for most, computed in ((0.05, True), (1e-5, False)):
        program = planned(model, "llvm -mcpu=znver4", max_error=most, **options)
        layers = [layer.description for layer in program.layers if layer.op == "conv2d"]
        assert {text.endswith("computed in bfloat16") for text in layers} == {computed}


@pytest.mark.parametrize(
    ("target", "options", "error"),
    [
        ("llvm -mcpu=znver3", {}, r"needs AVX512_BF16 \(\+avx512bf16\), which the target lacks .*znver3.* leave arithmetic"),
        ("raspberry-pi-5", {}, r"needs BF16 \(\+bf16\), which the target lacks .*cortex-a76.* such as -mcpu=cortex-x2"),
        ("llvm -mtriple=riscv64-linux-gnu", {}, "arithmetic='bfloat16' is for x86-64 and AArch64, and riscv64 computes"),
        ("h200", {}, "arithmetic='bfloat16' is for x86-64 and AArch64, and a GPU computes"),
        ("llvm -mcpu=znver4", {"weights": "float16"}, "multiplies weights of bfloat16, not 'float16'"),
    ],
)
def test_what_is_not_built_is_refused(target, options, error):
    with pytest.raises(InputError, match=error):
        flexcomp.build(pictures(), target, arithmetic="bfloat16", **options)


def test_a_processor_that_lacks_an_instruction_does_not_end_the_build(monkeypatch):
    """LLVM ends the process in which it finds that out."""
    monkeypatch.setattr(machine_code, "_BFLOAT16", "avx512f")
    g = Graph("one", seed=1)
    model = g.model(g.conv(g.input("x", (1, 16, 4, 4)), 16, 1), (1, 16, 4, 4))
    lacking = replace(resolve_target("llvm -mcpu=skylake-avx512"), half="bfloat16")
    monkeypatch.setattr(builder, "with_arithmetic", lambda *_: lacking)
    with pytest.raises(CompilerError, match=r"LLVM ended a process .*: LLVM ERROR: .* name another -mcpu"):
        flexcomp.build(model, "llvm -mcpu=skylake-avx512", arithmetic="bfloat16", cache=False, **OPTIONS)
