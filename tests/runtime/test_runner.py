import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError, BudgetError
from flexcomp.program.program import PAGE

COMMAND = [str(runtime_ext.runner())]


def run(*args, code=0):
    done = subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    if code == 0:
        return json.loads(done.stdout)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_it_says_when_others_have_its_core(tiny):
    core = str(min(os.sched_getaffinity(0)))
    others = [subprocess.Popen(["taskset", "-c", core, sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        done = subprocess.run(
            ["taskset", "-c", core, *COMMAND, tiny.library, "--threads", "1", "--repeat", "300"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        for other in others:
            other.kill()
            other.wait()
    report = json.loads(done.stdout)
    assert sum(report["core_wait_ms"]) > 0.1 * sum(report["latency_ms"])


def test_it_says_how_long_it_took_to_start(tiny):
    started = time.monotonic_ns()
    alone = run(tiny.library, "--warmup", 1)
    passed = (time.monotonic_ns() - started) * 1e-6
    assert 0 < alone["start_ms"] < passed - alone["first_ms"] and alone["first_ms"] == alone["warmup_ms"][0]
    early = run(tiny.library, "--started", started - 10**9)
    assert early["start_ms"] > 1000 and early["first_ms"] == early["latency_ms"][0]
    assert "--started takes a time before" in run(tiny.library, "--started", time.monotonic_ns() + 10**12, code=2)


def test_storage_is_busy_while_it_reads(tiny):
    report = run(tiny.library, "--budget", "min", "--repeat", 3, "--read-bandwidth", 10_000_000)
    assert all(read > 0.9 * nbytes / 1e4 for read, nbytes in zip(report["read_ms"], report["bytes_read"], strict=True))
    assert run(tiny.library, "--budget", "all", "--warmup", 1)["read_ms"] == [0]


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_outputs_and_report(tiny, x, tmp_path, rung):
    planned = tiny.program.rungs[rung]
    np.save(tmp_path / "x.npy", x)
    report = run(
        tiny.library, "--budget", planned.budget, "--threads", 2, "--repeat", 3, "--warmup", 2,
        "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path, "--verify",
    )  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), tiny.reference(x), rtol=1e-4, atol=1e-5)
    streamed = sum(load.nbytes for load in planned.loads if not load.pinned)
    assert report["bytes_read"] == [streamed] * 3
    assert len(report["latency_ms"]) == len(report["stall_ms"]) == 3 and len(report["warmup_ms"]) == 2
    assert report["median_ms"] == sorted(report["latency_ms"])[1]
    assert report["budget_bytes"] == planned.budget and report["arena_bytes"] == planned.arena
    assert report["rung"] == rung and report["threads"] == 2


def test_no_more_threads_than_cores(tiny):
    """Unless they are asked for."""
    core = str(min(os.sched_getaffinity(0)))
    for options, threads in ([], 1), (["--threads", "2"], 2):
        command = ["taskset", "-c", core, *COMMAND, tiny.library, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["threads"] == threads


def test_cores_can_be_named(tiny):
    core = min(os.sched_getaffinity(0))
    report = run(tiny.library, "--compute-cpus", core, "--loader-cpu", core)
    assert (report["compute_cpus"], report["loader_cpus"], report["threads"]) == ([core], [core], 1)
    assert run(tiny.library, "--no-affinity")["compute_cpus"] is None
    assert "cannot read the list of cores" in run(tiny.library, "--compute-cpus", "big", code=2)
    assert "only one of both" in run(tiny.library, "--compute-cpus", core, "--no-affinity", code=2)


def test_memory_is_the_arena(tiny):
    """Over the idle process the runner takes the arena and a small constant."""
    report = run(tiny.library, "--repeat", 5, "--budget", "min")
    assert report["idle_rss_bytes"] < 20e6
    assert report["peak_rss_bytes"] - report["idle_rss_bytes"] < report["arena_bytes"] + 1.5e6


def test_memory_returns_when_the_budget_shrinks(tiny):
    report = run(tiny.library, "--switch-budgets", 30, "--seed", 3)
    seen = {rung: [s["rss_bytes"] for s in report["switches"] if s["arena_bytes"] == rung] for rung in
            (tiny.program.rungs[0].arena, tiny.program.rungs[2].arena)}  # fmt: skip
    small, large = seen.values()
    assert max(small) + 500e3 < min(large)


def test_every_inference_gets_the_same_inputs(tiny, tmp_path):
    """They lie in the arena, where kernels may overwrite them."""
    outputs = []
    for options in (["--repeat", 1], ["--repeat", 3], ["--switch-budgets", 4], ["--budget", "min", "--warmup", 1]):
        run(tiny.library, "--output-dir", tmp_path, *options)
        outputs.append(np.load(tmp_path / "out.npy"))
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])


def test_random_inputs_are_seeded(tiny, tmp_path):
    outputs = []
    for seed in (1, 1, 2):
        run(tiny.library, "--seed", seed, "--output-dir", tmp_path, "--no-direct")
        outputs.append(np.load(tmp_path / "out.npy"))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])


def test_bandwidth_limit(tiny):
    """Of the whole process: one inference may find bytes that were read between it and the one before."""
    start = time.monotonic()
    report = run(tiny.library, "--budget", "min", "--read-bandwidth", "50e6", "--repeat", 16)
    assert time.monotonic() - start > 0.9 * sum(report["bytes_read"]) / 50e6 > 0.4


@pytest.mark.parametrize(
    "budget",
    ["min", "0.5", "1MB", "1MiB", "700kB", "1 MiB", " MIN ", "all", "None", "50%", "99.5 %", "1M", "700k", "1G", "800000"],
)
def test_budgets_are_read_as_in_python(tiny, budget):
    from flexcomp.runtime.budget import resolve

    budgets = [rung.budget for rung in tiny.program.rungs]
    nbytes = resolve(budget, budgets[0], tiny.program.default_budget, budgets[-1])
    report = run(tiny.library, "--budget", budget)
    assert report["asked_bytes"] == nbytes
    assert report["budget_bytes"] == max(b for b in budgets if b <= nbytes)
    assert report["next_budget_bytes"] == min((b for b in budgets if b > nbytes), default=None)


@pytest.mark.parametrize("budget", ["1000", "1kB", "1KiB", "0.1MB", "0.1 MiB", "0.1%", ".001"])
def test_refused_budgets_name_the_layer_as_in_python(tiny, budget):
    with pytest.raises(BudgetError) as caught:
        flexcomp.load(tiny.library, budget)
    assert run(tiny.library, "--budget", budget, code=4) == f"error: {caught.value}\n"
    assert "set by layer mv0: " in str(caught.value) and "scratch" not in str(caught.value)


@pytest.mark.parametrize("budget", ["-1", "1e6", "101%", "0", "1.5", "3 apples", "%", "99999999999999999999"])
def test_budgets_that_nobody_can_read(tiny, budget):
    assert "budget" in run(tiny.library, "--budget", budget, code=2)
    with pytest.raises(BudgetError):
        flexcomp.load(tiny.library, budget)


def test_failures(tiny, x, tmp_path):
    np.save(tmp_path / "short.npy", x[:100])
    np.save(tmp_path / "double.npy", x.astype("f8"))
    (tmp_path / "text.npy").write_text("hello")
    assert "which model" in run(code=2)
    assert "unknown option --colour" in run(tiny.library, "--colour", "red", code=2)
    assert "takes a number" in run(tiny.library, "--repeat", "many", code=2)
    for number in ("-1", "99999999999"):
        assert f"--repeat takes a number from 0 to 2147483647, not {number}" in run(tiny.library, "--repeat", number, code=2)
    twice = ["--input", f"x={tmp_path / 'short.npy'}"] * 2
    assert "the input x is given twice" in run(tiny.library, *twice, code=2)
    assert "no input called y" in run(tiny.library, "--input", "y=1.npy", code=2)
    assert "cannot read the budget" in run(tiny.library, "--budget", "lots", code=2)
    assert "a budget of 1,000 B is too small" in run(tiny.library, "--budget", "1000", code=4)
    assert "cannot open" in run(tmp_path / "nothing.so", code=4)
    assert "cannot open the weights file" in run(tiny.library, "--weights", tmp_path / "none", code=4)
    assert "expected '<f4' (256,)" in run(tiny.library, "--input", f"x={tmp_path / 'short.npy'}", code=2)
    assert "holds '<f8'" in run(tiny.library, "--input", f"x={tmp_path / 'double.npy'}", code=2)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "short.npy").read_bytes().replace(b"100,", b"256,"))
    assert "not as many bytes" in run(tiny.library, "--input", f"x={tmp_path / 'cut.npy'}", code=2)
    (tmp_path / "out.npy").mkdir()
    assert "cannot open" in run(tiny.library, "--output-dir", tmp_path, code=4)
    assert "is not a shared library" in run(tmp_path, code=4)
    os.mkfifo(tmp_path / "pipe.so")
    assert "is not a shared library" in run(tmp_path / "pipe.so", code=4)
    assert "not a .npy file" in run(tiny.library, "--input", f"x={tmp_path / 'text.npy'}", code=2)


@pytest.mark.parametrize("models", [["tiny"], ["--pool", "tiny", "--budget", "4MB"], ["--help"]])
def test_a_report_that_cannot_be_printed(tiny, models):
    words = [str(tiny.library) if word == "tiny" else word for word in models]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "error: cannot print the report: No space left on device\n")


@pytest.mark.parametrize("stripped", [False, True], ids=["as linked", "without its table of sections"])
def test_libraries_that_are_cut_short_are_refused(tiny, tmp_path, stripped):
    """The dynamic linker would map what is missing, and touching it ends the process."""
    raw = bytearray(tiny.library.read_bytes())
    sizes = [len(raw) * 3 // 4, len(raw) // 2, 5000, 100, 64, 20, 3, 0]
    if stripped:
        raw[40:48], raw[60:62] = bytes(8), bytes(2)  # of a 64-bit file
    else:
        sizes.append(len(raw) - 1)
    cut = tmp_path / "cut.so"
    for nbytes in sizes:
        cut.write_bytes(raw[:nbytes])
        message = run(cut, "--weights", tiny.weights, code=4)
        assert ("is cut short" if nbytes >= 64 else "is not a shared library") in message
        with pytest.raises(ArtifactError, match=r"is cut short|is not a shared library"):
            flexcomp.load(cut, weights=tiny.weights)
    foreign = bytearray(raw)
    foreign[18:20] = b"\xb7\0" if foreign[18] != 0xB7 else b"\x3e\0"
    cut.write_bytes(foreign)
    assert "compiled for another machine" in run(cut, "--weights", tiny.weights, code=4)


def test_a_cross_build_compiles_what_its_cache_looks_at(tmp_path):
    """And not the copies of the last installation, which may be older. tests/remote/test_server.py runs such an object."""
    log, compiler = tmp_path / "log", tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\ncat >>{log}\n")
    compiler.chmod(0o755)
    runtime_ext.build_runtime_object(str(compiler), tmp_path / "runtime.o")
    compiled = re.findall(r'#include "(.*)"', log.read_text())
    assert sorted(tmp_path.iterdir()) == [compiler, log]
    assert sorted(map(Path, compiled)) == [path for path in runtime_ext.sources() if path.suffix == ".cc"]


def test_a_compiled_runtime_of_another_version_is_told():
    with pytest.raises(OSError, match=r"compiled from another version of flexcomp, without flexcomp.program.9.*: run pip"):
        runtime_ext.function("flexcomp.program.9.create")


def test_budgets_switch_while_inferences_run(tiny):
    inferences = 0
    for _ in range(20):  # how many inferences fit beside 300 switches depends on the scheduler
        report = run(tiny.library, "--repeat", 20, "--switch-budgets", 300, "--callers", 3, "--threads", 2)
        assert report["concurrent"]["wrong"] == 0
        assert len(report["switches"]) == 300
        for switch in report["switches"]:
            assert switch["rss_bytes"] - report["idle_rss_bytes"] < switch["arena_bytes"] + 4 * 2**20
            assert switch["switch_ms"] < 1000  # the scheduler of a busy machine included
        inferences += report["concurrent"]["runs"]
        if inferences > 30:
            break
    assert inferences > 30
    assert "--callers needs --switch-budgets" in run(tiny.library, "--callers", 2, code=2)


@pytest.mark.parametrize("request_nbytes", [PAGE, 1 << 30])
def test_the_storage_is_measured_alone(tiny, x, request_nbytes):
    with flexcomp.load(tiny.library, "min", read_bandwidth=50e6) as session:
        before = session(x)
        # Slower where others want the processor too, never faster.
        assert 0 < session.read_rate(request_nbytes, 1 << 20) < 50e6 * 1.05
        np.testing.assert_array_equal(session(x), before)


def test_the_runner_measures_the_storage(tiny):
    assert run(tiny.library, "--budget", "min", "--read-rate", 1 << 16, "--read-bandwidth", 800e6)["read_bytes_per_s"] > 0
