"""Strip packing, best fit: Sekiyama et al., "Profile-Guided Memory Optimization for Deep Neural Networks" (2018).

Memory is a strip whose height grows, time its width. The lowest, then earliest, stretch of the skyline takes the
longest-lived record that lives within its times. Without such a record, the stretch is lifted to its lower neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence

from .offsets import Placement
from .records import Record


def strip_packing(records: Sequence[Record]) -> Placement:
    """Offsets in multiples of each record's alignment."""
    times = sorted({time for record in records for time in (record.start, record.end)})
    skyline = [(0, start, end) for start, end in zip(times[:1], times[-1:], strict=True)]  # height, from, to
    left = [i for i, record in enumerate(records) if record.nbytes]
    offsets = [0] * len(records)
    while left:
        place = min(range(len(skyline)), key=lambda i: skyline[i][:2])
        height, start, end = skyline[place]
        inside = [i for i in left if start <= records[i].start and records[i].end <= end]
        if not inside:
            skyline = _lift(skyline, place)
            continue
        best = min(inside, key=lambda i: (records[i].start - records[i].end, -records[i].nbytes, i))
        record = records[best]
        offsets[best] = -(-height // record.align) * record.align
        left.remove(best)
        pieces = [
            (height, start, record.start),
            (offsets[best] + record.nbytes, record.start, record.end),
            (height, record.end, end),
        ]
        skyline[place : place + 1] = [piece for piece in pieces if piece[1] < piece[2]]
    top = max((at + record.nbytes for at, record in zip(offsets, records, strict=True) if record.nbytes), default=0)
    return Placement(tuple(offsets), top)


def _lift(skyline: list[tuple[int, int, int]], place: int) -> list[tuple[int, int, int]]:
    """The skyline with a stretch raised to, and joined with, its lower neighbour."""
    _, start, end = skyline[place]
    neighbours = [i for i in (place - 1, place + 1) if 0 <= i < len(skyline)]
    other = min(neighbours, key=lambda i: (skyline[i][0], i))
    joined = (skyline[other][0], min(start, skyline[other][1]), max(end, skyline[other][2]))
    low, high = min(place, other), max(place, other) + 1
    return [*skyline[:low], joined, *skyline[high:]]
