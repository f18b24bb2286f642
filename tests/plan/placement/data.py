"""Recorded planning problems and small random ones."""

from __future__ import annotations

import csv
from pathlib import Path

from hypothesis import strategies as st

from flexcomp.plan.placement import Placement, Record, check_placement, lower_bound

DATA = Path(__file__).parent.parent / "data"
CAPACITY = 1 << 20  # of the hard instances


def usage(network: str) -> list[Record]:
    """Tensor usage records of Pisarchyk & Lee's networks; the files' last operator is inclusive."""
    with open(DATA / "tensor-usage" / f"{network}.csv") as file:
        rows = csv.DictReader(file)
        return [Record(int(row["first_op"]), int(row["last_op"]) + 1, int(row["size"])) for row in rows]


def hard(name: str) -> list[Record]:
    """An instance of minimalloc."""
    with open(DATA / "minimalloc" / f"{name}.{CAPACITY}.csv") as file:
        rows = csv.DictReader(file)
        return [Record(int(row["lower"]), int(row["upper"]), int(row["size"]), 1) for row in rows]


def optimum(records: list[Record]) -> int:
    """The smallest arena, by trying every offset in units of 64 bytes."""

    def fits(limit: int, offsets: list[int]) -> bool:
        if len(offsets) == len(records):
            return True
        record = records[len(offsets)]
        return any(
            fits(limit, [*offsets, offset])
            for offset in range(0, limit - record.nbytes + 1, record.align)
            if check_placement(records[: len(offsets) + 1], Placement((*offsets, offset), limit)) is None
        )

    limit = lower_bound(records)
    while not fits(limit, []):
        limit += 64
    return limit


many_records = st.lists(
    st.builds(
        lambda start, length, units, align: Record(start, start + length, 64 * units, align),
        st.integers(0, 6),
        st.integers(1, 5),
        st.integers(0, 5),
        st.sampled_from([64, 64, 256]),
    ),
    min_size=1,
    max_size=24,
)
few_records = st.lists(
    st.builds(
        lambda start, length, units, align: Record(start, start + length, 64 * units, align),
        st.integers(0, 4),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([64, 64, 128, 256]),
    ),
    min_size=1,
    max_size=6,
)
# Each as low as it goes, in this order, these take less than by the greedy methods and the search of orders.
LOWEST_FIT_IS_BEST = [
    Record(*record)
    for record in (
        (0, 1, 128, 64), (0, 1, 128, 256), (0, 1, 192, 64), (0, 2, 192, 64),
        (1, 2, 64, 256), (1, 2, 320, 64), (1, 2, 64, 256),
    )
]  # fmt: skip
