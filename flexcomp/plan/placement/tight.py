"""Placement in production: the cheapest method that reaches the bound, else the best of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .exact import improved
from .offsets import (
    Placement,
    greedy_by_breadth,
    greedy_by_size,
    greedy_in_order,
    lower_bound,
    lowest_fit,
    search,
)
from .records import Record, order_by_breadth, order_by_size, order_by_start
from .strip_packing import strip_packing

SEARCH_ROUNDS = 300  # changes of order tried where no greedy method reaches the bound
EXACT_NODES = 2000  # and nodes of the exact search after that; some 0.2 s


_SWIFT = (greedy_by_size, greedy_by_breadth, strip_packing)


def tight(records: Sequence[Record], granule: int) -> Placement:
    """A placement within the lower bound, rounded up to `granule` bytes, if one is found; else the smallest found.

    No other method takes fewer units of `granule` bytes; nor does any placement, where the exact search ends within its nodes.
    Greedy by size, greedy by breadth and strip packing reach the bound on most networks (Pisarchyk & Lee, Table 2).
    Deterministic.
    """
    bound = -(-lower_bound(records) // granule) * granule
    tried = []
    for method in (
        *_SWIFT,
        lambda every: search(every, SEARCH_ROUNDS, granule),
        greedy_in_order,
        *(_lowest_in(order) for order in (lambda every: range(len(every)), order_by_size, order_by_breadth, order_by_start)),
    ):
        tried.append(method(records))
        if tried[-1].nbytes <= bound:
            return tried[-1]
    return improved(records, min(tried, key=lambda placement: placement.nbytes), granule, EXACT_NODES).placement


def swiftly_fits(records: Sequence[Record], capacity: int, granule: int) -> bool | None:
    """Whether `tight` stays within `capacity` bytes, a multiple of `granule`; None where a quick look does not tell."""
    if lower_bound(records) > capacity:
        return False
    return True if any(-(-method(records).nbytes // granule) * granule <= capacity for method in _SWIFT) else None


def _lowest_in(order: Callable[[Sequence[Record]], Sequence[int]]) -> Callable[[Sequence[Record]], Placement]:
    return lambda records: lowest_fit(records, order(records))
