"""Who starts cold, and how one start of each is measured.

Our process is `flexcomp-run` as on a device: its time begins before its start and ends when its report arrives, after the
output has been written. A peer's time begins when its process has imported everything, to its advantage. Code is in memory:
only models are out of the page cache, ours with their machine code.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cold.artifacts import Built
from benchmarks.peers import ENGINES
from benchmarks.peers.machine import back_memory, forget_files
from benchmarks.peers.measure import Waiting, last_words
from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError
from flexcomp.runtime import runner

_READ_NBYTES = 1 << 20  # of a request when bandwidth is measured
_LEAST, _MOST = 3, 40  # inferences after the third


@dataclass(frozen=True)
class Ours:
    """An artifact of ours and its way to run."""

    name: str
    weights: str | None = None  # as of `flexcomp.build`
    options: tuple[str, ...] = ()  # of the runner
    tolerance: float = 1e-3  # of the error, as for peers


@dataclass(frozen=True)
class Peer:
    """An engine, maybe with its cache."""

    engine: str
    cached: bool = False
    tolerance: float = 1e-3

    @property
    def name(self) -> str:
        return f"{self.engine} cached" if self.cached else self.engine


OURS = Ours("flexcomp")
WARM = Ours("flexcomp warm", options=("--start", "warm"))
INT8 = Ours("flexcomp int8", "int8", tolerance=0.1)
PEERS = tuple(
    Peer(name, cached)
    for name, engine in ENGINES.items()
    for cached in ((False, True) if engine.caches else (False,))
    if engine.is_peer
)

@dataclass(frozen=True)
class Began:
    """One start; times in milliseconds, of a process."""

    first_ms: float  # from its start to the first output
    later_ms: tuple[float, ...]  # inferences after the first
    outputs: list[np.ndarray]
    bandwidth: float | None = None  # of the storage in that minute, bytes per second, as our loader reads

    def figures(self) -> dict:
        """Without the outputs."""
        second, third, *rest = self.later_ms
        steady = statistics.median(rest or [third])
        found = {"first_ms": self.first_ms, "second_ms": second, "third_ms": third, "steady_ms": steady}
        return found | ({"bandwidth": self.bandwidth} if self.bandwidth else {})


def start_peer(waiting: Waiting, memory: int) -> Began:
    """`memory` bytes are backed before. Raises EngineFailure."""
    waiting.until_ready()
    back_memory(memory)
    found = waiting.go()
    first, *later = found.inferences_ms
    return Began(first, tuple(later), found.outputs)


def start_ours(
    ours: Ours, built: Built, inputs: dict[str, Path], outputs: Sequence[str], threads: int, seconds: float, memory: int
) -> Began:
    """Start twice: until the first output, which is written, and for the inferences that follow. Raises ArtifactError.

    `memory` bytes are backed before.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [str(runtime_ext.runner()), str(built.library), "--threads", str(threads), *ours.options]
        for name, path in inputs.items():
            command += ["--input", f"{name}={path}"]
        forget_files(built.files)
        back_memory(memory)
        first_ms, report = _timed([*command, "--output-dir", folder])
        found = [np.load(runner.output_file(folder, name)) for name in outputs]
        repeat = 3 + int(np.clip(1e3 * seconds / report["median_ms"], _LEAST, _MOST))
        forget_files(built.files)
        back_memory(memory)
        _, report = _timed([*command, "--repeat", str(repeat), "--read-rate", str(_READ_NBYTES)])
    return Began(first_ms, tuple(report["latency_ms"][1:]), found, report["read_bytes_per_s"])


def computing_ms(built: Built, threads: int, seconds: float) -> float:
    """The median latency with everything resident."""
    report = runner.run(built.library, budget="all", threads=threads, warmup=2, repeat=_LEAST)
    repeat = int(np.clip(1e3 * seconds / report["median_ms"], _LEAST, _MOST))
    return runner.run(built.library, budget="all", threads=threads, warmup=2, repeat=repeat)["median_ms"]


def _timed(command: Sequence[str]) -> tuple[float, dict]:
    """Milliseconds until a runner's report arrives, and the report."""
    report_out, report_in = os.pipe()
    with tempfile.TemporaryFile() as complaints:
        actions = [(os.POSIX_SPAWN_DUP2, report_in, 1), (os.POSIX_SPAWN_DUP2, complaints.fileno(), 2)]
        begin = time.perf_counter()
        process = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsigdef=[signal.SIGPIPE])
        os.close(report_in)
        with open(report_out, "rb") as pipe:
            said = pipe.readline()
            taken = time.perf_counter() - begin
        _, status = os.waitpid(process, 0)
        if code := os.waitstatus_to_exitcode(status):
            complaints.seek(0)
            raise ArtifactError(last_words(complaints.read().decode(), code).removeprefix("error: "))
    return 1e3 * taken, json.loads(said)
