"""An arena in two ranges: inferences work below a border, and data that stays from one to the next lies above.

    x0 | pinned | x1 | kept | x2   →   x0 x1 x2 | pinned kept
                                       working    stays

Data that stays shares its bytes with nothing. So this data can be taken out and all else moved down. Overlapping objects move by
the same distance, and no others come to overlap. Data that stays, and so every distance, is whole pages: alignment stays, and
so do the loads that come round in a cache (`reuse.py`). Models that never run at the same time can share the memory of the first
range, each with a second one of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

from ..problem import PAGE, Plan, Problem, Segment
from .pages import pages


def in_two_ranges(problem: Problem, plan: Plan) -> Plan:
    """The plan with the data that stays above all else, in the order of addresses; the arena does not grow."""
    stays = sorted(plan.staying(problem))
    starts = [address for address, _ in stays]
    before = [0, *accumulate(nbytes for _, nbytes in stays)]  # bytes that stay, below each range and in all

    def down(address: int) -> int:
        number = bisect_left(starts, address)
        if number == 0:
            return address
        start, nbytes = stays[number - 1]
        return address - before[number - 1] - min(nbytes, address - start)  # less for an empty object inside a range

    worked = plan.worked_nbytes(problem)
    if stays and starts[0] < worked:  # else nothing else moves
        buffer_at = tuple(at if one.stays else down(at) for at, one in zip(plan.buffer_at, problem.buffers, strict=True))
        segments = tuple(one if one.pinned else _at(one, down(one.address), one.kept_at) for one in plan.segments)
        plan = replace(plan, buffer_at=buffer_at, scratch_at=tuple(map(down, plan.scratch_at)), segments=segments)
        worked = plan.worked_nbytes(problem)
    working = pages(worked) * PAGE
    up = {address: working + below for address, below in zip(starts, before, strict=False)}
    segments = tuple(
        _at(one, up[one.address] if one.pinned else one.address, up.get(one.kept_at, -1))
        if one.pinned or one.kept_at >= 0
        else one
        for one in plan.segments
    )
    buffer_at = tuple(up[at] if one.stays else at for at, one in zip(plan.buffer_at, problem.buffers, strict=True))
    return replace(plan, arena=working + before[-1], working=working, buffer_at=buffer_at, segments=segments)


def _at(segment: Segment, address: int, kept_at: int) -> Segment:
    """The segment with these addresses."""
    same = (address, kept_at) == (segment.address, segment.kept_at)
    return segment if same else segment._replace(address=address, kept_at=kept_at)
