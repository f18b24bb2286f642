"""Calls the processes of the engines: conversion, and one measurement each time.

Each engine has a virtual environment in the checkout's `.cache` folder: their packages do not get along.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.peers import ENGINES, Engine
from benchmarks.peers.machine import StillCached, forget, observed
from benchmarks.peers.summary import Run

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "peers"
TIMEOUT = 900  # seconds of one process


class EnvironmentFailure(RuntimeError):
    """An environment could not be made."""


def python_of(engine: Engine) -> Path:
    """The interpreter that runs the engine's processes."""
    return CACHE / engine.name / "bin" / "python" if engine.requirements else Path(sys.executable)


def install(engine: Engine) -> None:
    """Make the environment of `engine` unless ready. Raises EnvironmentFailure."""
    if not engine.requirements or (_marker(engine).is_file() and _marker(engine).read_text() == _wanted(engine)):
        return
    print(f"installing {engine.title}", file=sys.stderr, flush=True)
    folder = CACHE / engine.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    install = [str(python_of(engine)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, *engine.requirements])
    if engine.unaided:
        _run([*install, "--no-deps", *engine.unaided])
    _marker(engine).write_text(_wanted(engine))


def _marker(engine: Engine) -> Path:
    return CACHE / engine.name / "requirements.json"


def _wanted(engine: Engine) -> str:
    return json.dumps([*engine.requirements, *engine.unaided, f"python {sys.version_info[0]}.{sys.version_info[1]}"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"]
        raise EnvironmentFailure(next((line for line in lines if line.startswith("ERROR")), lines[-1]))


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
        command, environment = self.command(name, "convert", self.model, folder, self.inputs, *["--cached"] * cached)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=TIMEOUT
            )
            failure = last_words(done.stderr, done.returncode) if done.returncode else ""
        except subprocess.TimeoutExpired:
            failure = f"not done after {TIMEOUT} s"
        if failure:
            shutil.rmtree(folder)
            raise EngineFailure(f"convert: {failure}")
        complete.touch()

    def measure(self, name: str, seconds: float, budget: int | None = None) -> Run:
        """Load and time the model in a fresh process, with its files out of the page cache. Raises EngineFailure."""
        with Waiting(self, name, seconds, budget=budget) as waiting:
            waiting.until_ready()
            with observed() as conditions:
                try:
                    found = waiting.go()
                except StillCached as error:
                    raise EngineFailure(str(error)) from None
        if not self.reference:
            self.reference = found.outputs
        error = largest_error(found.outputs, self.reference)
        cold_ms, _, _, *latency_ms = found.inferences_ms
        return Run(latency_ms, cold_ms, found.memory_bytes, error, found.version, conditions)

    def command(self, name: str, task: str, *args: str | Path) -> tuple[list[str], dict[str, str]]:
        """The command and environment of an engine's process."""
        python = python_of(ENGINES[name])
        command = [str(python), "-m", f"benchmarks.peers.{name}", task, *map(str, args)]
        command += ["--threads", str(self.threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": str(ROOT)}
        # MNN's converter runs `pip install` for its telemetry: in its own environment, not in the one that PATH begins with.
        environment["PATH"] = os.pathsep.join([str(python.parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)])
        return command, environment


@dataclass(frozen=True)
class Start:
    """The report of a process."""

    inferences_ms: tuple[float, ...]  # the first with all preparations, and later ones
    memory_bytes: int  # peak over idle
    outputs: list[np.ndarray]  # of the first inference
    version: str


class Waiting:
    """A process that has imported an engine, and waits for the word to load a model, with the engine's cache if `cached`.

    So imports do not count, and engines can be imported in parallel before their turns.
    """

    def __init__(self, workplace: Workplace, name: str, seconds: float, cached: bool = False, budget: int | None = None) -> None:
        self.folder = workplace.of(ENGINES[name], cached)
        self._place = tempfile.TemporaryDirectory()
        self._outputs = Path(self._place.name) / "outputs.npz"
        options = ["--seconds", str(seconds)] + ([] if budget is None else ["--budget", str(budget)])
        command, environment = workplace.command(name, "run", self.folder, workplace.inputs, self._outputs, *options)
        self._ready = ""  # its report then
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment)

    def until_ready(self) -> None:
        """Wait until everything is imported, or that has failed, which `go` tells."""
        if not self._ready:
            self._ready = self._process.stdout.readline()

    def go(self) -> Start:
        """Begin when the engine's files are out of the page cache. Raises EngineFailure."""
        self.until_ready()
        forget(self.folder)
        try:
            said, complaints = self._process.communicate("go\n", timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise EngineFailure(f"run: not done after {TIMEOUT} s") from None
        if self._process.returncode:
            raise EngineFailure(f"run: {last_words(complaints, self._process.returncode)}")
        found = json.loads(said.splitlines()[-1])
        with np.load(self._outputs) as file:
            outputs = [file[key] for key in file.files]
        return Start(tuple(found["inferences_ms"]), found["memory_bytes"], outputs, found["version"])

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._place.cleanup()


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

