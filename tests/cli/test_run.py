"""`flexcomp run`: the JSON that scripts rely on, right outputs, and refusals."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.demo import compare
from flexcomp.runtime import runner
from flexcomp.units import Units, enough, human_bytes

KEYS = {
    "latency_ms",
    "median_ms",
    "budget_bytes",
    "arena_bytes",
    "idle_rss_bytes",
    "peak_rss_bytes",
    "bytes_read",
    "stall_ms",
    "start_ms",
    "first_ms",
    "prepared_bytes",
}


@pytest.mark.parametrize("budget", [None, "0.6", "min"])
def test_json_and_outputs(cli, model, library, image, tmp_path, budget):
    path, value = image
    options = ["--budget", budget] if budget else []
    done = cli(
        "run", library, "--json", "--repeat", "3", "--input", f"x={path}", "--output-dir", tmp_path / "out", *options
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.keys() >= KEYS
    assert len(report["latency_ms"]) == 3
    assert report["arena_bytes"] <= report["budget_bytes"]
    assert report["idle_rss_bytes"] <= report["peak_rss_bytes"]

    expected = compare.reference(onnx.load(model), {"x": value})
    outputs = {"output": np.load(tmp_path / "out" / "output.npy")}
    assert compare.relative_error(outputs, expected) <= compare.TOLERANCE


def test_random_inputs_are_seeded(cli, library, tmp_path):
    for name in ("a", "b"):
        assert cli("run", library, "--output-dir", tmp_path / name).returncode == 0
    first, second = (np.load(tmp_path / name / "output.npy") for name in "ab")
    np.testing.assert_array_equal(first, second)


def test_large_inputs_and_outputs_lie_in_the_arena(tmp_path):
    """16 MiB in, 16 MiB out: neither has a copy outside the budget."""
    g = Graph("large", seed=1)
    x = g.conv(g.input("x", (1, 4, 1024, 1024)), 4, 1)
    flexcomp.build(g.model(x, (1, 4, 1024, 1024))).export_library(tmp_path / "large.so")
    np.save(tmp_path / "x.npy", np.ones((1, 4, 1024, 1024), "f4"))
    for inputs in ({}, {"x": tmp_path / "x.npy"}):
        report = runner.run(tmp_path / "large.so", inputs=inputs, output_dir=tmp_path / "out", repeat=2)
        assert report["arena_bytes"] >= 32 << 20
        assert report["peak_rss_bytes"] - report["idle_rss_bytes"] < report["budget_bytes"] + (1 << 20)


def test_a_table_without_json(cli, library):
    done = cli("run", library)
    assert done.returncode == 0, done.stderr
    assert "latency" in done.stdout and "median of" not in done.stdout
    assert "median of 3" in cli("run", library, "--repeat", "3", "--warmup", "1").stdout


def test_how_a_budget_is_used(cli, library, ladder):
    """Asked, used, and what the next larger plan takes, in the units that were asked in."""
    asked = ladder[1] // 1000 + 1
    table = rows(cli("run", library, "--budget", f"{asked}kB").stdout)
    assert table["budget asked"] == f"{asked:.2f} kB"
    assert table["budget used"] == enough(ladder[1], Units.DECIMAL)
    assert table["next larger plan"] == enough(ladder[2], Units.DECIMAL)
    assert table["arena"].endswith("kB") and table["peak over idle"].endswith(("kB", "MB"))
    table = rows(cli("run", library, "--budget", "50%").stdout)
    assert table["budget asked"] == f"50 % of everything resident, {human_bytes(ladder[-1] // 2)}"
    assert rows(cli("run", library, "--budget", "min").stdout)["budget used"] == enough(ladder[0])
    table = rows(cli("run", library, "--budget", "all").stdout)
    assert (table["budget asked"], table["budget used"]) == ("everything resident", enough(ladder[-1]))
    assert "next larger plan" not in table


def rows(printed: str) -> dict[str, str]:
    """A table of labels and values."""
    cells = [line.split("│")[1:3] for line in printed.splitlines() if line.startswith("│")]
    return {label.strip(): value.strip() for label, value in cells}


def test_what_flexcomp_run_has(cli, library, tmp_path):
    for name, options in {"a": ["--seed", "7"], "b": ["--seed", "7", "--warmup", "2", "--verify"], "c": []}.items():
        done = cli("run", library, "--json", "--output-dir", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["warmup_ms"]) == (2 if name == "b" else 0)
    a, b, c = (np.load(tmp_path / name / "output.npy") for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_verify_notices_a_changed_byte(cli, library, tmp_path):
    for suffix in (".so", ".weights"):
        (tmp_path / "x").with_suffix(suffix).write_bytes(library.with_suffix(suffix).read_bytes())
    with open(tmp_path / "x.weights", "r+b") as file:
        file.seek(-5000, 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert cli("run", tmp_path / "x.so").returncode == 0
    assert_cannot_run(cli("run", tmp_path / "x.so", "--verify"), "x.weights")


def test_wrong_usage_ends_with_2(cli, library):
    for options in (["--budget", "many"], ["--input", "x"], ["--repeat", "0"]):
        assert cli("run", library, *options).returncode == 2


def assert_cannot_run(done, *words):
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_a_missing_library_ends_with_4(cli, tmp_path):
    assert_cannot_run(cli("run", tmp_path / "absent.so"), "absent.so")


def test_missing_weights_end_with_4(cli, library, tmp_path):
    alone = tmp_path / "alone.so"
    alone.write_bytes(library.read_bytes())
    assert_cannot_run(cli("run", alone), "alone.weights")


def test_too_small_a_budget_ends_with_4(cli, library):
    """And refused as `build` refuses it: with the layer that needs the memory."""
    done = cli("run", library, "--budget", "1kB")
    assert_cannot_run(done, "a budget of 1.00 kB is too small: the smallest feasible budget is ", " kB, set by layer ")
    built = cli("build", library.with_suffix(".onnx"), "-o", library.with_name("other.so"), "--budget", "1kB")
    assert built.returncode == 3 and built.stderr.splitlines()[-1] == done.stderr.strip()


@pytest.mark.parametrize("value", [np.zeros((1, 3, 8, 8), "f4"), np.zeros((1, 3, 32, 32), "f8")])
def test_an_input_of_another_type_ends_with_2(cli, library, tmp_path, value):
    np.save(tmp_path / "wrong.npy", value)
    done = cli("run", library, "--input", f"x={tmp_path / 'wrong.npy'}")
    assert done.returncode == 2
    assert "wrong.npy holds" in done.stderr and "expected '<f4' (1, 3, 32, 32)" in done.stderr


def test_an_unknown_input_ends_with_2(cli, library, image):
    done = cli("run", library, "--input", f"y={image[0]}")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("no input called y; it has x")


def test_a_warm_start_says_what_it_took(cli, library):
    done = cli("run", library, "--budget", "all", "--start", "warm", "--json")
    report = json.loads(done.stdout)
    assert 0 < report["warm_ms"] < report["start_ms"] and report["bytes_read"] == 0
    assert "loading within that" in cli("run", library, "--start", "warm").stdout
    assert "loading within that" not in cli("run", library).stdout
    assert cli("run", library, "--start", "hot").returncode == 2
