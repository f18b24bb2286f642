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
    written = np.zeros(max((at + nbytes for at, nbytes in loads), default=0) // PAGE)  # when, in bytes loaded before it
    result = np.zeros(len(loads))
    now = 0
    for _ in range(2):  # the first lap leaves what the loads of the inference before wrote
        for number, (at, nbytes) in enumerate(loads):
            place = written[at // PAGE : (at + nbytes) // PAGE]
            times = np.arange(now, now + nbytes, PAGE)
            result[number] = (times - place).mean()
            place[:] = times
            now += nbytes
    return result
