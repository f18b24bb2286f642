"""Starts of engines: a process that has imported everything waits for the word to begin.

So the cost of importing, for which no engine here is to blame, does not count, and engines can be imported in parallel
before the turns.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers import ENGINES
from benchmarks.peers.measure import ROOT, TIMEOUT, EngineFailure, Workplace, last_words
from benchmarks.peers.page_cache import forget


@dataclass(frozen=True)
class Start:
    """The report of a process; times in milliseconds."""

    inferences_ms: tuple[float, ...]  # the first with all preparations, and later ones
    outputs: list[np.ndarray]  # of the first inference
    version: str


class Waiting:
    """A process of the engine `name` that is ready to load a model, with its own cache if `cached`. Raises EngineFailure."""

    def __init__(self, workplace: Workplace, name: str, cached: bool, seconds: float) -> None:
        self.folder = workplace.of(ENGINES[name], cached)
        self._place = tempfile.TemporaryDirectory()
        self._outputs = Path(self._place.name) / "outputs.npz"
        command, environment = workplace.command(
            name, "start", self.folder, workplace.inputs, self._outputs, "--seconds", str(seconds)
        )
        self._ready = ""  # its report then
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment
        )

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
            raise EngineFailure(f"start: not done after {TIMEOUT} s") from None
        if self._process.returncode:
            raise EngineFailure(f"start: {last_words(complaints, self._process.returncode)}")
        found = json.loads(said.splitlines()[-1])
        with np.load(self._outputs) as file:
            outputs = [file[key] for key in file.files]
        return Start(tuple(found["starts_ms"]), outputs, found["version"])

    def close(self) -> None:
        """End the process unless ended."""
        self._process.kill()
        self._process.communicate()
        self._place.cleanup()
