"""Preloading across the end of an inference: the first loads of the next one begin while this one computes.

At the end of an inference space falls free that no load of it needs any more, and the loader has nothing to
do; the next inference then starts with a wait. What is loaded at its start can be loaded ahead into such space,
if it is not touched until it is used: not at the end of this inference, not by outputs that are still to
be read or by inputs that the caller writes, and not in the steps of the next inference before its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ..parts.assemble import Place
from ..parts.pages import span
from ..parts.pieces import Piece
from ..parts.preload import Chooser, backwards, earliest_place, occupy, release


def begin_ahead(
    free: list[int], pieces: Sequence[Piece], places: Sequence[Place], choose: Chooser, within: int = -1
) -> list[Place]:
    """The places, those that are loaded at the start moved, within a set of pages, so that their loads can begin before that.

    `free` holds what is free at every step, with all the places taken out, and at its end what is free between
    two inferences.
    """
    early = sum(1 for _ in takewhile(lambda place: place.after == 0, places))
    moved = _moved(list(free), pieces, places, early, choose, within)
    return moved if moved is not None else _prolonged(free, pieces, places, early)


def _moved(
    free: list[int], pieces: Sequence[Piece], places: Sequence[Place], early: int, choose: Chooser, within: int
) -> list[Place] | None:
    """The first `early` pieces placed anew, each as early as possible; None if they no longer fit."""
    steps = len(free) - 1
    result = list(places)
    for piece, place in zip(pieces[:early], places, strict=False):
        release(free, 0, piece.end, place.first, piece.pages)
    ahead, after = True, 0  # no load starts before the one in front of it
    for index, piece in enumerate(pieces[:early]):
        if ahead:
            window = free[steps] & within
            for time in range(piece.end):
                window &= free[time]
            found = backwards(free, window, steps, max(after, piece.end), piece.pages)
            if found is None:
                ahead, after = False, 0
        if not ahead:
            found = earliest_place(free, piece.step, piece.end, after, piece.pages)
            if found is None or (early < len(places) and found[0] > places[early].after):
                return None
        after, possible = found
        first = choose(possible, piece.pages)
        occupy(free, 0 if ahead else after, piece.end, first, piece.pages)
        if ahead:
            occupy(free, after, steps + 1, first, piece.pages)
        result[index] = Place(after, first, ahead)
    return result


def _prolonged(free: Sequence[int], pieces: Sequence[Piece], places: Sequence[Place], early: int) -> list[Place]:
    """The first `early` places as they are, as long before the inference as they are free."""
    steps = len(free) - 1
    result = list(places)
    before = 0
    for index, piece in enumerate(pieces[:early]):
        place = span(places[index].first, piece.pages)
        after = steps + 1
        while after > max(before, piece.end) and free[after - 1] & place == place:
            after -= 1
        if after > steps:
            break
        before = after
        result[index] = Place(after, places[index].first, ahead=True)
    return result
