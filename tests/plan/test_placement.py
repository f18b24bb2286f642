from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.plan.placement import (
    Placement,
    Record,
    greedy_by_breadth,
    greedy_by_size,
    lower_bound,
    lowest_fit,
    search,
)

DATA = Path(__file__).parent / "data"


def usage(network: str) -> list[Record]:
    """Tensor usage records of Pisarchyk & Lee's networks; the files' last operator is inclusive."""
    with open(DATA / f"{network}.csv") as file:
        rows = csv.DictReader(file)
        return [Record(int(row["first_op"]), int(row["last_op"]) + 1, int(row["size"])) for row in rows]


def valid(records: list[Record], placement: Placement) -> bool:
    items = list(zip(records, placement.offsets, strict=True))
    return all(
        at >= 0 and at % one.align == 0 and at + one.nbytes <= placement.nbytes for one, at in items
    ) and not any(
        one.start < other.end and other.start < one.end and at < there + other.nbytes and there < at + one.nbytes
        for index, (one, at) in enumerate(items)
        for other, there in items[:index]
    )


def optimum(records: list[Record]) -> int:
    """The smallest arena, by trying every offset in units of 64 bytes."""

    def fits(limit: int, offsets: list[int]) -> bool:
        if len(offsets) == len(records):
            return True
        record = records[len(offsets)]
        for offset in range(0, limit - record.nbytes + 1, 64):
            free = not any(
                record.start < other.end
                and other.start < record.end
                and offset < at + other.nbytes
                and at < offset + record.nbytes
                for other, at in zip(records, offsets, strict=False)
            )
            if free and fits(limit, [*offsets, offset]):
                return True
        return False

    limit = lower_bound(records)
    while not fits(limit, []):
        limit += 64
    return limit


records = st.lists(
    st.builds(
        lambda start, length, units, align: Record(start, start + length, 64 * units, align),
        st.integers(0, 6),
        st.integers(1, 5),
        st.integers(1, 5),
        st.sampled_from([64, 64, 256]),
    ),
    min_size=1,
    max_size=24,
)
few_records = st.lists(
    st.builds(
        lambda start, length, units: Record(start, start + length, 64 * units),
        st.integers(0, 4),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)


# (naive total, offset lower bound, greedy by size) in MiB: Tables 1 and 2 of the paper
@pytest.mark.parametrize(
    ("network", "naive", "bound", "by_size"),
    [
        ("mobilenet_v1", 19.248, 4.594, 4.594),
        ("mobilenet_v2", 26.313, 5.742, 5.742),
        ("posenet", 28.556, 6.271, 6.271),
        ("deeplab_v3", 48.642, 4.320, 4.653),
    ],
)
def test_published_figures(network: str, naive: float, bound: float, by_size: float) -> None:
    tensors = usage(network)
    placement = greedy_by_size(tensors)
    assert valid(tensors, placement)
    assert sum(record.nbytes for record in tensors) / 2**20 == pytest.approx(naive, abs=6e-4)
    assert lower_bound(tensors) / 2**20 == pytest.approx(bound, abs=6e-4)
    assert placement.nbytes / 2**20 == pytest.approx(by_size, abs=6e-4)


@pytest.mark.parametrize("network", ["mobilenet_v1", "mobilenet_v2", "posenet"])
def test_greedy_by_size_reaches_the_bound(network: str) -> None:
    tensors = usage(network)
    assert greedy_by_size(tensors).nbytes == lower_bound(tensors)


@pytest.mark.parametrize(
    ("network", "published"),
    [("mobilenet_v1", 4.594), ("mobilenet_v2", 5.742), ("deeplab_v3", 4.653), ("posenet", 7.359)],
)
def test_greedy_by_breadth_is_at_least_as_good_as_published(network: str, published: float) -> None:
    tensors = usage(network)
    placement = greedy_by_breadth(tensors)
    assert valid(tensors, placement)
    assert placement.nbytes / 2**20 <= published + 6e-4


def test_search_improves_on_greedy_where_greedy_misses_the_bound() -> None:
    tensors = usage("deeplab_v3")
    assert search(tensors, 300).nbytes < greedy_by_size(tensors).nbytes


@settings(deadline=None)
@given(records)
def test_every_method_gives_a_valid_placement_no_smaller_than_the_bound(tensors: list[Record]) -> None:
    by_size, by_breadth = greedy_by_size(tensors), greedy_by_breadth(tensors)
    searched = search(tensors, 20)
    for placement in (by_size, by_breadth, searched, lowest_fit(tensors, range(len(tensors)))):
        assert valid(tensors, placement)
        assert placement.nbytes >= lower_bound(tensors)
    assert searched.nbytes <= min(by_size.nbytes, by_breadth.nbytes)


@settings(max_examples=40, deadline=None)
@given(few_records)
def test_search_against_brute_force(tensors: list[Record]) -> None:
    assert lower_bound(tensors) <= optimum(tensors) <= search(tensors, 200).nbytes <= 1.34 * optimum(tensors)


def test_nothing_to_place() -> None:
    assert greedy_by_size([]) == greedy_by_breadth([]) == search([], 5) == Placement((), 0)
