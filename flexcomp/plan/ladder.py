"""One plan per rung, from the smallest feasible budget to everything resident."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .best import resident_plan
from .check import verify
from .minimum import minimum_budget
from .problem import PAGE, Plan, Problem
from .simulate import simulate
from .strategies import plan

RUNGS = 14
CLOSEST = 1.03  # neighbouring rungs differ at least by this factor


def resident_budget(problem: Problem) -> int:
    """Bytes at which nothing is loaded after the first inference."""
    return resident_plan(problem).arena


def budgets_between(smallest: int, largest: int, rungs: int = RUNGS) -> list[int]:
    """At most `rungs` budgets in geometric progression, whole pages, both ends included."""
    if not 0 < smallest < largest:
        return [smallest]
    ratio = max((largest / smallest) ** (1 / (rungs - 1)), CLOSEST)
    result, budget = [smallest], smallest * ratio
    while budget * CLOSEST**0.5 < largest:
        result.append(int(budget) // PAGE * PAGE)
        budget *= ratio
    return [*result, largest]


def ladder(
    problem: Problem, budgets: Sequence[int] | None = None, extra: Iterable[int] = (), strategy: str = "best"
) -> tuple[Plan, ...]:
    """Checked plans in ascending order of budget, in bytes.

    Without `budgets`: a geometric progression from the minimum to everything resident. `extra` budgets
    are planned exactly as asked. A larger budget is never predicted to be slower: where the search
    finds nothing better, the plan of the rung below is used. Raises InfeasibleError if a budget that
    was asked for is too small.
    """
    if budgets is None:
        budgets = budgets_between(minimum_budget(problem).nbytes, resident_budget(problem))
    result: list[Plan] = []
    fastest = None
    for budget in sorted({*budgets, *extra}):
        rung = plan(problem, budget, strategy)
        latency = simulate(problem, rung).latency
        if fastest is not None and fastest < latency:
            rung = replace(result[-1], budget=budget)
        else:
            fastest = latency
        result.append(verify(problem, rung))
    return tuple(result)
