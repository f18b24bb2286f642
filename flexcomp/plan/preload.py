"""Weights planned after everything else: in use order, each segment as early as a place is free.

FlexNN's PRELOADWEIGHTS (Algorithm 1): among all places, take one that is free from the earliest step
on until the segment's step has ended. Loads run in order, so a segment never starts before the one in
front of it. Which of the equally early places is taken is the chooser's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import Unplaceable
from .pages import highest, lowest, span, starts

Chooser = Callable[[int, int], int]  # (set of possible first pages, number of pages) → first page


def choose_lowest(possible: int, count: int) -> int:
    """First fit from below."""
    return lowest(possible)


def choose_highest(possible: int, count: int) -> int:
    """First fit from above."""
    return highest(possible)


class Ring:
    """Next fit: behind the previous segment, or from the bottom again. Segments leave as they came."""

    def __init__(self) -> None:
        self.head = 0

    def __call__(self, possible: int, count: int) -> int:
        """The first possible page from the head on, or of all."""
        ahead = possible >> self.head
        first = self.head + lowest(ahead) if ahead else lowest(possible)
        self.head = first + count
        return first


def earliest_place(free: Sequence[int], step: int, earliest: int, count: int) -> tuple[int, int] | None:
    """(after, set of first pages) for `count` pages that are free from step `after` to `step` inclusive.

    `free` holds the free pages of every step; `after` is the smallest possible, at least `earliest`.
    None if there is no place even during `step` alone.
    """
    found = starts(free[step], count)
    if not found:
        return None
    # gallop backwards; `window` is what is free in [after, step]
    after, window, stride = step, free[step], 1
    while after > earliest:
        tried = max(earliest, after - stride)
        narrower = window
        for time in range(tried, after):
            narrower &= free[time]
        possible = starts(narrower, count)
        if possible:
            after, window, found = tried, narrower, possible
            stride *= 2
        elif after - tried == 1:
            break
        else:
            stride = (after - tried) // 2
            earliest = tried + 1  # [tried, step] has no place, so nothing earlier has one
    return after, found


def occupy(free: list[int], start: int, end: int, first: int, count: int) -> None:
    """Take pages [first, first + count) out of the free pages of steps [start, end)."""
    keep = ~span(first, count)
    for time in range(start, end):
        free[time] &= keep


def preload(free: list[int], counts: Sequence[int], choose: Chooser) -> list[tuple[int, int] | None]:
    """(after, first page) per step for the segments of `counts` pages; None where the count is 0.

    Takes the places out of `free`, the free pages per step. Raises Unplaceable with the step that has
    no place even without preloading.
    """
    result: list[tuple[int, int] | None] = []
    earliest = 0
    for step, count in enumerate(counts):
        if not count:
            result.append(None)
            continue
        place = earliest_place(free, step, earliest, count)
        if place is None:
            raise Unplaceable(f"no {count} free pages for the weights of step {step}")
        earliest, possible = place
        first = choose(possible, count)
        occupy(free, earliest, step + 1, first, count)
        result.append((earliest, first))
    return result
