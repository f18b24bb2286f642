"""Calls the processes of the engines: conversion, and one measurement each time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.peers import ENGINES, Engine
from benchmarks.peers.conditions import observed
from benchmarks.peers.environment import python_of
from benchmarks.peers.page_cache import StillCached, forget
from benchmarks.peers.summary import Run

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 900  # seconds of one process


class EngineFailure(RuntimeError):
    """An engine could not convert or run the model."""


@dataclass
class Workplace:
    """The files of one network: model, inputs, and a folder for each engine."""

    folder: Path
    threads: int
    reference: list[np.ndarray] = field(default_factory=list)

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def inputs(self) -> Path:
        return self.folder / "inputs.npz"

    def of(self, engine: Engine, cached: bool = False) -> Path:
        """The place of the engine's converted model, with its cache if `cached`."""
        of_threads = f"-{self.threads}" if cached or engine.converts_per_threads else ""
        return self.folder / f"{engine.name}{'-cached' * cached}{of_threads}"

    def convert(self, name: str, cached: bool = False) -> None:
        """Let the engine convert the model, unless it has done so. Raises EngineFailure."""
        folder = self.of(ENGINES[name], cached)
        complete = folder / "complete"  # caches hold their path: the complete folder cannot be moved
        if complete.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            self._call(name, "convert", self.model, folder, self.inputs, *["--cached"] * cached)
        except EngineFailure:
            shutil.rmtree(folder)
            raise
        complete.touch()

    def measure(self, name: str, seconds: float, budget: int | None = None) -> Run:
        """Load and time the model in a fresh process, with its files out of the page cache. Raises EngineFailure."""
        folder, outputs = self.of(ENGINES[name]), self.folder / "outputs.npz"
        outputs.unlink(missing_ok=True)
        try:
            forget(folder)
        except StillCached as error:
            raise EngineFailure(str(error)) from None
        options = ["--seconds", str(seconds)] + ([] if budget is None else ["--budget", str(budget)])
        with observed() as conditions:
            reply = self._call(name, "measure", folder, self.inputs, outputs, *options)
        said = json.loads(reply.splitlines()[-1])
        with np.load(outputs) as file:
            found = [file[key] for key in file.files]
        if not self.reference:
            self.reference = found
        error = largest_error(found, self.reference)
        return Run(said["latency_ms"], said["cold_ms"], said["memory_bytes"], error, said["version"], conditions)

    def command(self, name: str, task: str, *args: str | Path) -> tuple[list[str], dict[str, str]]:
        """The command and environment of an engine's process."""
        python = python_of(ENGINES[name])
        command = [str(python), "-m", f"benchmarks.peers.{name}", task, *map(str, args)]
        command += ["--threads", str(self.threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": str(ROOT)}
        # MNN's converter runs `pip install` for its telemetry: in its own environment, not in the one that PATH begins with.
        environment["PATH"] = os.pathsep.join([str(python.parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)])
        return command, environment

    def _call(self, name: str, task: str, *args: str | Path) -> str:
        command, environment = self.command(name, task, *args)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise EngineFailure(f"{task}: not done after {TIMEOUT} s") from None
        if done.returncode:
            raise EngineFailure(f"{task}: {last_words(done.stderr, done.returncode)}")
        return done.stdout


def last_words(stderr: str, code: int) -> str:
    """A process's own reason for its end."""
    return (stderr.strip().splitlines() or [f"ended with code {code}"])[-1]


def largest_error(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest absolute difference over the largest absolute expected value; axes of extent 1 do not matter."""
    if len(found) != len(expected):
        return float("inf")
    worst = 0.0
    for got, want in zip(found, expected, strict=True):
        if np.squeeze(got).shape != np.squeeze(want).shape or not np.isfinite(got).all():
            return float("inf")
        scale = float(np.abs(want).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(np.squeeze(got) - np.squeeze(want)).max(initial=0.0)) / scale)
    return worst

