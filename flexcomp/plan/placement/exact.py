"""Exact search: whether all records fit into a capacity, and the smallest capacity.

A depth-first search over canonical placements (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
Hardware-Accelerated Machine Learning", 2023): every record lies as low as the records below allow, and records are
placed in the order of their offsets, ties by a static rank. A branch is cut where

- in some section of time the lowest offset still possible and the sizes still to come exceed the capacity;
- a record that was passed over cannot be lifted, or lifting it by its smallest neighbour exceeds the capacity;
- another record would fit entirely below the one to be placed;
- the record to be placed has no neighbour left: then this record is not to blame for the failure.

Parts of time that no unplaced record connects are searched on their own. The rank makes or breaks the
search, so the search restarts often: four rankings take turns, and each puts first the records of sections in which
its earlier runs failed (the idea of weighted degrees, Boussemart et al., 2004). Limits are in nodes, not seconds:
the same records always give the same placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np

from .offsets import Placement, greedy_by_breadth, greedy_by_size, lower_bound
from .records import Record
from .recursion import recursion
from .strip_packing import strip_packing

FIRST_RUN = 300  # nodes of the first runs, if that is enough for a placement
GROWTH = 1.2  # of a run's nodes, each time all rankings had their turn
DECAY = 0.5  # of the failures of earlier runs in a section, with each run
_NEVER = 1 << 60  # offset of a placed record in the table of possible offsets


class _OutOfNodes(Exception):
    pass


@dataclass(frozen=True)
class Found:
    """The result of the search for the smallest capacity."""

    placement: Placement
    optimal: bool  # no smaller one exists
    nodes: int


def smallest(records: Sequence[Record], nodes: int) -> Found:
    """The placement of the smallest capacity that at most `nodes` nodes find, starting from the greedy ones."""
    greedy = (greedy_by_size(records), greedy_by_breadth(records), strip_packing(records))
    best = min(greedy, key=lambda placement: placement.nbytes)
    granule = gcd(*(record.nbytes for record in records), *(record.align for record in records)) if records else 1
    return improved(records, best, granule, nodes)


def improved(records: Sequence[Record], best: Placement, granule: int, nodes: int) -> Found:
    """The placement of the fewest granules of `granule` bytes found in at most `nodes` nodes; `best` if none has fewer.

    Halves the interval between the lower bound and the best placement, from the bound on.
    """
    low = -(-lower_bound(records) // granule)  # in granules: everything below is impossible
    spent, proved, target = 0, True, low
    while low < -(-best.nbytes // granule) and spent < nodes:
        found, used = fit(records, target * granule, nodes - spent)
        spent += used
        if found is not None:
            best = found
        elif spent >= nodes:
            proved = False
        else:
            low = target + 1
        target = (low + -(-best.nbytes // granule)) // 2
    return Found(best, proved and low * granule >= best.nbytes, spent)


def fit(records: Sequence[Record], capacity: int, nodes: int) -> tuple[Placement | None, int]:
    """A placement within `capacity` bytes, and the nodes used.

    None with fewer than `nodes` nodes used means that there is none.
    """
    if any(record.nbytes > capacity for record in records):
        return None, 0
    offsets, spent = [0] * len(records), 0
    for part in _components(records):
        found, used = _Restarts([records[i] for i in part], capacity).run(nodes - spent)
        spent += used
        if found is None:
            return None, spent
        for index, offset in zip(part, found, strict=True):
            offsets[index] = offset
    total = max((at + record.nbytes for at, record in zip(offsets, records, strict=True)), default=0)
    return Placement(tuple(offsets), total), spent


def _components(records: Sequence[Record]) -> list[list[int]]:
    """Non-empty records in groups that no record of another group meets."""
    groups: list[list[int]] = []
    end = -1
    for index in sorted(range(len(records)), key=lambda i: records[i].start):
        record = records[index]
        if not record.nbytes:
            continue
        if record.start >= end or not groups:
            groups.append([])
        groups[-1].append(index)
        end = max(end, record.end)
    return groups


class _Restarts:
    """Runs of the search on one component, with a ranking each that learns from the runs before."""

    def __init__(self, records: Sequence[Record], capacity: int) -> None:
        self.records, self.capacity = records, capacity
        times = np.unique([time for record in records for time in (record.start, record.end)])
        self.low = np.searchsorted(times, [record.start for record in records])
        self.high = np.searchsorted(times, [record.end for record in records])
        self.sections = len(times) - 1
        self.total = np.zeros(self.sections, np.int64)
        for record, low, high in zip(records, self.low, self.high, strict=True):
            self.total[low:high] += record.nbytes
        nbytes = np.array([record.nbytes for record in records])
        width = np.array([record.end - record.start for record in records])
        self.ties: list[tuple[np.ndarray, np.ndarray]] = [  # second and third key of a ranking, the smaller the earlier
            (-width, -nbytes * width),
            (-nbytes * width, -width),
            (-nbytes, -width),
            (-width, -nbytes),
        ]

    def run(self, nodes: int) -> tuple[list[int] | None, int]:
        """Offsets, or None, and the nodes used."""
        if (self.total > self.capacity).any():
            return None, 0
        weights = [np.zeros(self.sections) for _ in self.ties]
        spent, limit, turn = 0, float(max(FIRST_RUN, len(self.records))), 0  # a placement is a node for every record
        while spent < nodes:
            which = turn % len(self.ties)
            order = self._ranking(weights[which], self.ties[which])
            search = _Search(self, order, min(int(limit), nodes - spent))
            found, complete = search.run()
            spent += search.used
            if found is not None:
                offsets = [0] * len(order)
                for rank, index in enumerate(order):
                    offsets[index] = int(found[rank])
                return offsets, spent
            if complete:
                return None, spent
            weights[which] = weights[which] * DECAY + search.failures
            turn += 1
            if turn % len(self.ties) == 0:
                limit *= GROWTH
        return None, spent

    def _ranking(self, weight: np.ndarray, ties: tuple[np.ndarray, np.ndarray]) -> list[int]:
        urgency = self.total / self.total.max() + weight / max(weight.max(), 1)
        most = [urgency[low:high].max() for low, high in zip(self.low, self.high, strict=True)]
        return np.lexsort([ties[1], ties[0], -np.array(most)]).tolist()


class _Search:
    """One run. Records are numbered by rank; sections are the times between which nothing starts or ends."""

    def __init__(self, task: _Restarts, order: Sequence[int], nodes: int) -> None:
        records = [task.records[i] for i in order]
        self.capacity, self.nodes, self.used = task.capacity, nodes, 0
        self.low, self.high = task.low[order], task.high[order]
        self.size = np.array([record.nbytes for record in records])
        self.align = np.array([record.align for record in records])
        self.meets = (self.low[:, None] < self.high) & (self.low < self.high[:, None])
        np.fill_diagonal(self.meets, False)
        self.lift = np.where(self.meets, self.size, _NEVER)  # row: sizes of the neighbours that could lift a record
        live = [np.flatnonzero((self.low <= section) & (section < self.high)) for section in range(task.sections)]
        self.members = np.concatenate(live)  # of all sections, one after the other
        self.first = np.concatenate([[0], np.cumsum([len(one) for one in live])])
        self.total = task.total.copy()  # per section: bytes still to be placed
        inner = np.arange(task.sections + 1)
        self.across = ((self.low < inner[:, None]) & (inner[:, None] < self.high)).sum(1)  # unplaced, per boundary
        self.lowest = np.zeros(len(records), np.int64)  # per record: the lowest offset still possible
        self.at = np.zeros(len(records), np.int64)
        self.failures = np.zeros(task.sections)

    def run(self) -> tuple[np.ndarray | None, bool]:
        """Offsets by rank if found; and whether the search came to its end."""
        with recursion(3 * len(self.size)):  # two calls a record and one for parts
            try:
                found = self._place(np.arange(len(self.size)), 0, len(self.total), 0, 0)
            except _OutOfNodes:
                return None, False
        return (self.at if found else None), True

    def _place(self, left: np.ndarray, start: int, end: int, floor: int, rank: int) -> bool:
        """Place the records `left`, which live in sections [start, end), from (`floor`, `rank`) upward."""
        if self.used >= self.nodes:
            raise _OutOfNodes
        self.used += 1
        lowest = self.lowest[left]
        passed = (lowest < floor) | ((lowest == floor) & (left < rank))
        possible = lowest
        if passed.any():
            over = np.flatnonzero(passed)
            possible = lowest.copy()
            possible[over] = floor + self.lift[np.ix_(left[over], left)].min(1)
            raised = self.lowest.copy()
            raised[left] = possible
            if not self._fits(raised, start, end, floor):
                return False
        below = int((possible + self.size[left]).min())
        for position in np.argsort(possible, kind="stable").tolist():
            if passed[position]:
                continue
            offset, one = int(lowest[position]), int(left[position])
            if offset >= below:
                break
            rest = np.delete(left, position)
            if self._try(one, offset, rest, start, end):
                return True
            if not self.meets[one][rest].any():
                break
        return False

    def _try(self, one: int, offset: int, rest: np.ndarray, start: int, end: int) -> bool:
        """Place record `one` and then the `rest`; undone if that fails."""
        before, low, high = self.lowest, self.low[one], self.high[one]
        top = -(-(offset + self.size[one]) // self.align) * self.align
        after = np.where(self.meets[one] & (before < top), top, before)
        after[one] = _NEVER
        self.total[low:high] -= self.size[one]
        found = False
        if self._fits(after, start, end, offset):
            self.lowest, self.at[one] = after, offset
            self.across[low + 1 : high] -= 1
            cuts = (np.flatnonzero(self.across[low + 1 : high] == 0) + low + 1).tolist()
            found = self._place_parts(rest, [start, *cuts, end], offset, one)
            self.across[low + 1 : high] += 1
            self.lowest = before
        self.total[low:high] += self.size[one]
        return found

    def _place_parts(self, left: np.ndarray, edges: list[int], floor: int, rank: int) -> bool:
        if len(edges) == 2:
            return not len(left) or self._place(left, *edges, floor, rank)
        for start, end in pairwise(edges):
            part = left[(self.low[left] >= start) & (self.high[left] <= end)]
            if len(part) and not self._place(part, start, end, 0, 0):
                return False
        return True

    def _fits(self, lowest: np.ndarray, start: int, end: int, floor: int) -> bool:
        """Whether no section needs more than the capacity; counts the failures of sections."""
        members = self.members[self.first[start] : self.first[end]]
        least = np.minimum.reduceat(lowest[members], self.first[start:end] - self.first[start])
        total = self.total[start:end]
        failed = (np.maximum(least, floor) + total > self.capacity) & (total > 0)
        if not failed.any():
            return True
        self.failures[start:end] += failed
        return False
