"""First inferences that take weights as they are stored: right, also when they fail or are cut off, and prepared behind that."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp import runtime_ext
from flexcomp.compiler import first_inference
from flexcomp.program import Cold
from flexcomp.program.program import PAGE
from flexcomp.program.tapes import Prepare, Read, Tapes
from tests.by_hand import as_loads, written
from tests.runtime import hooks
from tests.runtime.changed_programs import close, is_refused, opener

MUTATIONS = 800


def network() -> onnx.ModelProto:
    """Layers whose prepared weights take several loads and several times the bytes, with a sum over a residual among them."""
    g = Graph("first", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 12, 12)), 64, 3))
    x = g.relu(g.op("Add", g.conv(g.relu(g.conv(x, 320, 3)), 64, 3), x, channels=64))
    x = g.relu(g.conv(g.relu(g.conv(x, 320, 1)), 320, 3))
    return g.model(g.op("GlobalAveragePool", x), (1, 320, 1, 1))


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(5).standard_normal((1, 3, 12, 12)).astype("f4")}


@pytest.fixture(scope="module")
def expected(inputs) -> np.ndarray:
    return onnxruntime.InferenceSession(network().SerializeToString()).run(None, inputs)[0]


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """An artifact whose first inferences take all weights as they are stored that they can, whatever that costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_inference, "_latency", lambda planning, form, planned, chosen: -float(len(chosen)))
        artifact = flexcomp.build(network(), target="llvm -mcpu=x86-64-v3", store="once", threads=1)
    path = tmp_path_factory.mktemp("cold") / "cold.so"
    digest = artifact.write_weights(path.with_suffix(".weights"))
    artifact.write_library(path, digest)
    return path, as_loads(artifact.program), digest


def run(session, inputs) -> np.ndarray:
    return next(iter(session.run(inputs).values()))


def prepared_nbytes(program, rung, only=lambda load: True) -> int:
    made = [load.prepared for load in rung.loads if load.prepared and only(load)]
    return sum(one.count * program.layers[one.layer].weights.block_nbytes for one in made)


def cold_layers(rung) -> set[int]:
    """The layers that later inferences compute instead."""
    return {rung.steps[one.step].layer for one in rung.cold}


def test_some_rungs_begin_cold_and_some_loads_share_their_bytes(cold):
    _, program, _ = cold
    rungs = [rung for rung in program.rungs if rung.cold]
    assert rungs and any(len(rung.cold) > 2 for rung in rungs)
    made = [[load for load in rung.loads if load.prepared and load.prepared.layer in cold_layers(rung)] for rung in rungs]
    assert any(len(loads) > len(rung.cold) for loads, rung in zip(made, rungs, strict=True))
    for rung in rungs:
        for one in rung.cold:
            own, layer = program.layers[one.layer], program.layers[rung.steps[one.step].layer]
            assert own.weights.preparation is None and layer.weights.offset == own.weights.offset


@pytest.mark.parametrize("direct", [True, False])
def test_every_inference_of_every_budget_is_right(cold, inputs, expected, direct):
    """The least and the most memory with both kinds of reads, budgets between them with one and the other in turn."""
    path, program, _ = cold
    both = {program.rungs[0], program.rungs[-1]}
    for rung in sorted({*program.rungs[direct::2], *both}, key=lambda rung: rung.budget):
        with flexcomp.load(path, budget=rung.budget, direct=direct) as session:
            for _ in range(4):
                assert close(run(session, inputs), expected)


def test_weights_are_read_once_and_prepared_behind_the_first_inference(cold, inputs, expected):
    path, program, _ = cold
    rung = program.rungs[-1]
    assert all(load.pinned for load in rung.loads)
    later = prepared_nbytes(program, rung, lambda load: load.prepared.layer in cold_layers(rung))
    with flexcomp.load(path, budget=rung.budget) as session:
        found = []
        for _ in range(3):
            assert close(run(session, inputs), expected)
            found.append((session.stats()["bytes_read"], session.stats()["prepared_bytes"]))
    (first_read, first), (second_read, second), (third_read, third) = found
    assert first == prepared_nbytes(program, rung) - later and second == later > 0 and third == 0
    assert first_read > 0 == second_read == third_read


def test_a_warm_start_has_no_cold_inference(cold, inputs, expected):
    path, program, _ = cold
    with flexcomp.load(path, budget=program.rungs[-1].budget, start="warm") as session:
        assert close(run(session, inputs), expected)
        assert session.stats()["prepared_bytes"] == session.stats()["bytes_read"] == 0


def read_ahead(session) -> int:
    """Bytes read so far, once reads for the next inference have ended."""
    read = -1
    while read != (now := session.stats()["total_bytes_read"]):
        read = now
        time.sleep(0.02)
    return read


def test_warming_behind_a_first_inference_prepares_what_it_left(cold, inputs, expected):
    path, program, _ = cold
    for rung in program.rungs[-2:]:
        with flexcomp.load(path, budget=rung.budget) as session:
            run(session, inputs)
            read = read_ahead(session)
            session.warm()
            assert session.stats()["total_bytes_read"] <= read + sum(load.nbytes for load in rung.loads if not load.pinned)
            for _ in range(2):
                assert close(run(session, inputs), expected)


def test_budgets_may_change_at_any_time(cold, inputs, expected):
    path, program, _ = cold
    budgets = [rung.budget for rung in program.rungs]
    rng = random.Random(1)
    with flexcomp.load(path) as session:
        for budget in rng.choices(budgets, k=80):
            session.set_budget(budget)
            for _ in range(rng.randrange(1, 3)):
                assert close(run(session, inputs), expected)


def test_reads_that_fail_leave_the_next_inference_right(cold, inputs, expected):
    path, program, _ = cold
    rung = program.rungs[-1]
    with flexcomp.load(path, budget=rung.budget) as session:
        run(session, inputs)
        reads = session.stats()["reads"]
    for nth in range(1, reads + 1):
        with hooks.load(path, budget=rung.budget, fail_read_at=nth) as session:
            with pytest.raises(flexcomp.StorageError):
                run(session, inputs)
            for _ in range(3):
                assert close(run(session, inputs), expected)


def test_models_that_take_turns_begin_cold(cold, inputs, expected):
    path, program, _ = cold
    with flexcomp.Pool(2 * program.rungs[-1].arena) as pool:
        pool.add("first", path)
        for budget in (2 * program.rungs[-1].arena, program.rungs[-1].arena, 2 * program.rungs[-1].arena):
            pool.set_budget(budget)
            for _ in range(3):
                assert close(next(iter(pool.run("first", inputs).values())), expected)


def test_a_killed_process_leaves_nothing_that_the_next_one_could_find_wrong(cold, tmp_path, inputs, expected):
    path, _, _ = cold
    np.save(tmp_path / "x.npy", inputs["x"])
    command = [str(runtime_ext.runner()), str(path), "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    rng = random.Random(2)
    for _ in range(10):
        process = subprocess.Popen([*command, "--repeat", "3"], stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 0.04))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (output,) = (tmp_path / "out").glob("*.npy")
    assert close(np.load(output), expected)


def test_nothing_lies_where_weights_are_prepared_for_the_second_inference(cold, inputs, expected):
    """The loader prepares them while the outputs are still wanted."""
    path, program, digest = cold
    rung, output = program.rungs[-1], program.outputs[0].value
    places = {load.target for load in rung.loads if load.prepared and load.prepared.layer in cold_layers(rung)}
    assert places
    for place in places:
        value_at = (*rung.value_at[:output], place, *rung.value_at[output + 1 :])
        changed = replace(program, rungs=(replace(rung, value_at=value_at),))
        assert is_refused(opener(path, digest), changed, inputs, expected, inferences=1)


def in_another_order(tapes: Tapes) -> Tapes:
    """What the first inference leaves is prepared by an inference in one order, and without one in another."""
    turns = tapes.settle.turns
    end = next(i for i, (at, _) in enumerate(turns) if isinstance(tapes.operations[at], Prepare)) + 1
    return replace(tapes, settle=replace(tapes.settle, turns=(*turns[end:], *turns[:end])))


def over_prepared(tapes: Tapes) -> Tapes:
    """After all that stays is prepared, something is read to its place."""
    made = next(one for one in reversed(tapes.operations) if isinstance(one, Prepare) and one.to % PAGE == 0)
    read = Read(tapes.operations[-1].load, 0, PAGE, made.to)
    fill = replace(tapes.fill, turns=(*tapes.fill.turns, (len(tapes.operations), 0)))
    return replace(tapes, operations=(*tapes.operations, read), fill=fill)


def unaligned(tapes: Tapes) -> Tapes:
    moved = [replace(one, source=one.source + 4) if isinstance(one, Prepare) else one for one in tapes.operations]
    return replace(tapes, operations=tuple(moved))


def with_prepared(tapes: Tapes, change) -> Tapes:
    """The first preparation that does not begin with its layer is another."""
    index, made = next((i, one) for i, one in enumerate(tapes.operations) if isinstance(one, Prepare) and one.first)
    return replace(tapes, operations=(*tapes.operations[:index], change(made), *tapes.operations[index + 1 :]))


def of_other_blocks(tapes: Tapes) -> Tapes:
    return with_prepared(tapes, lambda made: replace(made, first=made.first - 1))


def of_more_blocks(tapes: Tapes) -> Tapes:
    return with_prepared(tapes, lambda made: replace(made, count=1 << 20))


def beyond_the_last_step(tapes: Tapes) -> Tapes:
    *others, (_, step) = tapes.first_steps
    return replace(tapes, first_steps=(*others, (1 << 20, step)))


def descending(tapes: Tapes) -> Tapes:
    return replace(tapes, first_steps=tapes.first_steps[::-1])


def without_weights(tapes: Tapes) -> Tapes:
    """A step of the first inference has its weights beyond the arena."""
    (number, step), *others = tapes.first_steps
    return replace(tapes, first_steps=((number, replace(step, weights_at=1 << 40)), *others))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (of_other_blocks, "is prepared from other weights"),
        (of_more_blocks, "prepares more blocks than layer"),
        (beyond_the_last_step, "a first inference has a step that does not exist"),
        (descending, "the steps of a first inference do not ascend"),
        (without_weights, "lie outside the arena"),
        (in_another_order, "its second inference prepares other weights than filling does"),
        (over_prepared, "is written over weights that stay"),
        (unaligned, "is not aligned"),
    ],
)
def test_tapes_that_could_do_harm_are_refused(cold, change, match):
    path, program, digest = cold
    with pytest.raises(RuntimeError, match=match):
        rung = written(program).rungs[-1]
        opener(path, digest)(replace(program, rungs=(replace(rung, tapes=change(rung.tapes)),)))


def mutated(program, rng: random.Random):
    """One rung whose first inference is another in one number, or a load or step that it has to do with."""
    rung = rng.choice([rung for rung in program.rungs if rung.cold])
    at = rng.randrange(len(rung.cold))
    one = rung.cold[at]
    near = rng.choice([-1, 1]) * rng.choice([64, PAGE, 8 * PAGE, 512 * PAGE])
    change = rng.choice(["step", "layer", "at", "twice", "order", "load", "pinned", "made"])
    others = [*rung.cold[:at], *rung.cold[at + 1 :]]
    own = [index for index, load in enumerate(rung.loads) if load.prepared and load.prepared.layer == rung.steps[one.step].layer]
    index = rng.choice(own)
    load = rung.loads[index]
    if change in ("step", "layer", "at"):
        step, layer = rng.randrange(len(rung.steps)), rng.randrange(len(program.layers))
        values = {"step": step, "layer": layer, "at": max(0, one.at + near)}
        rung = replace(rung, cold=(*rung.cold[:at], replace(one, **{change: values[change]}), *rung.cold[at + 1 :]))
    elif change == "twice":
        rung = replace(rung, cold=tuple(sorted([*rung.cold, one], key=lambda cold: cold.step)))
    elif change == "order":
        rung = replace(rung, cold=(*others, Cold(one.step, one.layer, one.at)))
    else:
        made = replace(load.prepared, at=max(0, load.prepared.at + near))
        values = {
            "load": replace(load, source=max(0, load.source + (near // PAGE or 1) * PAGE)),
            "pinned": replace(load, pinned=False),
            "made": replace(load, prepared=made),
        }
        rung = replace(rung, loads=(*rung.loads[:index], values[change], *rung.loads[index + 1 :]))
    return replace(program, rungs=(rung,))


def test_mutations_are_refused_or_harmless(cold, inputs, expected):
    """A changed first inference is an error when it is opened, or computes what it did, and so do those behind it."""
    path, program, digest = cold
    rng, open_session = random.Random(11), opener(path, digest)
    refused = [is_refused(open_session, mutated(program, rng), inputs, expected, inferences=3) for _ in range(MUTATIONS)]
    assert MUTATIONS // 2 < sum(refused) < MUTATIONS
