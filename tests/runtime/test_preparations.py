"""Weights that are stored once and prepared when they are loaded: right in every plan, refused where a plan is wrong."""

from __future__ import annotations

import json
import random
from ctypes import byref, c_void_p
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.program import Program
from flexcomp.program.program import ALIGN, PAGE, stored_blocks
from flexcomp.program.program_bytes import PROGRAM_KIND
from flexcomp.report.chrome_trace import trace_events
from flexcomp.report.facts import describe
from flexcomp.report.timeline import measured
from tests.api import bindings as api
from tests.by_hand import as_loads, by_hand, encode_program, loads_of
from tests.runtime import hooks
from tests.runtime.changed_programs import close, is_refused, opener

MUTATIONS = 2400
CHANGES = (
    "source", "nbytes", "target", "after", "pinned", "ahead",
    "layer", "first", "count", "at", "gone", "order", "weights", "record", "record", "kept",
)  # fmt: skip


def network() -> onnx.ModelProto:
    """Layers whose fast kernels take Winograd's weights, Strassen's, and panels of another width."""
    g = Graph("stored_once", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 16, 16)), 64, 3))
    for _ in range(2):
        x = g.relu(g.op("Add", g.conv(g.relu(g.conv(x, 128, 3)), 64, 3), x, channels=64))
    x = g.relu(g.conv(x, 256, 1))
    return g.model(g.op("GlobalAveragePool", g.conv(x, 256, 1)), (1, 256, 1, 1))


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(5).standard_normal((1, 3, 16, 16)).astype("f4")}


@pytest.fixture(scope="module")
def expected(inputs) -> np.ndarray:
    return onnxruntime.InferenceSession(network().SerializeToString()).run(None, inputs)[0]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    artifact = flexcomp.build(network(), target="llvm -mcpu=x86-64-v3", store="once", threads=1)
    path = tmp_path_factory.mktemp("once") / "once.so"
    digest = artifact.write_weights(path.with_suffix(".weights"))
    artifact.write_library(path, digest)
    return path, artifact, digest


def loads(program: Program):
    return [load for rung in program.rungs for load in loads_of(program, rung) if load.prepared]


def run(session, inputs) -> np.ndarray:
    return next(iter(session.run(inputs).values()))


def test_every_layer_is_stored_once(once):
    """The file has no more than one form of each weight, though layers with several kernels are computed."""
    _, artifact, _ = once
    raw = sum(initializer.ByteSize() for initializer in network().graph.initializer)
    assert artifact.program.weights_nbytes <= 1.03 * raw + 8 * PAGE
    prepared = [layer for layer in artifact.program.layers if layer.weights and layer.weights.preparation]
    assert {"winograd", "strassen"} <= {layer.implementation.split()[0] for layer in prepared}


def test_every_budget_is_right(once, inputs, expected):
    """Prepared weights stay, or are prepared in every inference."""
    path, artifact, _ = once
    assert {(load.pinned, load.kept) for load in loads(artifact.program)} == {(True, False), (False, True), (False, False)}
    for rung in artifact.program.rungs:
        with flexcomp.load(path, budget=rung.budget) as session:
            for _ in range(3):
                assert close(run(session, inputs), expected)


def test_bytes_that_stay_are_those_that_are_prepared(once):
    """Not those that were read for them: the session and the report on the file say the same of every rung."""
    path, artifact, _ = once
    asked = ("budget_bytes", "pinned_bytes", "streamed_bytes")
    reported = [tuple(rung[key] for key in asked) for rung in describe(artifact.program)["ladder"]]
    with flexcomp.load(path) as session:
        assert [tuple(rung[key] for key in asked) for rung in session.info["ladder"]] == reported
    # Bytes that are read make another number of the largest rung, where all stays.
    assert reported[-1][1] != sum(one.brought[1] for one in artifact.program.rungs[-1].tapes.filled)


def test_budgets_may_change_at_any_time(once, inputs, expected):
    path, artifact, _ = once
    budgets = [rung.budget for rung in artifact.program.rungs]
    with flexcomp.load(path) as session:
        for budget in random.Random(1).choices(budgets, k=60):
            session.set_budget(budget)
            assert close(run(session, inputs), expected)


def test_prepared_from_narrow_weights(inputs, tmp_path):
    """All rungs compute the same function, whether transforms were made of the rounded weights now or when it was built."""
    g = Graph("narrow", seed=3)
    x = g.input("x", (1, 3, 16, 16))
    for _ in range(3):
        x = g.relu(g.conv(x, 64, 3))
    model = g.model(g.op("GlobalAveragePool", g.conv(g.relu(g.conv(x, 256, 1)), 256, 1)), (1, 256, 1, 1))
    nodes = [node.output[0] for node in model.graph.node if node.op_type == "Conv"]
    weights = {node: ("float16", "int8")[at % 2] for at, node in enumerate(nodes)}
    results = []
    for store in ("once", "prepared"):
        artifact = flexcomp.build(model, target="llvm -mcpu=x86-64-v3", store=store, threads=1, weights=weights)
        assert bool(loads(artifact.program)) == (store == "once")
        if store == "once":
            made = [artifact.program.layers[load.prepared.layer] for load in loads(artifact.program)]
            forms = {(one.implementation.split()[0], one.weights.preparation.stored.dtype) for one in made}
            assert {("winograd", "float16"), ("winograd", "int8"), ("strassen", "float16")} <= forms
        artifact.export_library(tmp_path / f"{store}.so")
        for rung in (artifact.program.rungs[0], artifact.program.rungs[-1]):
            with flexcomp.load(tmp_path / f"{store}.so", budget=rung.budget) as session:
                results.append(run(session, inputs))
    assert all(close(result, results[-1]) for result in results)


def test_reads_that_fail_leave_the_next_inference_right(once, inputs, expected):
    path, artifact, _ = once
    rung = next(rung for rung in artifact.program.rungs if any(one.prepare for one in rung.tapes.repeated))
    with flexcomp.load(path, budget=rung.budget) as session:
        run(session, inputs)
        reads = session.stats()["reads"]
    assert reads >= len(loads_of(artifact.program, rung))
    for nth in range(1, reads + 1, 3):
        with hooks.load(path, budget=rung.budget, fail_read_at=nth) as session:
            failed = 0
            for _ in range(3):
                try:
                    assert close(run(session, inputs), expected)
                except flexcomp.StorageError:
                    failed += 1
            assert failed == 1
            assert close(run(session, inputs), expected)


def test_stored_blocks():
    """Of ranges of channels those that hold them; the last block ends with the last channel."""
    assert stored_blocks(96, 32, 48, 0, 1) == (0, 2)
    assert stored_blocks(96, 32, 48, 1, 1) == (1, 2)
    assert stored_blocks(100, 32, 48, 2, 1) == (1, 3)  # channels 52 to 99; of the stored, [32, 64), [64, 96) and [68, 100)
    assert stored_blocks(64, 16, 16, 2, 2) == (2, 2)


@pytest.fixture(scope="module")
def opened(once):
    """A program, what its weights are, and a way to open it when it was changed."""
    path, artifact, digest = once
    return as_loads(artifact.program), opener(path, digest)


def mutated(program: Program, rng: random.Random) -> Program:
    """One number of one load with something to prepare, or of a step or layer that it belongs to, is another."""
    at = rng.choice([i for i, rung in enumerate(program.rungs) if any(load.prepared for load in rung.loads)])
    rung = program.rungs[at]
    index = rng.choice([i for i, load in enumerate(rung.loads) if load.prepared])
    load = rung.loads[index]
    other = rng.choice(rung.loads)
    near = rng.choice([-1, 1]) * rng.choice([ALIGN, PAGE, 8 * PAGE])
    change = rng.choice(CHANGES)
    if change == "weights":
        step = rng.choice([i for i, step in enumerate(rung.steps) if step.layer == load.prepared.layer])
        moved = replace(rung.steps[step], weights_at=max(0, rung.steps[step].weights_at + near))
        return _with(program, at, steps=(*rung.steps[:step], moved, *rung.steps[step + 1 :]))
    if change == "record":
        layer = load.prepared.layer
        return _with(replace(program, layers=_changed(program.layers, layer, _other_record(program, layer, rng))), at)
    if change == "gone":
        return _with(program, at, loads=_changed(rung.loads, index, replace(load, prepared=None)))
    if change == "order" and index:
        swapped = list(rung.loads)
        swapped[index - 1 : index + 1] = swapped[index], swapped[index - 1]
        return _with(program, at, loads=tuple(swapped))
    values = {
        "source": max(0, load.source + rng.choice([-PAGE, PAGE])),
        "nbytes": max(PAGE, load.nbytes + rng.choice([-PAGE, PAGE])),
        "target": rng.choice([max(0, load.target + rng.choice([-PAGE, PAGE])), other.target]),
        "after": rng.randrange(len(rung.steps) + 1),
        "pinned": not load.pinned,
        "ahead": not load.ahead,
        "kept": not load.kept,
    }
    if change in values:
        return _with(program, at, loads=_changed(rung.loads, index, replace(load, **{change: values[change]})))
    prepared = load.prepared
    values = {
        "layer": rng.randrange(len(program.layers)),
        "first": max(0, prepared.first + rng.choice([-1, 1])),
        "count": max(1, prepared.count + rng.choice([-1, 1])),
        "at": max(0, prepared.at + near),
    }
    if change not in values:
        return _with(program, at)
    made = replace(prepared, **{change: values[change]})
    return _with(program, at, loads=_changed(rung.loads, index, replace(load, prepared=made)))


def _other_record(program, index, rng):
    """The layer with another way to prepare its weights, or a panel that is cut in another way."""
    layer = program.layers[index]
    made, panel = layer.weights.preparation, layer.panel.type
    blocks, *rows, block = made.stored.shape
    others = [one.weights.preparation for one in program.layers if one.weights and one.weights.preparation]
    made = rng.choice(
        [
            replace(made, kernel=rng.choice(others).kernel),
            rng.choice(others),
            replace(made, channels=made.channels + rng.choice([-16, -1, 1, 16])),
            replace(made, stored=replace(made.stored, shape=(2 * blocks, *rows, block // 2))),
            replace(made, stored=replace(made.stored, shape=(blocks, *rows[:-1], 2 * rows[-1], block // 2))),
            replace(made, stored=replace(made.stored, shape=(blocks, *rows, block, 1))),
            replace(made, stored=replace(made.stored, shape=(made.stored.nbytes // 4,))),
        ]
    )
    args = layer.args
    if rng.random() < 0.3:
        blocks, rows, block = panel.shape
        wide = replace(layer.panel, type=replace(panel, shape=(blocks, 2 * rows, block // 2)))
        args = tuple(wide if arg is layer.panel else arg for arg in args)
    return replace(layer, args=args, weights=replace(layer.weights, preparation=made))


def _changed(items, index, item):
    return (*items[:index], item, *items[index + 1 :])


def _with(program, at, **changes):
    """With one rung only, which is another."""
    return replace(program, rungs=(replace(program.rungs[at], **changes),))


def test_mutations_are_refused_or_harmless(opened, inputs, expected):
    """A changed plan is an error when it is opened, or computes what it did."""
    program, open_session = opened
    rng = random.Random(7)
    refused = [is_refused(open_session, mutated(program, rng), inputs, expected, inferences=2) for _ in range(MUTATIONS)]
    assert MUTATIONS // 2 < sum(refused) < MUTATIONS


def test_traces_show_preparations_apart_from_reads(once, inputs):
    path, artifact, _ = once
    index, rung = next(
        (index, rung)
        for index, rung in enumerate(artifact.program.rungs)
        if any(one.prepare for one in rung.tapes.repeated)
    )
    with flexcomp.load(path, budget=rung.budget, trace=True) as session:
        for resident in (False, True):
            run(session, inputs)
            trace, stats = session.trace(), session.stats()
            made = 0
            for at, load in enumerate(loads_of(artifact.program, rung)):
                (_, read), (begin, end) = trace.loads[at], trace.prepares[at]
                if not load.prepared or (load.pinned and resident):
                    assert (begin, end) == (0, 0)
                    continue
                assert (read > 0 or (load.kept and resident)) and read <= begin < end == trace.loaded(at)[1]
                made += load.prepared.count * artifact.program.layers[load.prepared.layer].weights.block_nbytes
            assert stats["prepared_bytes"] == made > 0
            spent = sum(end - begin for begin, end in trace.prepares) * 1e-6
            assert stats["prepare_ms"] == pytest.approx(spent) and 0 <= stats["help_ms"] <= stats["stall_ms"]
    lanes = measured(artifact.program, trace)
    assert trace.rung == index and lanes.preparing
    events = trace_events(artifact.program, rung, [lanes])["traceEvents"]
    assert sum(event.get("cat") == "prepare" for event in events) == len(lanes.preparing)
    assert any(event["name"] == "thread_name" and event["args"]["name"] == "preparing" for event in events)


def test_the_c_interface_tells_of_preparations(once, inputs):
    path, (x,), y = once[0], inputs.values(), np.empty((1, 256, 1, 1), "f4")
    opened, pool, member = api.opened(path, threads=1, budget=api.ALL), c_void_p(), c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=1 << 26)), byref(pool))
    api.done("pool_add", pool, b"once", str(path).encode(), None, byref(member))
    with flexcomp.load(path, "all", threads=1) as session:
        for _ in range(2):
            run(session, inputs)
            wanted = session.stats()["prepared_bytes"]
            assert api.run(opened, (x,), (y,)) == api.OK
            stats = api.given("get_stats", api.Stats, opened)
            assert stats.prepared_bytes == wanted > 0 and 0 <= stats.help_s <= stats.stall_s
            assert stats.help_s + stats.prepare_s > 0
    assert api.run(member, (x,), (y,)) == api.OK
    stats = api.given("get_stats", api.Stats, member)
    assert stats.prepared_bytes > 0 and stats.help_s + stats.prepare_s > 0 < stats.read_s
    assert np.isfinite(y).all()
    api.done("close", opened)
    api.done("pool_close", pool)


def test_plans_are_checked_before_they_are_used(once, opened, inputs, expected):
    """Of a library not all when it is opened: but none is executed that was not looked at."""
    path, artifact, digest = once
    _, open_session = opened
    smallest, largest = by_hand(artifact.program, artifact.program.rungs[0]), artifact.program.rungs[-1]
    load = smallest.loads[-1]
    moved = replace(load, target=(load.target + PAGE) % (smallest.working - load.nbytes))
    wrong = replace(smallest, loads=(*smallest.loads[:-1], moved))
    program = replace(artifact.program, rungs=(wrong, *artifact.program.rungs[1:]))

    def refused(function, *args):
        with pytest.raises(RuntimeError, match=f"the plan for {smallest.budget} bytes is wrong: ") as caught:
            function(*args)
        assert caught.value.__tvm_ffi_error__.kind == "ArtifactError"

    refused(open_session, program)  # made by hand
    module = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{PROGRAM_KIND}")(encode_program(program, digest))
    options = {"library_path": str(path)}
    weights = str(path.with_suffix(".weights"))
    refused(module.get_function("open"), weights, json.dumps({**options, "budget_bytes": smallest.budget}))
    session = module.get_function("open")(weights, json.dumps(options))
    arrays = [tvm_ffi.from_dlpack(array) for array in inputs.values()]
    for _ in range(2):
        refused(session.get_function("set_budget"), smallest.budget)
        result = np.full(expected.shape, np.nan, "f4")
        session.get_function("run")(*arrays, tvm_ffi.from_dlpack(result))
        assert close(result, expected)
        assert json.loads(session.get_function("stats")())["budget_bytes"] == largest.budget


def test_help_can_be_turned_off(once, inputs, expected):
    path, artifact, _ = once
    making = [rung for rung in artifact.program.rungs if any(one.prepare for one in rung.tapes.repeated)]
    with flexcomp.load(path, making[0].budget, work_stealing=False) as session:
        for _ in range(50):
            assert close(run(session, inputs), expected)
            assert session.stats()["help_ms"] == 0 < session.stats()["prepare_ms"]
