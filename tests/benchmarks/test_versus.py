"""Budgets of two libraries that are compared."""

from benchmarks.lab.versus import budget_in_bytes

OLD, NEW = {"smallest": 4_000, "resident": 90_000}, {"smallest": 3_000, "resident": 100_000}


def test_both_libraries_run_in_what_the_larger_needs():
    assert budget_in_bytes(0, (NEW, OLD)) == budget_in_bytes(0, (OLD, NEW)) == 4_000
    assert budget_in_bytes(25, (NEW, OLD)) == 25_000
    assert budget_in_bytes(100, (NEW, OLD)) == 100_000
    assert budget_in_bytes(3.5, (NEW, OLD)) == 4_000
