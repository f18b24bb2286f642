"""Which budgets of a ladder are measured."""

from benchmarks.turns import evenly


def test_budgets_are_as_many_times_each_other():
    """Of every budget wanted, the rung that it would be served by."""
    rungs = [100, 150, 210, 390, 450, 790, 1600]
    assert evenly(rungs, 5) == [100, 150, 390, 790, 1600]
    assert evenly(rungs, 2) == [100, 1600]
    assert evenly([100, 1600], 7) == [100, 1600]
    assert evenly([100], 7) == [100]
