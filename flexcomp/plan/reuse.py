"""How soon loads write again where they wrote before: what comes round within a cache's size is still in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .problem import PAGE


def reuse_distances(loads: Sequence[tuple[int, int]]) -> np.ndarray:
    """float64[loads]: bytes loaded since a byte of a load's place was last written, in the mean over its pages.

    `loads` are (arena address, nbytes) in whole pages, in their order, which is the same in every inference. Loads that go
    round in a part of the arena have its size as their distance; where a place is written once, it is all that is loaded.
    """
    # By page: bytes loaded before it was written, less its address, so that a load leaves one number in all of its pages.
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
