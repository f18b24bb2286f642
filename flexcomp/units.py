"""Amounts of memory for people, in the user's own units: MiB, unless given in MB or bytes."""

from __future__ import annotations

from enum import Enum


class Units(Enum):
    """A way to write amounts of memory: the largest unit first, as (name, bytes)."""

    BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    DECIMAL = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    BYTES = frozenset()  # an empty tuple would be some object() in Python 3.11.2


def human_bytes(nbytes: float, units: Units = Units.BINARY) -> str:
    """1234567 → "1.18 MiB", "1.23 MB", "1,234,567 B"."""
    for name, size in units.value:
        if nbytes >= size:
            return f"{nbytes / size:.2f} {name}"
    return f"{nbytes:,.0f} B"


def enough(nbytes: int, units: Units = Units.BINARY) -> str:
    """As `human_bytes`, but rounded up: who gives this much has not given too little."""
    for name, size in units.value:
        if nbytes >= size:
            return f"{-(-nbytes * 100 // size) / 100:.2f} {name}"
    return f"{nbytes:,} B"
