"""The state of the machine while a process was measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Conditions:
    """Filled in when a measurement ends."""

    steal: float = 0.0  # part of the processors' time that the host gave to others meanwhile


@contextmanager
def observed() -> Iterator[Conditions]:
    """Note the conditions under which the body of the `with` statement runs."""
    conditions = Conditions()
    ticks, stolen = _ticks()
    yield conditions
    ticks_after, stolen_after = _ticks()
    conditions.steal = (stolen_after - stolen) / max(ticks_after - ticks, 1)


def _ticks() -> tuple[int, int]:
    """Time of all processors since the start, and the part of it that the host gave to others."""
    with open("/proc/stat") as file:
        spent = [int(word) for word in file.readline().split()[1:9]]
    return sum(spent), spent[7]
