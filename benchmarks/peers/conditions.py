"""What the machine was like while a process was measured.

Cores of a virtual machine are threads that its host moves about. While two of them run under different last-level
caches, everything that one thread writes and the other reads takes several times as long to arrive, and a network
on two threads up to 1.6 times as long, whatever the engine; this lasts for seconds. A guest does not see it, except
by the time that a cache line takes from core to core.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.peers.environment import CACHE

_SOURCE = Path(__file__).with_name("round_trip.cc")


@dataclass
class Conditions:
    """Filled in when a measurement ends."""

    round_trip_ns: tuple[float, ...] = ()  # between the two cores in use, before and after; empty with one thread
    steal: float = 0.0  # part of the processors' time that the host gave to others meanwhile


@contextmanager
def observed(threads: int) -> Iterator[Conditions]:
    """Note the conditions under which the body of the `with` statement runs."""
    conditions = Conditions()
    cores = sorted(os.sched_getaffinity(0))[:2] if threads > 1 else []
    before = round_trip_ns(*cores) if len(cores) == 2 else None
    ticks, stolen = _ticks()
    yield conditions
    ticks_after, stolen_after = _ticks()
    conditions.steal = (stolen_after - stolen) / max(ticks_after - ticks, 1)
    if before is not None:
        conditions.round_trip_ns = (before, round_trip_ns(*cores))


def round_trip_ns(core: int, other: int) -> float:
    """Nanoseconds that a cache line takes from one core to the other and back."""
    done = subprocess.run([_program(), str(core), str(other)], capture_output=True, text=True, check=True)
    return float(done.stdout)


@cache
def _program() -> Path:
    program = CACHE / f"round_trip-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        fresh = program.with_suffix(f".{os.getpid()}")
        options = ["-std=c++20", "-O2", "-pthread"]
        subprocess.run([os.environ.get("CXX", "g++"), *options, str(_SOURCE), "-o", str(fresh)], check=True)
        fresh.replace(program)
    return program


def _ticks() -> tuple[int, int]:
    """Time of all processors since the start, and what of it the host gave to others."""
    with open("/proc/stat") as file:
        spent = [int(word) for word in file.readline().split()[1:9]]
    return sum(spent), spent[7]
