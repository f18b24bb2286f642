"""What `benchmarks.compare` makes of measurements: medians, ratios, who is ranked, who is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.compare import COLUMNS, add_rows
from benchmarks.peers.machine import Conditions, observed
from benchmarks.peers.measure import largest_error
from benchmarks.peers.picture import by_network, draw, shown
from benchmarks.peers.summary import Run, conditions, judge, ranking
from benchmarks.results import Table


def run(*latency_ms: float, memory: int = 10, cold: float = 5.0, error: float = 0.0) -> Run:
    return Run(latency_ms, cold, memory, error, "1.0")


def test_the_ratio_is_that_of_the_rounds_to_the_best_peer():
    rounds = {
        "flexcomp": [run(9.0, 10.0, 50.0), run(20.0), run(9.0)],  # a slow second round hit both
        "ncnn": [run(20.0), run(40.0), run(20.0)],
        "mnn": [run(25.0), run(26.0), run(25.0)],
    }
    verdict = judge(rounds, {})
    assert verdict.best_peer == "ncnn"
    assert verdict.ratios == (0.5, 0.5, 0.45)
    assert verdict.ratio == 0.5
    assert ranking(verdict) == ["flexcomp", "ncnn", "mnn"]


def test_an_engine_that_disagrees_is_not_ranked():
    rounds = {"flexcomp": [run(10.0)], "ncnn": [run(1.0, error=2e-3)], "openvino": [run(20.0, error=9e-4)]}
    verdict = judge(rounds, {})
    assert verdict.standings["ncnn"].status == "wrong"
    assert verdict.best_peer == "openvino"
    assert verdict.ratio == 0.5
    assert ranking(verdict)[-1] == "ncnn"


@pytest.mark.parametrize("error", [float("nan"), float("inf"), 0.5])
def test_one_wrong_round_is_enough(error):
    verdict = judge({"flexcomp": [run(1.0), run(1.0, error=error)], "mnn": [run(2.0)] * 2}, {})
    assert verdict.standings["flexcomp"].status == "wrong"
    assert verdict.ratio is None
    assert verdict.best_peer == "mnn"


def test_failures_are_told():
    verdict = judge({"flexcomp": [run(1.0)], "mnn": []}, {"mnn": "convert: no such operator"})
    assert verdict.standings["mnn"].status == "failed"
    assert verdict.best_peer is None
    assert verdict.ratio is None
    table = Table(COLUMNS)
    add_rows(table, "net", 2, verdict)
    assert "failed: convert: no such operator |" in table.markdown()


def test_medians_spread_and_peaks():
    verdict = judge({"flexcomp": [run(1.0, 2.0, memory=7, cold=3.0), run(3.0, 4.0, 5.0, memory=9, cold=4.0)]}, {})
    found = verdict.standings["flexcomp"]
    assert found.latency_ms == 3.0
    assert found.quartiles_ms == (2.0, 4.0)
    assert found.memory_bytes == 9
    assert found.cold_ms == 3.5


def test_outputs_are_compared_whatever_their_axes_of_one():
    want = [np.array([[1.0, -4.0]], np.float32)]
    assert largest_error([np.array([1.0, -4.0], np.float32)], want) == 0.0
    assert largest_error([np.array([1.0, -3.0], np.float32)], want) == 0.25
    assert largest_error([np.array([1.0, np.nan], np.float32)], want) == float("inf")
    assert largest_error([np.zeros(3, np.float32)], want) == float("inf")
    assert largest_error([], want) == float("inf")


def test_a_picture_is_drawn(tmp_path):
    engine = {"status": "ok", "memory_bytes": 5_000_000, "latency_ms": 3.0}
    result = {
        "network": "net",
        "threads": 1,
        "engines": {"flexcomp": engine, "ncnn": engine, "mnn": {"status": "failed"}},
        "curve": [{"memory_bytes": 2_000_000, "latency_ms": 9.0}, engine],
    }
    draw([result] * 5, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_summary_gives_the_same_picture(tmp_path):
    engine = {"status": "ok", "memory_bytes": 5_000_000, "latency_ms": 3.0, "runs": [1, 2, 3]}
    wrong = {"status": "wrong", "memory_bytes": 1, "latency_ms": 1.0}
    engines = {"flexcomp": engine, "ncnn": engine, "mnn": wrong}
    results = [{"network": "net", "threads": 1, "engines": engines, "curve": [engine], "ratio": 1}]
    draw(results, tmp_path / "at_once.png")
    (tmp_path / "summary.json").write_text(json.dumps({"results": shown(results)}))
    assert "runs" not in (tmp_path / "summary.json").read_text()
    command = ["--draw", tmp_path / "summary.json", "--picture", tmp_path / "later.png"]
    subprocess.run([sys.executable, "-m", "benchmarks.compare", *command], check=True)
    assert (tmp_path / "later.png").read_bytes() == (tmp_path / "at_once.png").read_bytes()


def test_results_of_two_processors_stand_next_to_each_other():
    runs = [[{"network": name, "threads": 1, "processor": one} for name in names] for one, names in (("A", "xy"), ("B", "yx"))]
    assert [(one["network"], one["processor"]) for one in by_network(runs)] == [("x", "A"), ("x", "B"), ("y", "A"), ("y", "B")]


def test_the_committed_picture_is_that_of_its_figures(tmp_path):
    runs = [json.loads(path.read_text())["results"] for path in sorted(Path("docs/measurements").glob("comparison*.json"))]
    assert all(result["processor"] and len(result["curve"]) > 1 for run in runs for result in run)
    draw(by_network(runs), tmp_path / "again.png")
    with Image.open(tmp_path / "again.png") as drawn, Image.open("docs/measurements/comparison.png") as committed:
        assert drawn.size == committed.size


def test_conditions_of_all_runs_stand_in_one_line():
    near, far = Conditions(0.0), Conditions(0.021)
    rounds = {
        "flexcomp": [Run([5.0], 1.0, 1, 0.0, conditions=near), Run([8.0], 1.0, 1, 0.0, conditions=far)],
        "ncnn": [Run([10.0], 1.0, 1, 0.0, conditions=near), Run([10.0], 1.0, 1, 0.0, conditions=near)],
    }
    said = conditions(judge(rounds, {}))
    assert said == "the host took up to 2.1%; rounds 0.50 0.80"
    assert conditions(judge({"flexcomp": [run(1.0)], "ncnn": [run(2.0)]}, {})) == "the host took up to 0.0%; rounds 0.50"


def test_the_time_that_the_host_takes_is_a_share():
    with observed() as seen:
        pass
    assert 0 <= seen.steal <= 1
