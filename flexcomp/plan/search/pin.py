"""Which segments stay in the arena between inferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add


def pin_in_order(nbytes: Sequence[int], capacity: int, owner: Sequence[int]) -> set[int]:
    """The first steps, as many as fit in `capacity`: nothing can be preloaded before an inference starts.

    `capacity` and the sizes have one unit, bytes or pages. `owner` is the first of the steps with the same weights, or the
    step itself: shared weights stay for all their steps, and count once. All functions here return owners.
    """
    return _fill(nbytes, range(len(nbytes)), capacity, owner)


def pin_small(nbytes: Sequence[int], capacity: int, owner: Sequence[int]) -> set[int]:
    """The smallest segments, as many as fit in `capacity`: the others take the fewest loads."""
    return _fill(nbytes, sorted(range(len(nbytes)), key=lambda step: (nbytes[step], step)), capacity, owner)


def most_read(nbytes: Sequence[int], capacity: int, owner: Sequence[int]) -> set[int]:
    """Segments of several steps, most readers first, as many as fit in `capacity`."""
    readers = Counter(owner)
    order = sorted((step for step in readers if readers[step] > 1), key=lambda step: (-readers[step], step))
    return _fill(nbytes, order, capacity, owner)


def _fill(nbytes: Sequence[int], order: Iterable[int], capacity: int, owner: Sequence[int]) -> set[int]:
    pinned: set[int] = set()
    for step in order:
        if owner[step] not in pinned and 0 < nbytes[step] <= capacity:
            pinned.add(owner[step])
            capacity -= nbytes[step]
    return pinned


def pin_evenly(
    nbytes: Sequence[int],
    seconds: Sequence[float],
    room: Sequence[int],
    capacity: int,
    bandwidth: float,
    costs: Sequence[float],
    kept: Sequence[float],
    owner: Sequence[int],
) -> set[int]:
    """Steps to pin such that the streamed segments arrive at an even rate.

    A leaky bucket: while a step computes, the loader earns bytes at some rate, up to the room for
    segments (`room`, per step). A step whose segment costs more than has been earned is pinned, the
    others are streamed. The rate is the smallest for which the pinned segments fit in `capacity`;
    the rest of `capacity` goes to the first streamed steps.
    A slow storage thus never idles, and with a fast one only loads that would be late are pinned.
    Sizes, `room`, `capacity` and `bandwidth` (per second) have one unit, bytes or pages. `costs` is the amount that the
    storage could read in the time of each load, `kept` the amount in the time that the loader still needs for a pinned step.
    """
    if not any(nbytes) or capacity <= 0:
        return set()
    computing = reduce(add, seconds)  # not by `sum`, which rounds otherwise from Python 3.12 on
    low, high = 0.0, 64 * max(bandwidth, sum(nbytes) / max(computing, 1e-9))
    best = _late(costs, kept, seconds, room, high, owner)
    if sum(nbytes[step] for step in best) > capacity:
        return pin_in_order(nbytes, capacity, owner)
    for _ in range(18):
        rate = (low + high) / 2
        pinned = _late(costs, kept, seconds, room, rate, owner)
        if sum(nbytes[step] for step in pinned) <= capacity:
            best, high = pinned, rate
        else:
            low = rate
    rest = capacity - sum(nbytes[step] for step in best)
    return best | pin_in_order([0 if owner[step] in best else size for step, size in enumerate(nbytes)], rest, owner)


def _late(
    costs: Sequence[float],
    kept: Sequence[float],
    seconds: Sequence[float],
    room: Sequence[int],
    rate: float,
    owner: Sequence[int],
) -> set[int]:
    """The steps whose segments cost more than a loader of `rate` bytes per second has earned.

    The rest at the end of an inference counts at the start of the next, as far as there is room.
    """
    earned, late = 0.0, set()
    for _ in range(2):
        late = set()
        for step, (cost, still, duration, limit) in enumerate(zip(costs, kept, seconds, room, strict=True)):
            if owner[step] in late or cost > max(earned, 0.0):
                late.add(owner[step])
                earned -= still
            else:
                earned -= cost
            earned += rate * duration
            if earned > limit:
                earned = limit
    return late
