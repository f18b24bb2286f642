"""Tensor usage records and facts that hold for every placement.

Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), section 3.
Times here are half-open, the paper's inclusive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..problem import ALIGN


@dataclass(frozen=True)
class Record:
    """A tensor usage record: `nbytes` are needed during [start, end)."""

    start: int
    end: int
    nbytes: int
    align: int = ALIGN  # bytes; of the offset

    def meets(self, other: Record) -> bool:
        """Whether both need memory at some time."""
        return self.start < other.end and other.start < self.end


def profiles(records: Sequence[Record]) -> dict[int, list[int]]:
    """Per time at which some record starts: the live non-empty records (the paper's operator profile), as indices.

    Between two such times records only end, so nothing is lost.
    """
    live: dict[int, list[int]] = {record.start: [] for record in records if record.nbytes}
    times = sorted(live)
    for index, record in enumerate(records):
        if record.nbytes:
            for time in times[bisect_left(times, record.start) : bisect_left(times, record.end)]:
                live[time].append(index)
    return live


def breadths(records: Sequence[Record]) -> dict[int, int]:
    """Per time at which some record starts: the sum of the sizes of live records (the paper's operator breadth)."""
    return {time: sum(records[i].nbytes for i in live) for time, live in profiles(records).items()}


def naive(records: Iterable[Record]) -> int:
    """Bytes without any sharing."""
    return sum(record.nbytes for record in records)


def conflicts(records: Sequence[Record]) -> list[list[int]]:
    """Per record: the other non-empty records that are live at the same time as the record, at some time."""
    found: list[list[int]] = [[] for _ in records]
    lasting = [i for i, record in enumerate(records) if record.nbytes and record.start < record.end]
    live: list[int] = []
    for index in sorted(lasting, key=lambda i: records[i].start):
        live = [other for other in live if records[other].end > records[index].start]
        found[index] += live
        for other in live:
            found[other].append(index)
        live.append(index)
    for others in found:
        others.sort()
    return found


def order_by_size(records: Sequence[Record]) -> list[int]:
    """Largest first; among equals the longer-lived, then the earlier."""
    return sorted(
        range(len(records)),
        key=lambda i: (-records[i].nbytes, records[i].start - records[i].end, records[i].start, i),
    )


def order_by_breadth(records: Sequence[Record]) -> list[int]:
    """The records of the broadest time first, largest first within a time."""
    breadth = breadths(records)
    order: dict[int, None] = {}
    live = profiles(records)
    for time in sorted(breadth, key=lambda t: (-breadth[t], t)):
        for index in sorted(live[time], key=lambda i: (-records[i].nbytes, records[i].start, i)):
            order.setdefault(index)
    return [*order, *(i for i, record in enumerate(records) if not record.nbytes)]


def order_by_start(records: Sequence[Record]) -> list[int]:
    """In the order in which memory is first needed, largest first."""
    return sorted(range(len(records)), key=lambda i: (records[i].start, -records[i].nbytes, i))
