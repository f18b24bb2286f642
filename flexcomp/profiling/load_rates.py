"""The table of how fast a device loads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table

from flexcomp.units import human_bytes

from .observing import LoadTime


def load_table(loads: Sequence[LoadTime]) -> Table:
    """How fast loads are by their size."""
    table = Table(title="loads by size")
    for name in ("up to", "loads", "median time", "median rate"):
        table.add_column(name, justify="right")
    groups: dict[int, list[LoadTime]] = {}
    for load in loads:
        groups.setdefault(1 << (load.nbytes - 1).bit_length(), []).append(load)
    for size, members in sorted(groups.items()):
        seconds = statistics.median(load.seconds for load in members)
        rate = statistics.median(load.nbytes / load.seconds for load in members)
        table.add_row(human_bytes(size), str(len(members)), f"{seconds * 1e6:.0f} us", f"{rate / 1e6:.0f} MB/s")
    return table
