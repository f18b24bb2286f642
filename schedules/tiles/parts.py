"""How the work of a kernel is cut so that every thread gets the same share."""

from __future__ import annotations

import math

# A cut into more parts must shorten the longest share by this much: parts read the weights again.
_WORTHWHILE = 0.98
# At most this multiple of the parts that caches ask for, or of the threads.
_MOST_PARTS = 4


# How much longer the longest share may become for threads to keep their rows.
_WORTH_KEEPING = 1.02


def choose_parts(units: int, blocks: int, fewest: int, threads: int, keeps_rows: bool = False) -> int:
    """Into how many parts to cut `units` rows or tiles, each of which is computed for all of `blocks` blocks.

    A task is one part of one block, the block innermost; threads take consecutive tasks, the same number of each.
    Caches ask for `fewest` parts; there are more if the slowest thread has less to do then. With `keeps_rows` every
    thread gets whole parts if these divide evenly: its share is then a range of rows, the same in one layer as in the
    next, and the thread reads its own results, not those in another core's cache.
    """
    fewest = max(1, min(fewest, units))
    best, least = fewest, longest_share(units, blocks, fewest, threads)
    for parts in range(fewest + 1, min(units, _MOST_PARTS * max(fewest, threads)) + 1):
        share = longest_share(units, blocks, parts, threads)
        if share < _WORTHWHILE * least:
            best, least = parts, share
    whole = math.ceil(fewest / threads) * threads
    if keeps_rows and whole <= units and longest_share(units, blocks, whole, threads) <= _WORTH_KEEPING * least:
        return whole
    return best


def longest_share(units: int, blocks: int, parts: int, threads: int) -> int:
    """Units of the thread with the most to do."""
    each = math.ceil(parts * blocks / threads)
    base, larger = divmod(units, parts)

    def before(task: int) -> int:
        """Units of all tasks before `task`."""
        part, block = divmod(min(task, parts * blocks), blocks)
        return blocks * (part * base + min(part, larger)) + block * (base + (part < larger))

    return max(before((thread + 1) * each) - before(thread * each) for thread in range(threads))
