"""What `benchmarks.cold` measures, keeps and makes of it, and the networks that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import models
from benchmarks.cold import tables
from benchmarks.cold.artifacts import Built, _Clock, digest
from benchmarks.cold.contenders import OURS, Began, start_ours
from benchmarks.cold.networks import NETWORKS, NNV12, TITLES, parameters, raw_nbytes
from benchmarks.cold.summary import KEY, START_MS, Records, summarise
from benchmarks.compare import budgets
from benchmarks.networks.graph import Graph
from benchmarks.peers import ENGINES
from benchmarks.peers.machine import StillCached, cached_pages, forget, forget_files
from benchmarks.peers.measure import EngineFailure, Waiting, Workplace, largest_error
from flexcomp.demo import compare
from flexcomp.errors import ArtifactError

PUBLISHED = {  # parameters, as the papers' or the reference implementations have them
    "alexnet_torch": 61_100_840,
    "googlenet": 6_624_904,
    "mobilenet_v1": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "resnet18": 11_689_512,
    "shufflenet_v2": 2_278_604,
    "squeezenet1_1": 1_235_496,
    "efficientnet_b0": 5_288_548,
}
IN_NCNN = {  # numbers in filters, as ncnn's benchmarks have them; biases and normalisation differ
    "shufflenet_v1": 1_789_998,
    "mobilenet_v2_yolov3": 3_698_880,
    "mobilenet_yolo": 11_059_648,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_as_many_parameters_as_published(name):
    assert parameters(models.load(name).model) == PUBLISHED[name]


@pytest.mark.parametrize("name", IN_NCNN)
def test_networks_have_the_filters_of_those_that_ncnn_measures(name):
    found = [weight.dims for weight in models.load(name).model.graph.initializer if weight.name.startswith("w")]
    assert sum(int(np.prod(shape)) for shape in found if len(shape) > 1) == IN_NCNN[name]


def test_text_is_read_by_a_network_with_lstm():
    network = models.load("crnn_lite")
    onnx.checker.check_model(network.model, full_check=True)
    assert 0.9 < parameters(network.model) / 1e6 / NNV12["CRNN-lite"].parameters < 1.1
    assert [node.op_type for node in network.model.graph.node].count("LSTM") == 2


def test_all_of_nnv12s_networks_are_there():
    assert set(NNV12) <= set(NETWORKS)
    assert set(NETWORKS) - set(NNV12) == {"VGG-19", "ResNet-152", "ViT-B/16"}
    assert set(NETWORKS.values()) <= set(models.NAMES) and TITLES["vit_b16"] == "ViT-B/16"


def test_raw_weights_are_those_of_the_file():
    model = models.load("squeezenet1_1").model
    assert 0 <= model.ByteSize() - raw_nbytes(model) < 20_000
    assert raw_nbytes(model) == 4 * parameters(model)  # it has no batch normalisation


def test_files_leave_the_page_cache(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"x" * 100_000)
    assert cached_pages(path) == 25
    forget_files([path])
    assert cached_pages(path) == 0
    path.read_bytes()
    assert cached_pages(path) > 0


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs at /dev/shm")
def test_files_in_memory_cannot_be_cold(monkeypatch):
    monkeypatch.setattr("benchmarks.peers.machine._PAUSE_S", 0.0)
    path = Path("/dev/shm") / f"flexcomp-{os.getpid()}"
    path.write_bytes(b"x" * 5000)
    try:
        with pytest.raises(StillCached, match=r"2 pages of .* is it on a disk"):
            forget_files([path])
    finally:
        path.unlink()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Workplace:
    """A small network, converted for the engine that needs no environment of its own: ours."""
    made = Workplace(tmp_path_factory.mktemp("tiny"), 1)
    g = Graph("tiny", 0)
    x = g.relu(g.conv(g.input("x", (1, 3, 16, 16)), 16, 3))
    onnx.save(g.model(g.conv(x, 8, 1), (1, 8, 16, 16)), made.model)
    np.savez(made.inputs, x=np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=np.float32))
    made.convert("flexcomp")
    return made


@pytest.fixture
def expected(workplace) -> list[np.ndarray]:
    with np.load(workplace.inputs) as inputs:
        return list(compare.reference(onnx.load(workplace.model), dict(inputs)).values())


def test_an_engine_starts_when_it_is_told(workplace, expected):
    with Waiting(workplace, "flexcomp", 0.0) as waiting:
        waiting.until_ready()
        time.sleep(0.3)  # in nobody's time
        found = waiting.go()
    assert largest_error(found.outputs, expected) < 1e-5
    assert len(found.inferences_ms) >= 6 and found.inferences_ms[0] > max(found.inferences_ms[3:])


def test_an_engine_that_cannot_start_says_why(workplace, tmp_path):
    elsewhere = Workplace(tmp_path, 1)
    (tmp_path / "flexcomp-1").mkdir()
    np.savez(elsewhere.inputs, x=np.zeros(1))
    with (
        Waiting(elsewhere, "flexcomp", 0.0) as waiting,
        pytest.raises(EngineFailure, match=r"run: .*ArtifactError.*model\.so"),
    ):
        waiting.go()


def test_budgets_are_read_without_a_library_in_the_page_cache(workplace):
    assert budgets(workplace)
    forget(workplace.of(ENGINES["flexcomp"]))


def test_our_runner_starts_cold(workplace, expected, tmp_path):
    np.save(tmp_path / "x.npy", np.load(workplace.inputs)["x"])
    built = Built(workplace.of(ENGINES["flexcomp"]) / "model.so", 0.0, 0.0, 0, 0)
    found = start_ours(OURS, built, {"x": tmp_path / "x.npy"}, ("output",), 1, 0.0, 1 << 20)
    assert largest_error(found.outputs, expected) < 1e-5
    assert found.first_ms > found.figures()["steady_ms"] and found.bandwidth > 1e6
    with pytest.raises(ArtifactError, match=r"^cannot open"):
        start_ours(OURS, built, {"x": tmp_path / "no.npy"}, ("output",), 1, 0.0, 1 << 20)


def test_records_survive_a_kill(tmp_path):
    path = tmp_path / "records.jsonl"
    first = dict(zip(KEY, ("net", 1, "flexcomp", 0), strict=True))
    records = Records(path)
    records.add(first | {"first_ms": 3.0})
    whole = path.read_text()
    path.write_text(whole + '{"network": "n')  # cut off
    records = Records(path)
    assert tuple(first.values()) in records and path.read_text() == whole
    records.add(first | {"round": 1, "first_ms": 5.0})
    assert [record["first_ms"] for record in Records(path).of(network="net")] == [3.0, 5.0]


def _key(contender: str, *, number: int = 0) -> dict:
    return dict(zip(KEY, ("resnet18", 1, contender, number), strict=True))


_FIGURES = {"second_ms": 12.0, "third_ms": 11.0, "steady_ms": 10.0, "error": 0.0, "right": True}


def _add(records: Records, key: dict, first: float, *, error: float = 0.0, noise: float = 1.0, **more: object) -> None:
    records.add(key | _FIGURES | {"first_ms": first * noise, "error": error, "right": error < 1e-3} | more)


@pytest.fixture
def records(tmp_path) -> Records:
    """Two rounds of three engines: one is wrong, one is faster with its cache."""
    found = Records(tmp_path / "records.jsonl")
    facts = {"parameters": 5, "raw_nbytes": 20e6, "weights_nbytes": 30e6, "library_nbytes": 1e6}
    facts |= {"build_s": 9.0, "plan_s": 2.0}
    for number in range(2):
        key = partial(_key, number=number)
        add = partial(_add, found, noise=1.0 + number)  # of the machine, in a whole round
        add(key("flexcomp"), 50.0, bandwidth=1e9 / (1 + number), computing_ms=8.0 * (1 + number), **({} if number else facts))
        add(key("ncnn"), 20.0, error=0.5)
        add(key("openvino cached"), 100.0)
        if not number:
            add(key("openvino"), 300.0)
            found.add(key("mnn") | {"failure": "start: no such operator"})
    return found


def test_the_bound_and_the_ratios_are_those_of_the_rounds(records):
    (one,) = summarise(records)
    assert one.bounds_ms["flexcomp"] == (20 + START_MS, 40 + START_MS)  # what is raw, at the bandwidth of the round
    assert one.over_bound() == pytest.approx((50 / 35 + 100 / 55) / 2)
    assert one.best_peer == "openvino cached" and one.of_best() == 0.5  # though the second round was slow
    assert one.times["flexcomp"].median == 75.0 and not one.times["ncnn"].right
    assert "openvino" not in one.times and one.failures == {"mnn": "start: no such operator"}


def test_the_bound_is_computing_where_that_takes_longer(records):
    (record,) = records.of(**_key("flexcomp"))
    records.add(record | {"raw_nbytes": 1e6})
    (one,) = summarise(records)
    assert one.bounds_ms["flexcomp"] == (8 + START_MS, 10 + START_MS)  # everything resident, and then the steady one


def test_tables_show_who_is_wrong_or_failed(records):
    (one,) = summarise(records)
    text = tables.starts([one], 1).markdown() + tables.closing([one])
    assert "| ResNet-18 | 20.00 | 45 | 75 (50 to 100) | 1.62 |" in text
    assert "30 wrong (5e-01)" in text and "150 (c)" in text and "failed" in text
    assert "resnet18, mnn: start: no such operator" in text
    rows = tables.continuing([one], 1).markdown() + tables.storage([one], 1).markdown()
    assert "| ResNet-18 | 75.00 | 12.00 | 11.00 | 10.00 | 1.20 | 1.10 |  | openvino cached | 10.00 |" in rows
    assert "| ResNet-18 | 0.00 | 20.00 | 30.00 | 1.50 |  | 1.75 | 1.00 | 2.00 | 0.89 | 9.00 |" in rows


def test_steady_inferences_are_compared_with_those_after_a_warm_start(records):
    for number in range(2):
        records.add(_key("flexcomp warm", number=number) | _FIGURES | {"first_ms": 90.0, "steady_ms": 8.0})
    (one,) = summarise(records)
    assert one.over_warm == 10 / 8 and one.best_peer == "openvino cached"
    assert "| 1.20 | 1.10 | 1.25 | openvino cached | 10.00 |" in tables.continuing([one], 1).markdown()


def test_an_artifact_is_known_by_what_it_is_made_of(tmp_path):
    source = tmp_path / "compiler"
    source.mkdir()
    (source / "pass.py").write_text("a = 1")
    first = digest(["compiler"], tmp_path)
    assert digest(["compiler"], tmp_path, "another profile") != first
    other = tmp_path / "other"
    (other / "compiler").mkdir(parents=True)
    (other / "compiler" / "pass.py").write_text("a = 2")
    assert digest(["compiler"], other) != first


def test_phases_of_a_build_are_timed(monkeypatch):
    ticks = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr("benchmarks.cold.artifacts.time.perf_counter", lambda: next(ticks))
    clock = _Clock()
    for phase, done in (("import", 0), ("plan", 0), ("plan", 1), ("compile", 0)):
        clock(phase, done, 1)
    monkeypatch.setattr("benchmarks.cold.artifacts.time.perf_counter", lambda: 9.0)
    assert clock.taken("plan") == 2.0 and clock.taken("compile") == 3.0


def test_steady_is_what_follows_the_third():
    assert Began(50.0, (9.0, 8.0, 7.0, 5.0, 6.0), []).figures() == {
        "first_ms": 50.0, "second_ms": 9.0, "third_ms": 8.0, "steady_ms": 6.0
    }  # fmt: skip


def test_the_command_shows_what_was_measured(records, tmp_path):
    command = [sys.executable, "-m", "benchmarks.cold", str(tmp_path), "--show", "--records", str(tmp_path / "records.jsonl")]
    command += ["--json", str(tmp_path / "summary.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 thread" in done.stdout and "ResNet-18" in done.stdout
    assert json.loads((tmp_path / "summary.json").read_text())["networks"][0]["name"] == "resnet18"
