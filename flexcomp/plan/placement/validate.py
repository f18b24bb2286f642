"""Checks placements and assignments in quadratic time. Shares nothing with the methods that make them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .objects import Assignment
from .offsets import Placement
from .records import Record


def check_placement(records: Sequence[Record], placement: Placement) -> str | None:
    """None, or the first reason why offsets are wrong."""
    if len(placement.offsets) != len(records):
        return f"{len(placement.offsets)} offsets for {len(records)} records"
    used = [(i, records[i], at) for i, at in enumerate(placement.offsets) if records[i].nbytes]
    for index, record, at in used:
        if at < 0 or at % record.align:
            return f"record {index} at {at}: not a multiple of {record.align}"
        if at + record.nbytes > placement.nbytes:
            return f"record {index} at {at} ends beyond {placement.nbytes}"
    for (i, one, at), (j, other, there) in combinations(used, 2):
        same_time = one.start < other.end and other.start < one.end
        if same_time and at < there + other.nbytes and there < at + one.nbytes:
            return f"records {i} and {j} overlap"
    return None


def check_assignment(records: Sequence[Record], assignment: Assignment) -> str | None:
    """None, or the first reason why objects are wrong."""
    if len(assignment.objects) != len(records):
        return f"{len(assignment.objects)} objects for {len(records)} records"
    used = [(i, records[i], chosen) for i, chosen in enumerate(assignment.objects) if records[i].nbytes]
    for index, record, chosen in used:
        if not 0 <= chosen < len(assignment.sizes):
            return f"record {index} has no object"
        if record.nbytes > assignment.sizes[chosen]:
            return f"record {index} is larger than its object {chosen}"
    for (i, one, chosen), (j, other, also) in combinations(used, 2):
        if chosen == also and one.start < other.end and other.start < one.end:
            return f"records {i} and {j} share object {chosen} at the same time"
    return None
