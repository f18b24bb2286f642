"""An arena in two ranges: below a border what inferences work in, above it what stays from one to the next.

    x0 | pinned | x1 | kept | x2   →   x0 x1 x2 | pinned kept
                                       working    stays

What stays has its bytes to itself for good. So it can be taken out and all else moved down, by the same distance wherever two
things meet, and nothing meets that did not meet before. What stays, and so every distance, is whole pages: alignment stays, and
so do the loads that come round in a cache (`reuse.py`). Models that never run at the same time can share the memory of the first
range, each with a second one of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

from ..problem import PAGE, Plan, Problem
from .pages import pages


def in_two_ranges(problem: Problem, plan: Plan) -> Plan:
    """The plan with what stays behind all else, in the order of addresses; its arena is no larger than it was."""
    stays = sorted(plan.staying(problem))
    starts = [address for address, _ in stays]
    before = [0, *accumulate(nbytes for _, nbytes in stays)]  # bytes that stay, below each of them and in all

    def down(address: int) -> int:
        number = bisect_left(starts, address)
        if number == 0:
            return address
        start, nbytes = stays[number - 1]
        return address - before[number - 1] - min(nbytes, address - start)  # less where it has no bytes

    moved = replace(
        plan,
        tensor_at=tuple(at if one.stays else down(at) for at, one in zip(plan.tensor_at, problem.tensors, strict=True)),
        scratch_at=tuple(map(down, plan.scratch_at)),
        segments=tuple(one if one.pinned else replace(one, address=down(one.address)) for one in plan.segments),
    )
    working = pages(moved.worked_nbytes(problem)) * PAGE
    up = {address: working + below for address, below in zip(starts, before, strict=False)}
    segments = tuple(
        replace(one, address=up[one.address] if one.pinned else one.address, kept_at=up.get(one.kept_at, -1))
        for one in moved.segments
    )
    tensor_at = tuple(up[at] if one.stays else at for at, one in zip(moved.tensor_at, problem.tensors, strict=True))
    return replace(moved, arena=working + before[-1], working=working, tensor_at=tensor_at, segments=segments)
