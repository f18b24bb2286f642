"""What `build` promises besides right answers: errors that help, the same bytes every time, the budget asked for."""

import subprocess
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import Request
from flexcomp.compiler.rungs import _once
from flexcomp.device.target import resolve_target
from flexcomp.plan import Storage
from flexcomp.program.prediction import from_program
from flexcomp.runtime.budget import Budget
from flexcomp.schedules.generic import schedule as generic
from tests.operators.networks import model, node

from .small import network


@pytest.fixture(scope="module")
def artifact():
    return flexcomp.build(network())


def test_the_asked_budget_is_a_rung():
    artifact = flexcomp.build(network(), budget="360kB")
    rungs = [rung.budget // 4096 for rung in artifact.program.rungs]  # one of the same page has the same plan
    assert 360_000 // 4096 in rungs
    assert all(rung.arena <= rung.budget for rung in artifact.program.rungs)


def test_more_memory_than_everything_adds_no_rung(artifact):
    ladder = [rung.budget for rung in artifact.program.rungs]
    assert [rung.budget for rung in flexcomp.build(network(), budget="1GB").program.rungs] == ladder


def test_a_plan_appears_once(artifact):
    """Where more memory than the rung below has is of no use, there is no rung."""
    rungs = artifact.program.rungs
    assert all(replace(one, budget=other.budget) != other for one, other in pairwise(rungs))
    twice = (rungs[0], replace(rungs[0], budget=rungs[0].budget + 4096), *rungs[1:])
    assert _once(twice) == rungs


def test_a_library_does_not_hold_what_llvm_says_of_lines(artifact, tmp_path):
    artifact.export_library(tmp_path / "tiny.so")
    command = ["readelf", "--section-headers", "--wide", tmp_path / "tiny.so"]
    sections = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ".dynsym" in sections and ".debug" not in sections


def test_a_budget_below_the_minimum_says_what_sets_it(artifact):
    smallest = artifact.program.rungs[0].budget
    with pytest.raises(flexcomp.BudgetError) as caught:
        flexcomp.build(network(), budget=smallest - 1)
    text = str(caught.value)
    assert text.startswith(f"a budget of {smallest - 1:,} B is too small: the smallest feasible budget is {smallest:,} B, ")
    assert text.count(f"{smallest:,}") == 1
    assert "set by layer " in text and "activations" in text and "weights" in text


@pytest.mark.parametrize("name, unsupported", [
    ("Bernoulli", model([node("Bernoulli", "x")], {"x": (12,)}, ["y"])),
    ("Unique", model([node("Unique", "x")], {"x": (12,)}, ["y"])),
    ("NonZero", model([node("NonZero", "x")], {"x": (3, 4)}, ["y"], types={"y": TensorProto.INT64})),
])  # fmt: skip
def test_an_operator_that_cannot_be_compiled_is_named(name, unsupported):
    with pytest.raises(flexcomp.UnsupportedModelError, match=f"(?i){name}"):
        flexcomp.build(unsupported)


def test_an_operator_without_a_kernel_is_named_with_its_node(monkeypatch):
    def refuse(func, target):
        raise generic.UnsupportedKernelError("calls a library")

    monkeypatch.setattr(generic, "schedule", refuse)
    with pytest.raises(flexcomp.UnsupportedModelError) as caught:
        flexcomp.build(model([node("Cos", "x", out="c"), node("Softmax", "c")], {"x": (3, 4)}, ["y"]))
    assert str(caught.value).startswith("node 'c' (Cos): operator tir_cos: calls a library: replace it")
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"^node 'y' \(Cos\): operator tir_cos: calls a library"):
        flexcomp.build(model([node("Cos", "x")], {"x": (3, 4)}, ["y"]))


def test_a_kernel_that_would_compile_for_minutes_is_named(monkeypatch):
    monkeypatch.setattr("flexcomp.compiler.code.MOST_STATEMENTS", 3)
    g = Graph("net", 0)
    x = g.relu(g.conv(g.input("x", (1, 3, 8, 8)), 16, 3))
    with pytest.raises(flexcomp.UnsupportedModelError, match=r"^layer .*conv.*: its kernel has \d+ statements, and more than 3 "):
        flexcomp.build(g.model(x, (1, 16, 8, 8)), threads=1)


def test_two_builds_give_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        flexcomp.build(network(), budget=0.5, cache=False).export_library(tmp_path / name / "tiny.so")
    for suffix in (".so", ".weights"):
        first, second = ((tmp_path / name / "tiny").with_suffix(suffix).read_bytes() for name in ("first", "second"))
        assert first == second, suffix


def test_symbols_name_the_code_of_the_kernels():
    """The same model built by another flexcomp, whose kernels differ and nothing else, shares no symbols."""
    prepared = prepare(network())
    graph = prepared.planning.network
    kernels = {name: func.with_attr("version", 2) for name, func in graph.kernels.items()}
    other = replace(prepared, planning=replace(prepared.planning, network=replace(graph, kernels=kernels)))
    here, there = (one.artifacts([Request(Budget())])[0].program.layers for one in (prepared, other))
    # Bands have kernels of their own, which are made when they are needed.
    ours, theirs = ({layer.kernel for layer in layers if not layer.band_of} for layers in (here, there))
    assert ours.isdisjoint(theirs)


def test_artifacts_of_one_network_share_kernels_and_weights(tmp_path):
    slow = Storage(1e6, 1e-3)
    *planned, resident = prepare(network()).artifacts(
        [Request(Budget()), Request(Budget(), "on_demand", slow)], yardstick=True
    )
    digest = planned[0].write_weights(tmp_path / "all.weights")
    (shape,) = (port.type.shape for port in planned[0].program.inputs)
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    found = []
    for number, artifact in enumerate((*planned, resident)):
        library = tmp_path / f"{number}.so"
        artifact.write_library(library, digest)
        for rung in artifact.program.rungs:
            with flexcomp.load(library, rung.budget, weights=tmp_path / "all.weights") as session:
                found.append(session(x))
    for outputs in found[1:]:
        np.testing.assert_allclose(outputs, found[0], rtol=1e-4, atol=1e-4 * np.abs(found[0]).max())
    assert replace(from_program(planned[1].program).storage, core_contention=0.0) == slow
    assert not any(rung.tapes.repeated for rung in resident.program.rungs)
    used = {rung.order for artifact in planned for rung in artifact.program.rungs}
    assert {rung.order for rung in resident.program.rungs} == used


def test_a_relax_module_with_constants_is_not_changed(tmp_path):
    rng = np.random.default_rng(0)
    w, b = (relax.const(rng.standard_normal(s).astype("f4")) for s in ((24, 8), (8,)))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((5, 24), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, w)), b))))
        builder.emit_func_output(y)
    mod = builder.get()
    text = mod.script(show_meta=True)
    flexcomp.build(mod).export_library(tmp_path / "dense.so")
    assert mod.script(show_meta=True) == text
    given = rng.standard_normal((5, 24)).astype("f4")
    with flexcomp.load(tmp_path / "dense.so") as session:
        found = session(given)
    expected = np.maximum(given @ w.value.numpy() + b.value.numpy(), 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_progress_covers_every_phase(tmp_path):
    seen = []

    def progress(phase, done, total):
        seen.append((phase, done, total))

    flexcomp.build(network(), progress=progress).export_library(tmp_path / "network.so", progress=progress)
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["import", "passes", "plan", "compile", "writing"]
    last = {phase: (done, total) for phase, done, total in seen}
    assert all(done == total for done, total in last.values())


def test_instruments_see_every_pass():
    """Dumps and timings are TVM instruments; they work because the phases are ordinary TVM passes."""
    timing = tvm.ir.instrument.PassTimingInstrument()
    with tvm.transform.PassContext(instruments=[timing]):
        flexcomp.build(network())
        report = timing.render()
    for name in ("FuseLayers", "ChooseKernels", "SliceLayers", "PretransformWeights", "LowerOperators", "ToNHWC"):
        assert name in report


def test_what_cannot_be_linked_leaves_nothing(artifact, tmp_path, monkeypatch):
    with pytest.raises(flexcomp.InputError, match=r"NAME\.so, or NAME\.o for a program in C, not tiny\.weights"):
        artifact.export_library(tmp_path / "tiny.weights")
    elsewhere = replace(artifact, target=resolve_target("llvm -mtriple=riscv64-linux-gnu"))
    with pytest.raises(flexcomp.TargetError, match=r"riscv64-linux-gnu-g\+\+ is missing"):
        elsewhere.export_library(tmp_path / "tiny.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(flexcomp.TargetError, match="no-such-compiler is missing"):
        artifact.export_library(tmp_path / "tiny.so")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(flexcomp.TargetError, match=r"cannot link tiny\.so"):
        artifact.export_library(tmp_path / "tiny.so")
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_refused_before_the_work_begins():
    for options, message in (
        ({"strategy": "luck"}, "strategy='luck' is not known: it is one of best"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
    ):
        with pytest.raises(flexcomp.InputError, match=message):
            flexcomp.build("no file", **options)


def test_an_empty_constant_output_is_given(tmp_path):
    built = flexcomp.build(model([node("Relu", "x")], {"x": (4,)}, ["y", "w"], {"w": np.zeros((0, 4), "f4")}))
    built.export_library(tmp_path / "empty.so")
    with flexcomp.load(tmp_path / "empty.so") as session:
        outputs = session.run({"x": np.array([-1, 0, 1, 2], "f4")})
    assert outputs["y"].tolist() == [0, 0, 1, 2] and outputs["w"].shape == (0, 4)


@pytest.mark.parametrize("place, large", [
    ("input 'x'", model([node("Relu", "x")], {"x": (1, 512, 2100, 2100)}, ["y"])),
    (r"node 'y' \(Mul\)", model([node("Mul", "x", "z")], {"x": (50000, 1), "z": (1, 50000)}, ["y"])),
    (r"node 'y' \(Conv\)",
     model([node("Conv", "x", "w")], {"x": (1, 8, 2100, 2100)}, ["y"], {"w": np.ones((512, 8, 3, 3), "f4")})),
])  # fmt: skip
def test_a_tensor_too_large_for_32_bit_indices_is_refused(place, large):
    with pytest.raises(flexcomp.UnsupportedModelError, match=rf"{place} has a tensor of .* = 2,\d+,\d+,\d+ elements"):
        flexcomp.build(large)


def test_a_relax_module_that_sorts_and_sums(tmp_path):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 40), "float32"))
    calls = [
        relax.op.sort(x, 0), relax.op.argsort(x, 1, descending=True, dtype="int32"),
        relax.op.topk(x, 3, 1, "indices", False, "int32"), relax.op.cumsum(x), relax.op.cumsum(x, 1, "float64"),
    ]  # fmt: skip
    with builder.function("main", [x]):
        with builder.dataflow():
            outputs = [builder.emit_output(builder.emit(call)) for call in calls]
        builder.emit_func_output(outputs)
    flexcomp.build(builder.get()).export_library(tmp_path / "sorts.so")
    given = np.random.default_rng(0).standard_normal((6, 40)).astype("f4")
    with flexcomp.load(tmp_path / "sorts.so") as session:
        found = list(session.run({"x": given}).values())
    np.testing.assert_array_equal(found[0], np.sort(given, 0))
    np.testing.assert_array_equal(found[1], np.argsort(-given, 1))
    np.testing.assert_array_equal(found[2], np.argsort(given, 1)[:, :3])
    np.testing.assert_allclose(found[3], np.cumsum(given), atol=1e-4)
    np.testing.assert_allclose(found[4], np.cumsum(given.astype("f8"), 1))


def test_sessions_without_weights_close_at_once(tmp_path):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.sort(x, 0))
        builder.emit_func_output(y)
    flexcomp.build(builder.get()).export_library(tmp_path / "sort.so")
    given = np.arange(64, dtype="f4").reshape(8, 8)
    for _ in range(200):  # the loader thread may not have woken up before there is nothing left to do
        with flexcomp.load(tmp_path / "sort.so") as session:
            session.run({"x": given})
