"""Recorded planning problems and small random ones."""

from __future__ import annotations

import csv
from pathlib import Path

from hypothesis import strategies as st

from flexcomp.plan.placement import Record

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
        st.sampled_from([64, 64, 128]),
    ),
    min_size=1,
    max_size=6,
)
