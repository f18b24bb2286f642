"""`flexcomp plan`: pictures and traces of what a plan does, predicted and measured."""

from __future__ import annotations

import itertools
import json

import pytest

import flexcomp
from flexcomp.program.program_bytes import decode_program
from flexcomp.report import timeline
from flexcomp.report.chrome_trace import trace_events
from flexcomp.runtime import runner
from flexcomp.runtime.library import read_program
from tests.shaped import INPUTS, encoder


@pytest.fixture(scope="module")
def program(library):
    return decode_program(read_program(library))


def check_events(document, program, rung):
    """As viewers read it: complete events that do not overlap on a thread, named threads, counters within the budget."""
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    threads: dict[tuple[int, int], list[dict]] = {}
    names = set()
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
            assert event["dur"] >= 0 and event["name"] in {layer.name for layer in program.layers}
        elif event["ph"] == "C":
            assert 0 < sum(event["args"].values()) <= rung.arena
        else:
            assert event["ph"] == "M" and event["name"] in ("process_name", "thread_name")
            names.add((event["pid"], event["tid"]))
    for thread, events in threads.items():
        assert thread in names
        for before, after in itertools.pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    return threads


def test_every_rung_as_a_trace(program):
    for rung in program.rungs:
        lanes = timeline.predicted(program, rung)
        assert lanes.latency == pytest.approx(rung.seconds)
        threads = check_events(json.loads(json.dumps(trace_events(program, rung, [lanes]))), program, rung)
        assert len(threads[1, 1]) == len(rung.steps)
        assert len(threads.get((1, 2), [])) == len(rung.tapes.repeated)


def test_pictures_and_trace_of_a_measured_plan(cli, library, program, tmp_path):
    for name in ("plan.png", "plan.svg"):
        done = cli(
            "plan", library, "--budget", "min", "--picture", tmp_path / name, "--trace", tmp_path / "t.json", "--measured"
        )
        assert done.returncode == 0, done.stderr
        assert "predicted" in done.stdout and "measured" in done.stdout
        assert (tmp_path / name).stat().st_size > 10_000
    threads = check_events(json.loads((tmp_path / "t.json").read_text()), program, program.rungs[0])
    assert set(threads) == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert "<svg" in (tmp_path / "plan.svg").read_text()[:1000]


def test_a_measured_timeline_is_the_inference(library, program):
    trace = runner.traces(library, budget="min", repeat=5).median
    lanes = timeline.measured(program, trace)
    rung = program.rungs[0]
    assert len(lanes.computing) == len(rung.steps) and len(lanes.loading) == len(rung.tapes.repeated)
    assert 0 < lanes.busy < lanes.latency and lanes.stalled == pytest.approx(lanes.latency - lanes.busy)
    for step, need, bar in zip(rung.steps, rung.tapes.awaited, lanes.computing, strict=True):
        assert bar.name == program.layers[step.layer].name
        for load in lanes.loading[:need]:
            assert load.end <= bar.start


def test_the_plan_of_one_of_several_shapes(cli, tmp_path):
    path = tmp_path / "shaped.so"
    flexcomp.build(
        encoder(), input_shapes=INPUTS, shapes={"n": [16, 4]}, threads=1, probe=False, progress=False
    ).export_library(path)
    for n in (4, 16):
        done = cli("plan", path, "--shape", f"n={n}", "--measured", "--trace", tmp_path / f"{n}.json", "--repeat", 1)
        assert done.returncode == 0, done.stderr
    traces = [json.loads((tmp_path / f"{n}.json").read_text()) for n in (4, 16)]
    assert traces[0] != traces[1]
    assert "no shape is n=5: the library holds n=16; n=4" in cli("plan", path, "--shape", "n=5").stderr


def test_wrong_wishes(cli, library, tmp_path):
    assert "pictures are written as" in cli("plan", library, "--picture", tmp_path / "plan.txt").stderr
    done = cli("plan", library, "--budget", "1000")
    assert done.returncode == 4 and "smallest feasible" in done.stderr
