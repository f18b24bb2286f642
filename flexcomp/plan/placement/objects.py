"""Shared objects: every record gets one of a set of buffers, alone at any time; the sum of their sizes is to be small.

Pisarchyk & Lee (2020), section 4: greedy by size (4.3, Algorithm 2), greedy by size improved (4.4), greedy by breadth
(4.2, Algorithm 1), the lower bound (4.1); greedy in order and min-cost flow are of Lee et al. (2019). For buffers
that are accessed as a whole, such as GPU textures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from .records import Record, order_by_breadth, order_by_size, order_by_start, profiles


@dataclass(frozen=True)
class Assignment:
    """The object of each record (-1 for an empty one) and the size of each object in bytes."""

    objects: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all objects."""
        return sum(self.sizes)


def positional_maxima(records: Sequence[Record]) -> list[int]:
    """Per position: the largest size that stands there in any profile sorted by size (section 3)."""
    sizes = [sorted((records[i].nbytes for i in live), reverse=True) for live in profiles(records).values()]
    longest = max(map(len, sizes), default=0)
    return [max(profile[i] for profile in sizes if i < len(profile)) for i in range(longest)]


def object_bound(records: Sequence[Record]) -> int:
    """No set of objects is smaller than the sum of the positional maxima (section 4.1)."""
    return sum(positional_maxima(records))


def assign_in_order(records: Sequence[Record], order: Sequence[int]) -> Assignment:
    """The smallest suitable object that is large enough, else the largest suitable one, enlarged, else a new one."""
    users: list[list[int]] = []
    sizes: list[int] = []
    objects = [-1] * len(records)
    for index in order:
        record = records[index]
        if not record.nbytes:
            continue
        suitable = [i for i, of in enumerate(users) if not any(record.meets(records[other]) for other in of)]
        enough = [i for i in suitable if sizes[i] >= record.nbytes]
        if enough:
            chosen = min(enough, key=lambda i: (sizes[i], i))
        elif suitable:
            chosen = max(suitable, key=lambda i: (sizes[i], -i))
            sizes[chosen] = record.nbytes
        else:
            chosen = len(users)
            users.append([])
            sizes.append(record.nbytes)
        users[chosen].append(index)
        objects[index] = chosen
    return Assignment(tuple(objects), tuple(sizes))


def objects_by_size(records: Sequence[Record]) -> Assignment:
    """Section 4.3, Algorithm 2."""
    return assign_in_order(records, order_by_size(records))


def objects_by_breadth(records: Sequence[Record]) -> Assignment:
    """Section 4.2, Algorithm 1."""
    return assign_in_order(records, order_by_breadth(records))


def objects_in_order(records: Sequence[Record]) -> Assignment:
    """Greedy of Lee et al. (2019): in the order of first use."""
    return assign_in_order(records, order_by_start(records))


def objects_by_size_improved(records: Sequence[Record]) -> Assignment:
    """Section 4.4: in stages by positional maximum, within a stage the pair that leaves the shortest idle time first."""
    users: list[list[int]] = []
    sizes: list[int] = []
    objects = [-1] * len(records)

    def idle(index: int, chosen: int) -> int | None:
        """Times between this use of the object and the nearest other; None if two uses meet."""
        record, gap = records[index], None
        for other in (records[i] for i in users[chosen]):
            if record.meets(other):
                return None
            between = max(record.start - other.end, other.start - record.end)
            gap = between if gap is None else min(gap, between)
        return gap

    for stage in _stages(records):
        left = list(stage)
        while left:
            pairs = [
                (gap, sizes[chosen], place, chosen)
                for place, index in enumerate(left)
                for chosen in range(len(users))
                if sizes[chosen] >= records[index].nbytes and (gap := idle(index, chosen)) is not None
            ]
            if pairs:
                _, _, place, chosen = min(pairs)
            else:
                place, chosen = 0, len(users)
                users.append([])
                sizes.append(records[left[0]].nbytes)
            index = left.pop(place)
            users[chosen].append(index)
            objects[index] = chosen
    return Assignment(tuple(objects), tuple(sizes))


def _stages(records: Sequence[Record]) -> list[list[int]]:
    """Records equal to a positional maximum, or between two, largest first."""
    maxima = sorted(set(positional_maxima(records)), reverse=True)
    stages: dict[int, list[int]] = {}
    for index in order_by_size(records):
        nbytes = records[index].nbytes
        if nbytes:
            larger = sum(maximum > nbytes for maximum in maxima)
            stages.setdefault(2 * larger + (nbytes not in maxima), []).append(index)
    return [stages[key] for key in sorted(stages)]


def min_cost_flow(records: Sequence[Record]) -> Assignment:
    """Min-cost flow of Lee et al. (2019), as an assignment problem.

    Every record either opens an object, at the cost of its size, or follows another record in its object, at the cost
    of the additional bytes.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    live = sorted((i for i, record in enumerate(records) if record.nbytes), key=lambda i: (records[i].start, i))
    if not live:
        return Assignment((-1,) * len(records), ())
    nbytes = np.array([records[i].nbytes for i in live])
    start, end = (np.array([getattr(records[i], name) for i in live]) for name in ("start", "end"))
    impossible = float(nbytes.sum() + 1)
    follow = np.where(end <= start[:, None], np.maximum(nbytes[:, None] - nbytes, 0), impossible)
    opens = np.where(np.eye(len(live), dtype=bool), nbytes, impossible)
    rows, columns = linear_sum_assignment(np.hstack([follow, opens]))
    objects, sizes = [-1] * len(records), []
    for row, column in zip(rows, columns, strict=True):  # in order of start: a predecessor already has its object
        if column < len(live):
            objects[live[row]] = objects[live[column]]
            sizes[objects[live[row]]] = max(sizes[objects[live[row]]], int(nbytes[row]))
        else:
            objects[live[row]] = len(sizes)
            sizes.append(int(nbytes[row]))
    return Assignment(tuple(objects), tuple(sizes))


def search_objects(records: Sequence[Record], rounds: int) -> Assignment:
    """The best of all orders and of at most `rounds` changes to the order of the best greedy one.

    A change moves a record to an earlier turn. Stops at the lower bound. Deterministic.
    """
    bound = object_bound(records)
    orders = [order_by_size(records), order_by_breadth(records), order_by_start(records)]
    best, order = min(((assign_in_order(records, one), one) for one in orders), key=lambda one: one[0].nbytes)
    others = min(objects_by_size_improved(records), min_cost_flow(records), key=lambda one: one.nbytes)
    random = Random(0)
    for _ in range(rounds):
        if best.nbytes <= bound:
            break
        position = random.randrange(1, len(order))
        target = random.randrange(position)
        changed = [*order[:target], order[position], *order[target:position], *order[position + 1 :]]
        assignment = assign_in_order(records, changed)
        if assignment.nbytes <= best.nbytes:
            best, order = assignment, changed
    return min(best, others, key=lambda one: one.nbytes)
