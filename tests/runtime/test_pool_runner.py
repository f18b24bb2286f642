"""Several models in the runner."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from flexcomp import runtime_ext
from flexcomp.runtime import output_file
from tests.runtime import tiny as builder


def run(*args, code=0):
    done = subprocess.run(
        [str(runtime_ext.runner()), "--pool", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_models_take_turns_within_the_budget(tiny, other, tmp_path):
    least = run(tiny.library, other.library, "--budget", "4MB")["plan"]["least_bytes"]
    report = run(
        tiny.library, other.library, "--budget", least, "--repeat", 4, "--warmup", 1, "--seed", 3, "--output-dir", tmp_path,
        "--urgency", "other=2", "--rate", "tiny=200",
    )  # fmt: skip
    assert report["plan"]["bytes"] <= least
    assert report["peak_rss_bytes"] < report["idle_rss_bytes"] + least + (4 << 20)
    for name, network in (("tiny", tiny), ("other", other)):
        model = report["models"][name]
        assert len(model["latency_ms"]) == len(model["wait_ms"]) == 4 and model["refused"] == 0
        alone = subprocess.run(
            [str(runtime_ext.runner()), network.library, "--seed", "3", "--output-dir", tmp_path / f"{name}-alone"],
            check=True, capture_output=True,
        )  # fmt: skip
        assert alone.returncode == 0
        found, expected = (np.load(output_file(tmp_path / folder, "out")) for folder in (name, f"{name}-alone"))
        builder.close_to(found, expected)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 2, "--pool needs --budget"),
        (("--budget", "10%"), 2, "--pool needs --budget"),
        (("--budget", "1000"), 4, "too small for 1 model: the smallest that is enough"),
        (("--budget", "4MB", "--rate", "nobody=3"), 2, "--rate: there is no model nobody"),
        (("--budget", "4MB", "--urgency", "tiny=0"), 2, "--urgency takes a number above 0"),
        (("--budget", "4MB", "--lanes", "0"), 2, "a pool has 1 to 64 lanes"),
    ],
)
def test_wrong_uses(tiny, options, code, said):
    error = run(tiny.library, *options, code=code)
    assert error.startswith("error: ") and said in error and error.count("\n") == 1


def test_two_models_without_a_pool(tiny, other):
    done = subprocess.run(
        [str(runtime_ext.runner()), tiny.library, other.library], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--pool" in done.stderr
