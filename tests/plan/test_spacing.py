"""Budgets that deserve rungs: no plan between two would be much faster than the smaller one."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.plan import PAGE, ladder, plan, simulate
from flexcomp.plan.spacing import NEARLY, PAYS, far_between, first_budgets, further_budgets, worthwhile

from . import networks


def test_the_first_budgets_are_whole_pages_at_even_distances() -> None:
    budgets = first_budgets(100 * PAGE, 1000 * PAGE)
    assert (budgets[0], budgets[-1]) == (100 * PAGE, 1000 * PAGE)
    assert all(budget % PAGE == 0 for budget in budgets)
    assert all(one < other <= 1.2 * one for one, other in pairwise(budgets))
    assert first_budgets(100 * PAGE, 101 * PAGE) == [100 * PAGE, 101 * PAGE]
    assert first_budgets(5 * PAGE, 5 * PAGE) == [5 * PAGE]
    assert all(budget % (4 * PAGE) == 0 for budget in first_budgets(100 * PAGE, 1000 * PAGE, 4 * PAGE))
    seen = {100 * PAGE: 2.0, 104 * PAGE: 1.0}
    assert further_budgets(seen) and not further_budgets(seen, 4 * PAGE)
    assert worthwhile({100 * PAGE: 1.05, 104 * PAGE: 1.03, 108 * PAGE: 1.0}, (), 4 * PAGE) == [100 * PAGE, 108 * PAGE]


@given(st.lists(st.floats(0, 10), min_size=2, max_size=300), st.lists(st.integers(0, 299), max_size=3))
def test_between_two_rungs_nothing_is_much_faster(by_page: list[float], asked: list[int]) -> None:
    """`by_page` are the latencies of the budgets of one page more each; only those that are looked at are known."""
    every = {PAGE * (page + 1): latency for page, latency in enumerate(by_page)}
    wanted = set(first_budgets(PAGE, max(every))) | {PAGE * (page + 1) for page in asked if page < len(by_page)}
    kept_anyway = wanted - set(first_budgets(PAGE, max(every)))
    seen: dict[int, float] = {}
    while wanted:
        assert not wanted & seen.keys()
        seen |= {budget: every[budget] for budget in wanted}
        wanted = set(further_budgets(seen))
    best = dict(zip(sorted(seen), accumulate((seen[budget] for budget in sorted(seen)), min), strict=True))
    for smaller, larger in pairwise(best):
        assert larger <= max(1.04 * smaller, smaller + PAGE) or best[smaller] <= NEARLY * min(seen.values())
    rungs = worthwhile(best, kept_anyway)
    assert {min(every), max(every), *kept_anyway} <= set(rungs) <= set(seen)
    for smaller, larger in pairwise(rungs):
        if larger - smaller > PAGE:  # all that was seen between them, and just below the larger one
            inner = [best[budget] for budget in best if smaller < budget < larger]
            assert best[smaller] <= PAYS * min(inner, default=best[smaller])
            before = max(budget for budget in best if budget < larger)
            assert larger - before == PAGE or best[smaller] <= PAYS * best[larger]


def test_what_lies_between_rungs_far_apart_is_looked_at_again() -> None:
    assert far_between([100, 108, 122, 123], [100, 105, 108, 112, 115, 122, 123, 130]) == [112, 115]
    assert far_between([100], [100, 200]) == []


@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v2"])
def test_no_budget_runs_much_slower_than_a_plan_made_for_it(name: str) -> None:
    problem = getattr(networks, name)(networks.PHONE)
    rungs = [(rung.budget, simulate(problem, rung).latency) for rung in ladder(problem)]
    smallest, largest = rungs[0][0], rungs[-1][0]
    draw = np.random.default_rng(0)
    for budget in (smallest * (largest / smallest) ** draw.random(30)).astype(int).tolist():
        own = simulate(problem, plan(problem, budget)).latency
        used = next(latency for at, latency in reversed(rungs) if at <= budget)
        assert used <= 1.03 * own, budget
