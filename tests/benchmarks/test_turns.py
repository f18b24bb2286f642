"""Which budgets of a ladder are measured."""

from types import SimpleNamespace

import pytest

from benchmarks.turns import evenly, serving
from flexcomp.errors import BudgetError


def test_budgets_are_as_many_times_each_other():
    """Of every budget wanted, the rung that it would be served by."""
    rungs = [100, 150, 210, 390, 450, 790, 1600]
    assert evenly(rungs, 5) == [100, 150, 390, 790, 1600]
    assert evenly(rungs, 2) == [100, 1600]
    assert evenly([100, 1600], 7) == [100, 1600]
    assert evenly([100], 7) == [100]


def test_one_budget_is_that_of_the_rung_that_serves_it():
    rungs = [SimpleNamespace(budget=budget) for budget in (100, 150, 400, 1600)]
    assert [serving(rungs, at) for at in ("25%", "0.2", "399", "min", "all")] == [400, 150, 150, 100, 1600]
    with pytest.raises(BudgetError):
        serving(rungs, "0.05")
