"""Weights planned after everything else: in use order, each segment as early as a place is free.

FlexNN's PRELOADWEIGHTS (Algorithm 1): among all places, take one that is free from the earliest step
on until the segment's step has ended. Loads run in order, so a segment never starts before its
predecessor. The chooser picks one of the equally early places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import Unplaceable
from .assemble import Place
from .pages import highest, lowest, span, starts
from .pieces import Piece

Chooser = Callable[[int, int], int]  # (set of possible first pages, number of pages) → first page


def choose_lowest(possible: int, count: int) -> int:
    """First fit from below."""
    return lowest(possible)


def choose_highest(possible: int, count: int) -> int:
    """First fit from above."""
    return highest(possible)


class Ring:
    """Next fit: above the previous segment, or from the bottom again. Segments leave in the order of their loads."""

    def __init__(self) -> None:
        self.head = 0

    def __call__(self, possible: int, count: int) -> int:
        """The first possible page from the head on, or of all."""
        ahead = possible >> self.head
        first = self.head + lowest(ahead) if ahead else lowest(possible)
        self.head = first + count
        return first


def earliest_place(
    free: Sequence[int], start: int, end: int, earliest: int, count: int, within: int = -1
) -> tuple[int, int] | None:
    """(after, set of first pages) for `count` pages that are free at all times from `after` to `end`, exclusive.

    `free` holds the free pages of every step; `after` is the smallest possible from `earliest` to `start`.
    None if there is no place among the pages `within` even during steps [start, end) alone.
    """
    window = free[start] & within
    for time in range(start + 1, end):
        window &= free[time]
    return backwards(free, window, start, earliest, count)


def backwards(free: Sequence[int], window: int, start: int, earliest: int, count: int) -> tuple[int, int] | None:
    """The same for a place that must also lie in `window`, regardless of `free` from `start` on."""
    found = starts(window, count)
    if not found:
        return None
    # gallop backwards; `window` has the pages that are free from `after` on
    after, stride = start, 1
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
            earliest = tried + 1  # there is no place from `tried` on, so none from anything earlier on
    return after, found


def occupy(free: list[int], start: int, end: int, first: int, count: int) -> None:
    """Take pages [first, first + count) out of the free pages of steps [start, end)."""
    keep = ~span(first, count)
    for time in range(start, end):
        free[time] &= keep


def is_free(free: Sequence[int], start: int, end: int, first: int, count: int) -> bool:
    """Whether pages [first, first + count) are free in all steps [start, end)."""
    pageset = span(first, count)
    return all(free[time] & pageset == pageset for time in range(start, end))


def release(free: list[int], start: int, end: int, first: int, count: int) -> None:
    """The opposite of `occupy`."""
    pageset = span(first, count)
    for time in range(start, end):
        free[time] |= pageset


def preload(
    free: list[int], pieces: Sequence[Piece], choose: Chooser, within: int = -1, hold: bool = False
) -> tuple[list[Place], list[int]]:
    """A place for every piece, within a set of pages if one is free there when the piece is needed; and per piece its end.

    Takes the places out of `free`, the free pages per step. With `hold` a piece reuses the pages of an earlier piece with the
    same weights, where nothing has taken their place since: the earlier piece then ends later. No later piece loses its place
    by that: the hold ends with this piece. Raises Unplaceable with the step that has no place even without preloading.
    """
    result: list[Place] = []
    ends = [piece.end for piece in pieces]
    brought: dict[tuple[int, int, int], int] = {}
    earliest = 0
    for at, piece in enumerate(pieces):
        held = brought.get(piece.key, -1) if hold else -1
        if held >= 0 and is_free(free, ends[held], piece.end, result[held].first, piece.pages):
            occupy(free, ends[held], piece.end, result[held].first, piece.pages)
            ends[held] = piece.end
            result.append(Place(0, 0, again=held))
            continue
        brought[piece.key] = at
        found = earliest_place(free, piece.step, piece.end, earliest, piece.pages, within)
        if found is None and within != -1:
            found = earliest_place(free, piece.step, piece.end, earliest, piece.pages)
        if found is None:
            raise Unplaceable(f"no {piece.pages} free pages for the weights of step {piece.step}")
        earliest, possible = found
        first = choose(possible, piece.pages)
        occupy(free, earliest, piece.end, first, piece.pages)
        result.append(Place(earliest, first))
    return result, ends
