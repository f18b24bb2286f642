"""Reuse distances of places in the arena: a place written again within a cache's size of loads is still in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .problem import PAGE


def reuse_distances(loads: Sequence[tuple[int, int]]) -> np.ndarray:
    """float64[loads]: bytes loaded since a byte of a load's place was last written, in the mean over its pages.

    `loads` are (arena address, nbytes) in whole pages, in order, the same in every inference. Loads that go round in a part
    of the arena have the size of that part as their distance. A place written once has the bytes of all loads.
    """
    # By page: bytes loaded before the write, less the page's address, so that a load leaves one number in all of its pages.
    written = np.zeros(max((at + nbytes for at, nbytes in loads), default=0) // PAGE)
    numbers, total = [], 0
    for at, nbytes in loads:
        written[at // PAGE : (at + nbytes) // PAGE] = total - at
        numbers.append(total - at)
        total += nbytes
    result = np.zeros(len(loads))
    for index, ((at, nbytes), number) in enumerate(zip(loads, numbers, strict=True)):
        place = written[at // PAGE : (at + nbytes) // PAGE]
        result[index] = total + number - np.add.reduce(place) / place.size
        place.fill(total + number)
    return result
