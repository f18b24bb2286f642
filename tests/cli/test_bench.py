"""`flexcomp bench`: the kernel report, and that what it times computes the right thing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flexcomp.profiling.kernel_speeds import LayerTime, summarise
from flexcomp.profiling.rates import Rates
from flexcomp.program.program import Layer, TensorType, ValueArg, WeightArg


@pytest.fixture(scope="module")
def report(cli, library):
    done = cli("bench", library, "--repeat", "3", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_layer_is_timed(report):
    assert [layer["name"].partition(".")[0] for layer in report["layers"]].count("conv2d") == 2
    assert all(layer["time_ms"] > 0 for layer in report["layers"])
    assert sum(layer["time_share"] for layer in report["layers"]) == pytest.approx(1)
    assert sum(group["layers"] for group in report["groups"]) == len(report["layers"])
    assert report["kernels_ms"] == pytest.approx(sum(group["time_ms"] for group in report["groups"]))
    assert report["threads"] == 1
    assert report["latency_ms"] > 0


def test_rates_are_those_of_a_computer(report):
    assert 1 < report["peak_gflops"] < 10_000
    assert 0.5 < report["read_gb_per_s"] < 2_000


def test_an_onnx_file_is_built_first_and_printed_as_tables(cli, model):
    done = cli("bench", model, "--repeat", "2", "--threads", "2", "--budget", "0.6")
    assert done.returncode == 0, done.stderr
    assert "weighted by time" in done.stdout
    assert "2 threads: at most" in done.stdout


@pytest.mark.parametrize("budget", ["min", None])
def test_replay_computes_what_the_runtime_computes(library, budget):
    import flexcomp
    from flexcomp.profiling.replay import Replay

    replay = Replay(library, budget)
    for _ in range(2):  # the second inference finds pinned weights in their places
        replay.run()
    (value,) = [value for _, value in replay._inputs]
    with flexcomp.load(library, budget=budget, threads=1) as session:
        expected = session.run({"x": value})
    np.testing.assert_array_equal(replay.outputs()["output"], expected["output"])


@pytest.mark.parametrize(("name", "code"), [("absent.onnx", 3), ("absent.so", 4)])
def test_a_missing_file_is_one_line(cli, tmp_path, name, code):
    done = cli("bench", tmp_path / name)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].startswith("error: ")


def layer(name: str, implementation: str, flops: int, nbytes: int) -> Layer:
    args = (ValueArg(0, TensorType((nbytes // 8,))), WeightArg(0, TensorType((nbytes // 8,))))
    return Layer(name, "conv2d", name, implementation, "", args, None, 0, flops)


def test_groups_are_weighted_by_time():
    times = [
        LayerTime(layer("a", "direct 14×32", 90, 8), 1.0),
        LayerTime(layer("b", "matmul 6×64", 150, 8), 3.0),
        LayerTime(layer("c", "winograd F(4) 2×14 tiles 14×32", 500, 8), 2.0),
        LayerTime(layer("d", "gemv 1×64", 1, 800), 2.0),
        LayerTime(layer("e", "generic", 0, 8), 2.0),
    ]
    report = summarise(times, Rates(flops_per_s=100.0, read_bytes_per_s=500.0))
    groups = {group["group"]: group for group in report["groups"]}
    assert groups["direct and matmul"]["peak_share"] == pytest.approx((1 * 0.9 + 3 * 0.5) / 4)
    assert groups["winograd"]["peak_share"] == pytest.approx(2.5)
    assert groups["gemv"]["read_share"] == pytest.approx(0.8)
    assert groups["gemv"]["bound_by"] == "reading"
    assert groups["other"]["time_share"] == pytest.approx(0.2)
    assert "depthwise" not in groups
