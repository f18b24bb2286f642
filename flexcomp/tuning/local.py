"""Measuring on the machine that tunes."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flexcomp.device import CompileTarget, resolve_target
from flexcomp.errors import TuningError
from flexcomp.tuning.clock import time_here
from flexcomp.tuning.trial import TrialLibrary
from flexcomp.tuning.workers import Workers, outcome


@dataclass(frozen=True)
class Measurement:
    """The result of a trial: exactly one of `seconds` and `error` is there."""

    device: str
    seconds: float | None = None
    error: str | None = None


class Devices(Protocol):
    """Something that measures trials; several devices measure several at a time."""

    count: int

    def measure(self, libraries: Sequence[TrialLibrary]) -> Iterator[tuple[int, Measurement]]:
        """Measure all, yielding (index, measurement) in order of completion. Raises TuningError if no device is left."""

    def close(self) -> None:
        """Give everything back."""


class ThisMachine:
    """One trial after the other, in a process of its own, with nothing else of the tuner running."""

    count = 1

    def __init__(self, target: CompileTarget, data: Path, threads: int, timeout_s: float) -> None:
        _require_native(target)
        self._data, self._threads = str(data), threads
        self._name = _processor()
        self._workers = Workers(1, timeout_s)

    def measure(self, libraries: Sequence[TrialLibrary]) -> Iterator[tuple[int, Measurement]]:
        for index, library in enumerate(libraries):
            future = self._workers.submit(time_here, library.path, self._data, library.calls, self._threads)
            seconds, error = outcome(future, self._workers.timeout_s)
            yield index, Measurement(self._name, seconds, error)

    def close(self) -> None:
        self._workers.close()


def _require_native(target: CompileTarget) -> None:
    here = resolve_target("native")
    if target.arch != here.arch:
        reason = f"this machine is {here.arch}"
    elif missing := sorted(set(target.features) - set(here.features)):
        reason = f"this machine lacks {', '.join(missing)}"
    else:
        return
    raise TuningError(
        f'kernels for "{target}" cannot be measured here: {reason}; start an RPC server on the device and give '
        "the tuner its tracker (--rpc-tracker HOST:PORT --rpc-key KEY)"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
