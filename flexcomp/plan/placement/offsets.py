"""Offset calculation: tensor usage records → one offset each, for a small total.

Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), section 5:
greedy by size (5.2, Algorithm 3), greedy by breadth (5.3), and the lower bound (5.1). Both greedy
methods put a record into the smallest sufficient gap between the records that are placed already
and live at the same time, and differ in the order. Greedy in order is the paper's prior work
(Lee et al., "On-Device Neural Net Inference with Mobile GPUs", 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ..loops import in_python
from ..native import NativeRecords
from ..problem import ALIGN
from .records import Record, breadths, conflicts, order_by_breadth, order_by_size, order_by_start


@dataclass(frozen=True)
class Placement:
    """Offsets in bytes, one per record, and the bytes used in all."""

    offsets: tuple[int, ...]
    nbytes: int


def lower_bound(records: Sequence[Record]) -> int:
    """No placement is smaller than the largest breadth (section 5.1)."""
    return max(breadths(records).values(), default=0)


def place_in_order(records: Sequence[Record], order: Sequence[int]) -> Placement:
    """Place the records in `order`, each into the smallest sufficient gap (Algorithm 3, lines 6 to 23)."""
    return placing(records, conflicts(records))(order)


def placing(records: Sequence[Record], neighbours: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], Placement]:
    """`place_in_order` of any order of the same records, in C++ outside of `readable`; `neighbours` are their `conflicts`."""
    if in_python():
        return lambda order: _place_in_order(records, order, neighbours)
    native = NativeRecords(((record.nbytes, record.align) for record in records), neighbours)
    return lambda order: Placement(*native.place(order))


def _place_in_order(records: Sequence[Record], order: Sequence[int], neighbours: Sequence[Sequence[int]]) -> Placement:
    offsets = [-1] * len(records)
    total = 0
    for index in order:
        record = records[index]
        nbytes, align = record.nbytes, record.align
        occupied = sorted((offsets[other], records[other].nbytes) for other in neighbours[index] if offsets[other] >= 0)
        best, smallest, previous_end = -1, None, 0
        for offset, size in occupied:
            gap = offset - previous_end
            aligned = -(-previous_end // align) * align
            if aligned + nbytes <= offset and (smallest is None or gap < smallest):
                best, smallest = aligned, gap
            previous_end = max(previous_end, offset + size)
        if best < 0:
            best = -(-previous_end // align) * align
        offsets[index] = best
        total = max(total, best + nbytes)
    return Placement(tuple(offsets), total)


def lowest_fit(records: Sequence[Record], order: Sequence[int]) -> Placement:
    """Place the records in `order`, each at the lowest free offset (Greedy of Lee et al., 2019)."""
    neighbours = conflicts(records)
    offsets = [-1] * len(records)
    total = 0
    for index in order:
        record, offset = records[index], 0
        for start, size in sorted(
            (offsets[other], records[other].nbytes) for other in neighbours[index] if offsets[other] >= 0
        ):
            if offset + record.nbytes <= start:
                break
            offset = max(offset, -(-(start + size) // record.align) * record.align)
        offsets[index] = offset
        total = max(total, offset + record.nbytes)
    return Placement(tuple(offsets), total)


def greedy_by_size(records: Sequence[Record]) -> Placement:
    """Section 5.2, Algorithm 3."""
    return place_in_order(records, order_by_size(records))


def greedy_by_breadth(records: Sequence[Record]) -> Placement:
    """Section 5.3."""
    return place_in_order(records, order_by_breadth(records))


def greedy_in_order(records: Sequence[Record]) -> Placement:
    """Greedy of Lee et al. (2019): in the order of first use."""
    return place_in_order(records, order_by_start(records))


def search(records: Sequence[Record], rounds: int, granule: int = ALIGN) -> Placement:
    """The best of both greedy orders and of at most `rounds` changes to the better order.

    A change moves a record that ends at the top of the arena, or one below it, to an earlier turn:
    late records find only the gaps that others left. Stops at the lower bound, rounded up to
    `granule` bytes. Deterministic.
    """
    neighbours = conflicts(records)
    place = placing(records, neighbours)
    bound = -(-lower_bound(records) // granule) * granule
    tries = [(place(order), order) for order in (order_by_size(records), order_by_breadth(records))]
    best, order = min(tries, key=lambda one: one[0].nbytes)
    random = Random(0)
    for _ in range(rounds):
        if best.nbytes <= bound:
            break
        top = [i for i, record in enumerate(records) if best.offsets[i] + record.nbytes == best.nbytes]
        peak = random.choice(top)
        moved = random.choice([peak, peak, *neighbours[peak]])
        position = order.index(moved)
        if position == 0:
            continue
        target = random.randrange(position)
        changed = [*order[:target], moved, *order[target:position], *order[position + 1 :]]
        placement = place(changed)
        if placement.nbytes <= best.nbytes:
            best, order = placement, changed
    return best
