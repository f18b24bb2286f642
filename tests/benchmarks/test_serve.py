"""The benchmark of the server runs, on networks so small that no figure means anything."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cgroup import is_available
from tests.runtime import tiny as builder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Two, whose larger rungs are faster."""

    def faster(program):
        most = max(rung.arena for rung in program.rungs)
        return replace(program, rungs=tuple(replace(r, seconds=1e-4 * (2 - r.arena / most)) for r in program.rungs))

    folder = tmp_path_factory.mktemp("served")
    return [
        builder.export(folder / f"{name}.so", f"benchmark_{name}_", seed=seed, plan=faster).library
        for seed, name in enumerate(("one", "two"))
    ]


def said_by(module: str, *arguments: object) -> str:
    """What it prints, though a limit may be exceeded by what is so small."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(not is_available(), reason="no memory control groups here")
def test_the_server(libraries, tmp_path):
    options = ["--rounds", 10, "--clients", 8, "--seconds", 0.5, "--requests", 60, "--json", tmp_path / "serve.json"]
    said = said_by("serve", *libraries, *options)
    assert said.count(", 0 faults") == 2 and "| triton |" in said and "| 200 |" in said
    titles = [next(iter(table["columns"])) for table in json.loads((tmp_path / "serve.json").read_text())["tables"]]
    assert titles == ["way", "status", "requests", "run"]
