"""The way to place records in production: the cheapest method that reaches the bound, else the best of all."""

from __future__ import annotations

from collections.abc import Sequence

from .exact import fit
from .offsets import Placement, greedy_by_breadth, greedy_by_size, lower_bound, search
from .records import Record
from .strip_packing import strip_packing

SEARCH_ROUNDS = 300  # changes of order tried where no greedy method reaches the bound
EXACT_NODES = 2000  # and nodes of the exact search, at the bound, after that; some 0.2 s


def tight(records: Sequence[Record], granule: int) -> Placement:
    """A placement within the lower bound, rounded up to `granule` bytes, if one is found; else the smallest found.

    Greedy by size, greedy by breadth and strip packing reach the bound on most networks (Pisarchyk & Lee, Table 2).
    Deterministic.
    """
    bound = -(-lower_bound(records) // granule) * granule
    tried = []
    for method in (
        greedy_by_size,
        greedy_by_breadth,
        strip_packing,
        lambda every: search(every, SEARCH_ROUNDS, granule),
    ):
        tried.append(method(records))
        if tried[-1].nbytes <= bound:
            return tried[-1]
    found, _ = fit(records, bound, EXACT_NODES)
    return found or min(tried, key=lambda placement: placement.nbytes)
