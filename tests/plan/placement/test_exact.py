from __future__ import annotations

import sys

import pytest
from hypothesis import example, given, settings

from flexcomp.plan.placement import (
    Placement,
    Record,
    check_placement,
    fit,
    greedy_by_breadth,
    greedy_by_size,
    lower_bound,
    smallest,
    strip_packing,
)

from .data import CAPACITY, LOWEST_FIT_IS_BEST, few_records, hard, many_records, optimum


@settings(max_examples=60)
@given(few_records)
@example(LOWEST_FIT_IS_BEST)
def test_the_exact_search_finds_the_optimum_of_brute_force(tensors: list[Record]) -> None:
    found = smallest(tensors, 10_000)
    assert check_placement(tensors, found.placement) is None
    assert found.optimal
    assert found.placement.nbytes == optimum(tensors)


@given(many_records)
def test_it_is_never_worse_than_greedy_nor_better_than_the_bound(tensors: list[Record]) -> None:
    found = smallest(tensors, 300)
    assert check_placement(tensors, found.placement) is None
    greedy = [method(tensors).nbytes for method in (greedy_by_size, greedy_by_breadth, strip_packing)]
    assert lower_bound(tensors) <= found.placement.nbytes <= min(greedy)


@pytest.mark.parametrize("name", "BCDEF")  # A takes more nodes than all others together
def test_hard_instances_fit(name: str) -> None:
    records = hard(name)
    placement, nodes = fit(records, CAPACITY, 60_000)
    assert placement is not None
    assert nodes < 60_000
    assert check_placement(records, placement) is None
    assert placement.nbytes <= CAPACITY < greedy_by_size(records).nbytes


def test_what_cannot_fit_is_proved_not_to() -> None:
    # A pinwheel: breadth 4 everywhere, but no placement within 4.
    pinwheel = [Record(0, 2, 192), Record(1, 3, 64), Record(2, 4, 192), Record(3, 5, 64), Record(4, 6, 192)]
    pinwheel += [Record(0, 1, 64), Record(1, 2, 0), Record(5, 6, 64)]
    found = smallest(pinwheel, 10_000)
    assert found.optimal
    assert found.placement.nbytes == optimum([record for record in pinwheel if record.nbytes])
    assert fit(pinwheel, found.placement.nbytes - 64, 10_000)[0] is None


def test_the_limit_on_nodes_is_kept_and_the_same_search_gives_the_same_placement() -> None:
    records = hard("A")
    assert fit(records, CAPACITY, 500) == (None, 500)
    assert fit(hard("F"), CAPACITY, 9000) == fit(hard("F"), CAPACITY, 9000)


def test_deep_searches_leave_the_recursion_limit_as_it_was() -> None:
    before = sys.getrecursionlimit()
    ladder = [Record(0, i + 1, 64) for i in range(1500)]  # every record rests on the one before it
    placement, _ = fit(ladder, lower_bound(ladder), 3000)
    assert placement is not None
    assert sys.getrecursionlimit() == before


def test_nothing_to_place() -> None:
    assert smallest([], 10).placement == Placement((), 0)
    assert fit([], 0, 10) == (Placement((), 0), 0)
