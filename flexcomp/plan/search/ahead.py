"""Preloading across the end of an inference: the first loads of the next one begin while this one computes.

Toward the end of an inference some space is no longer needed and the loader idles; the next inference then starts with a
wait. The next inference's first weights can be loaded ahead into such space, if the space stays untouched until their step: by
the end of this inference, by outputs still to be read, by inputs that the caller writes, and by earlier steps of the
next inference.
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
    """The places; pieces loaded at the start move, within a set of pages, so that their loads can begin earlier.

    `free` holds the free pages at every step, without the places, and last the pages that are free between two inferences.
    """
    early = sum(1 for _ in takewhile(lambda place: place.after == 0, places))
    moved = _moved(list(free), pieces, places, early, choose, within)
    return moved if moved is not None else _prolonged(free, pieces, places, early)


def _moved(
    free: list[int], pieces: Sequence[Piece], places: Sequence[Place], early: int, choose: Chooser, within: int
) -> list[Place] | None:
    """The first `early` pieces placed anew, each as early as possible; None if one no longer fits."""
    steps = len(free) - 1
    result = list(places)
    for piece, place in zip(pieces[:early], places, strict=False):
        release(free, 0, piece.end, place.first, piece.pages)
    ahead, after = True, 0  # no load starts before its predecessor
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
    """The first `early` places unchanged, loaded as early in the previous inference as each place is free."""
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
