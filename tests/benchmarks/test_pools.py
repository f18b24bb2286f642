"""The benchmarks of pools and servers run, on networks so small that no figure means anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))  # for the module `tiny`

import tiny as builder

from benchmarks.cgroup import is_available

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Three, whose larger rungs are faster."""

    def faster(program):
        most = max(rung.arena for rung in program.rungs)
        return replace(program, rungs=tuple(replace(r, predicted_s=1e-4 * (2 - r.arena / most)) for r in program.rungs))

    folder = tmp_path_factory.mktemp("pools")
    return [
        builder.export(folder / f"{name}.so", f"benchmark_{name}_", seed=seed, plan=faster).library
        for seed, name in enumerate(("one", "two", "three"))
    ]


def said_by(module: str, *arguments: object) -> str:
    """What it prints, though a limit may be exceeded by what is so small."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_memory(libraries):
    said = said_by("pooling", "memory", *libraries, "--requests", 60)
    assert said.count(", 0 wrong") == 1 + is_available()
    assert ("inside a group of" in said) == is_available()


def test_shares_lanes_and_deadlines(libraries):
    assert "; 0 outputs wrong" in said_by("pooling", "shares", *libraries, "--changes", 60)
    assert "; 0 outputs wrong" in said_by("pooling", "lanes", *libraries[:2], "--seconds", 0.3)
    said = said_by("pooling", "deadlines", *libraries, "--seconds", 0.3)
    assert "ms predicted" in said and said.count("1 at once") == said.count("4 at once") == 2
    assert "times the inferences of whole networks" in said_by("pooling", "evicting", *libraries[:2], "--seconds", 0.3)


def test_changing_conditions(libraries, tmp_path):
    said = said_by("changing", *libraries, "-o", tmp_path / "pool.png", "--budget", "4MB", "--seconds", 1.5)
    assert (tmp_path / "pool.png").stat().st_size > 0 and said.count("answers") == 3


def test_scenarios(libraries, tmp_path):
    for library, network in zip(libraries, ("yolo_v3", "resnet101"), strict=False):
        shutil.copy(library, tmp_path / f"{network}.tmpfs.best.so")
        shutil.copy(library.with_suffix(".weights"), tmp_path / f"{network}.weights")
    # Whole networks are opened by the bytes of a rung, which these, planned by hand, need a few more than.
    options = ["--scenarios", "uav", "--storage", "tmpfs", "--budgets", "least,1e-2", "--servers", "shared,everything"]
    said = said_by("scenarios", tmp_path, *options, "--rounds", 1, "--seconds", 2)
    assert "uav, tmpfs" in said and "bursts" in said


@pytest.mark.skipif(not is_available(), reason="no memory control groups here")
def test_a_servers_memory(libraries):
    said = said_by("served_memory", *libraries, "--requests", 60)
    assert said.count(", 0 faults") == 2 and "inside a group of" in said
