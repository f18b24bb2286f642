"""Every kernel family as real aarch64 code: one network that uses them all, under an emulator, at three budgets."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.runtime import runner
from tests.decoding import Sizes, gpt2_decoder

from ..operators.blocks import rounded_product, several
from ..operators.recurrent import Case, together
from .emulator import emulated, needs_emulator

pytestmark = needs_emulator
# Computes what kernels for aarch64 are compared with, and compiles fast.
HERE = "llvm -opt-level=0 -mcpu=x86-64-v3" if platform.machine() == "x86_64" else "llvm -opt-level=0"


def families() -> onnx.ModelProto:
    """A stem, 3×3 with and without stride, 1×1 with channels that fill no block, depthwise, attention, products, a vector."""
    g = Graph("families", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 50, 50)), 24, 7, 2))
    x = g.relu(g.conv(x, 44, 1))
    for kernel, stride in ((3, 1), (5, 1), (3, 2), (5, 2)):
        x = g.relu(g.conv(x, 44, kernel, stride, groups=44))
    x = g.relu(g.conv(x, 44, 3, groups=22))
    x = g.relu(g.conv(x, 96, 3))
    x = g.op("Add", g.conv(x, 96, 3), x)
    x = g.relu(g.conv(x, 50, 3, 2))
    rows = g.op("Transpose", g.reshape(x, 1, 50, 16), perm=[0, 2, 1], channels=50)
    query, key, value = (g.linear(rows, 50) for _ in range(3))
    scores = g.op("Softmax", g.op("MatMul", query, g.op("Transpose", key, perm=[0, 2, 1])), axis=-1)
    mixed = g.op("MatMul", scores, value, channels=50)
    mixed = g.op("MatMul", mixed, g.op("MatMul", g.op("Transpose", value, perm=[0, 2, 1]), key), channels=50)
    return g.model(g.dense(g.op("Flatten", mixed, axis=1, channels=16 * 50), 70), (1, 70))


@pytest.fixture(scope="module", params=["smallest", "fastest"])
def built(request, tmp_path_factory) -> tuple[Path, set[str]]:
    """A library, and the kernel families that it lacks."""
    folder = tmp_path_factory.mktemp(request.param)
    artifact = flexcomp.build(families(), target="raspberry-pi-5", budget="0.6", kernels=request.param)
    artifact.export_library(folder / "families.so")
    wanted = {"direct", "depthwise", "grouped", "gemv", "attention", "matmul"}
    wanted |= {"winograd"} if request.param == "fastest" else set()
    return folder / "families.so", wanted - {layer.implementation.partition(" ")[0] for layer in artifact.program.layers}


def test_kernels_against_onnxruntime(built, tmp_path):
    library, missing = built
    assert not missing
    model = families()
    x = np.random.default_rng(0).standard_normal((1, 3, 50, 50)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for budget in ("min", "0.6", "1.0"):
        out = tmp_path / budget
        report = runner.run(
            library, budget=budget, inputs={"x": tmp_path / "x.npy"}, output_dir=out, emulator=emulated()
        )
        assert report["arena_bytes"] <= report["budget_bytes"]
        found = np.load(runner.output_file(out, model.graph.output[0].name))
        np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())


@functools.cache
def rounded() -> tuple[onnx.ModelProto, dict[str, str], np.ndarray, np.ndarray]:
    """The network, a type for each of its weights, an input, and the output on this machine."""
    model = families()
    nodes = [node.output[0] for node in model.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    with_weights = [node for node in nodes if node in _kept_nodes(model)]
    types = {node: ("int8", "float16", "bfloat16")[i % 3] for i, node in enumerate(with_weights)}
    x = np.random.default_rng(0).standard_normal((1, 3, 50, 50)).astype("f4")
    return model, types, x, flexcomp.build(model, HERE, threads=1, kernels="smallest", weights=types).session()(x)


@pytest.mark.parametrize("kernels", ["smallest", "fastest"])
def test_weights_of_16_and_8_bits(kernels, tmp_path):
    """Every family with every type in turn, widened in registers and in scratch, against the same weights on this machine."""
    model, types, x, expected = rounded()
    np.save(tmp_path / "x.npy", x)
    artifact = flexcomp.build(model, target="raspberry-pi-5", budget="0.6", kernels=kernels, weights=types)
    artifact.export_library(tmp_path / "narrow.so")
    widened = [layer for layer in artifact.program.layers if layer.implementation.startswith("direct widened")]
    assert bool(widened) == (kernels == "fastest")
    report = runner.run(
        tmp_path / "narrow.so", budget="0.6", inputs={"x": tmp_path / "x.npy"}, output_dir=tmp_path, emulator=emulated()
    )
    assert report["arena_bytes"] <= report["budget_bytes"]
    found = np.load(runner.output_file(tmp_path, model.graph.output[0].name))
    np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())


def test_sums_of_integers(tmp_path):
    """ConvInteger and MatMulInteger by dot products: padding, strides, columns that are joined, blocks that overlap."""
    rng, info, node = np.random.default_rng(0), helper.make_tensor_value_info, helper.make_node
    x, row = rng.integers(0, 256, (1, 13, 9, 11)).astype(np.uint8), rng.integers(0, 256, (5, 70)).astype(np.uint8)
    kernels = {
        "pointwise": ((20, 13, 1, 1), {}), "strided": ((9, 13, 1, 1), {"strides": [2, 3]}),
        "padded": ((24, 13, 3, 3), {"pads": [1, 2, 0, 1]}), "dilated": ((12, 13, 2, 3), {"dilations": [2, 2], "strides": [1, 2]}),
    }  # fmt: skip
    weights = {name: rng.integers(-128, 128, shape).astype(np.int8) for name, (shape, _) in kernels.items()}
    weights["matrix"] = rng.integers(-128, 128, (70, 33)).astype(np.int8)
    nodes = [node("ConvInteger", ["x", name, "zero"], [f"{name}_y"], **kernels[name][1]) for name in kernels]
    nodes.append(node("MatMulInteger", ["row", "matrix"], ["matrix_y"]))
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in {**weights, "zero": np.uint8(117)}.items()]
    made = [info(one.output[0], TensorProto.INT32, None) for one in nodes]
    given = [info("x", TensorProto.UINT8, x.shape), info("row", TensorProto.UINT8, row.shape)]
    model = helper.make_model(
        helper.make_graph(nodes, "integers", given, made, constants), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    artifact = flexcomp.build(model, target="raspberry-pi-5", progress=False)
    assert [layer.implementation.split()[0] for layer in artifact.program.layers].count("integer") >= len(nodes)
    artifact.export_library(tmp_path / "integers.so")
    for name, value in (("x", x), ("row", row)):
        np.save(tmp_path / f"{name}.npy", value)
    files = {name: tmp_path / f"{name}.npy" for name in ("x", "row")}
    runner.run(tmp_path / "integers.so", inputs=files, output_dir=tmp_path, emulator=emulated())
    wanted = ReferenceEvaluator(model).run(None, {"x": x, "row": row})
    for one, want in zip(nodes, wanted, strict=True):
        np.testing.assert_array_equal(np.load(runner.output_file(tmp_path, one.output[0])), want, err_msg=one.output[0])


@pytest.mark.parametrize(("target", "cpu"), [("raspberry-pi-5", "max"), ("raspberry-pi-4b", "cortex-a72")])
def test_weights_in_blocks(target, cpu, tmp_path):
    """One row, few and many, of 4 and 8 bits, and rows of a table, at two budgets."""
    layers = ((1, (50, 80), 32, 4, True), (5, (48, 64), 16, 8, True), (40, (48, 150), 64, 4, False))
    model, inputs = several(layers)
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
    artifact = flexcomp.build(model, target=target, kernels="fastest", progress=False)
    kernels = {layer.implementation.rpartition(" ")[0] or layer.implementation for layer in artifact.program.layers}
    assert {"blockgemv", "blockgemm", "blockgemm widened", "rows"} <= kernels
    artifact.export_library(tmp_path / "blocks.so")
    files = {name: tmp_path / f"{name}.npy" for name in inputs}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    for budget in ("min", "1.0"):
        out = tmp_path / budget
        runner.run(tmp_path / "blocks.so", budget=budget, inputs=files, output_dir=out, emulator=emulated("-cpu", cpu))
        for made, want in zip(model.graph.output, wanted, strict=True):
            found = np.load(runner.output_file(out, made.name))
            np.testing.assert_allclose(found, want, rtol=0, atol=1.5e-6 * abs(want).max())


@pytest.mark.parametrize("target", ["raspberry-pi-5", "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -mattr=+i8mm"])
def test_products_of_bytes(target, tmp_path):
    """Activations in 8 bits: one row, few and many, at two budgets."""
    layers = ((1, (50, 80), 32, 4, True), (5, (48, 64), 16, 8, True), (40, (48, 150), 64, 4, False), (1, (24, 96), 32, 8, False))
    model, inputs = several(layers)
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
    artifact = flexcomp.build(model, target=target, kernels="fastest", arithmetic="int8", progress=False)
    assert {"bytegemv", "bytegemm"} <= {layer.implementation.split()[0] for layer in artifact.program.layers}
    artifact.export_library(tmp_path / "bytes.so")
    files = {name: tmp_path / f"{name}.npy" for name in inputs}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for budget in ("min", "1.0"):
        out = tmp_path / budget
        runner.run(tmp_path / "bytes.so", budget=budget, inputs=files, output_dir=out, emulator=emulated("-cpu", "max"))
        for number, (_, sizes, block, bits, _) in enumerate(layers):
            found = np.load(runner.output_file(out, f"y{number}"))
            want = rounded_product(inputs[f"x{number}"], constants, f"y{number}", sizes, block, bits)
            np.testing.assert_allclose(found, want, rtol=0, atol=4e-7 * abs(want).max())


def _kept_nodes(model: onnx.ModelProto) -> set[str]:
    """Nodes that read a weight."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return {node.output[0] for node in model.graph.node if weights & set(node.input)}


def test_a_core_without_the_features_is_told_which(built):
    """Built for an A76, which has dot products and half precision; run on an A72, which has neither."""
    with pytest.raises(flexcomp.ArtifactError, match=r"asimddp"):
        runner.run(built[0], emulator=emulated("-cpu", "cortex-a72"))


def test_the_loops_multiply_by_lane(built):
    disassembler = shutil.which("aarch64-linux-gnu-objdump")
    text = subprocess.run([disassembler, "-d", built[0]], capture_output=True, text=True, check=True).stdout
    lanes = sum("fmla" in line and ".s[" in line for line in text.splitlines())
    assert lanes > 500


def test_decoding(tmp_path):
    """State that stays, rows exchanged with caches, attention to those that are valid, and rows of a table: five times the same
    token at the same place, of which the last gives what ONNX Runtime does when it is given what the others left."""
    sizes = Sizes(layers=1, width=64, heads=2, vocabulary=5000)
    model = gpt2_decoder(1, 12, sizes)
    given = {"ids": np.int64([[4321]]), "at": np.int64([0])}
    for name, value in given.items():
        np.save(tmp_path / f"{name}.npy", value)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(["logits"], given | sizes.caches(12))[0]
    artifact = flexcomp.build(model, target="raspberry-pi-5", state=sizes.state)
    kinds = {layer.implementation for layer in artifact.program.layers}
    assert {"exchange", "rows", "embedding"} <= kinds
    artifact.export_library(tmp_path / "decoder.so")
    files = {name: tmp_path / f"{name}.npy" for name in given}
    for budget in ("min", "all"):
        out = tmp_path / budget
        runner.run(tmp_path / "decoder.so", budget=budget, inputs=files, output_dir=out, repeat=5, emulator=emulated())
        np.testing.assert_allclose(np.load(out / "logits.npy"), wanted, atol=2e-5 * abs(wanted).max())


def test_states_that_are_copied_and_rings_that_come_round(tmp_path):
    """A counter says where rows are written to: one inference more each time, beyond the end of a ring."""
    ring, row = (1, 1, 4, 8), (1, 1, 1, 8)
    node, info, f4, i8 = helper.make_node, helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    nodes = [
        node("Cast", ["n"], ["nf"], to=f4), node("Add", ["x", "nf"], ["new"]), node("Add", ["n", "one"], ["m"]),
        node("TensorScatter", ["c", "new", "n"], ["d"], mode="circular"), node("Mul", ["d", "two"], ["y"]),
    ]  # fmt: skip
    constants = [numpy_helper.from_array(np.int64([1]), "one"), numpy_helper.from_array(np.float32([2]), "two")]
    given = [info("x", f4, row), info("n", i8, (1,)), info("c", f4, ring)]
    made = [info("y", f4, ring), info("m", i8, (1,)), info("d", f4, ring)]
    graph = helper.make_graph(nodes, "ring", given, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    flexcomp.build(model, target="raspberry-pi-5", state={"m": "n", "d": "c"}).export_library(tmp_path / "ring.so")
    np.save(tmp_path / "x.npy", np.full(row, 100, "f4"))
    files = {"x": tmp_path / "x.npy"}
    runner.run(tmp_path / "ring.so", inputs=files, output_dir=tmp_path, repeat=5, warmup=1, emulator=emulated())
    assert np.load(tmp_path / "y.npy")[0, 0, :, 3].tolist() == [208, 210, 204, 206]


@pytest.mark.parametrize("weights", [None, "int8"])
def test_recurrences(weights, tmp_path):
    """All cells, with rows of a batch and without, streamed and resident; narrow ones as on this machine."""
    layers = [
        Case("LSTM", 3, 1, 6, 33, ("B", "P", "initial_c"), ("Y", "Y_c"), {"direction": "bidirectional"}),
        Case("GRU", 2, 5, 4, 20, ("B", "sequence_lens"), ("Y",)),
        Case("GRU", 2, 1, 4, 70, ("B",), ("Y_h",), {"linear_before_reset": 1}),
        Case("RNN", 2, 3, 4, 17, ("initial_h",), ("Y",), {"activations": ["Softplus"], "direction": "reverse"}),
    ]
    model, inputs = together(layers)
    artifact = flexcomp.build(model, target="raspberry-pi-5", weights=weights)
    artifact.export_library(tmp_path / "recurrent.so")
    assert sum(layer.implementation.startswith("recurrent") for layer in artifact.program.layers) == 5
    for name, value in inputs.items():
        np.save(tmp_path / f"{name}.npy", value)
    if weights is None:
        expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    else:
        here = flexcomp.build(model, HERE, threads=1, weights=weights, kernels="smallest")
        expected = list(here.session().run(inputs).values())
    for budget in ("min", "all"):
        given = {name: tmp_path / f"{name}.npy" for name in inputs}
        runner.run(tmp_path / "recurrent.so", budget=budget, inputs=given, output_dir=tmp_path / budget, emulator=emulated())
        for port, wanted in zip(model.graph.output, expected, strict=True):
            found = np.load(runner.output_file(tmp_path / budget, port.name))
            np.testing.assert_allclose(found, wanted, atol=1e-5 * max(abs(wanted).max(), 1e-3))
