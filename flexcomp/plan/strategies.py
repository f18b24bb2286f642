"""The strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Protocol

from .check import verify
from .errors import InfeasibleError, PlanError, Unplaceable
from .parts.minimum import minimum_budget
from .parts.ranges import in_two_ranges
from .problem import Plan, Problem
from .published.flexnn import flexnn
from .published.on_demand import on_demand
from .published.swapnet import swapnet
from .search.ablation import without_pinning, without_preloading, without_static_planning
from .search.best import Sketch, best
from .simulate import latency_of

# A strategy takes a problem and a budget in bytes, and raises Unplaceable without a plan.
STRATEGIES: Mapping[str, Callable[[Problem, int], Plan]] = MappingProxyType(
    {
        "best": best,
        "flexnn": flexnn,
        "swapnet": swapnet,
        "on_demand": on_demand,
        "without_preloading": without_preloading,
        "without_pinning": without_pinning,
        "without_static_planning": without_static_planning,
    }
)
# Those that can begin at plans for similar budgets.
SEARCHES: Mapping[str, Callable[[Problem, int, Sequence[Plan]], Plan]] = MappingProxyType({"best": best})


class Sketched(Protocol):
    """A plan in the making."""

    latency: float  # of the plan, at most; seconds in the steady state

    def plan(self) -> Plan:
        """The unchecked plan."""


@dataclass(frozen=True)
class _Ready:
    """The plan of a strategy that has nothing to search."""

    latency: float
    found: Plan

    def plan(self) -> Plan:
        return self.found


def plan(problem: Problem, budget: int, strategy: str = "best", *, near: Sequence[Plan] = ()) -> Plan:
    """A checked plan for `budget` bytes, found by `unchecked`."""
    return verify(problem, unchecked(problem, budget, strategy, near=near))


def unchecked(problem: Problem, budget: int, strategy: str = "best", *, near: Sequence[Plan] = ()) -> Plan:
    """An unchecked plan for `budget` bytes, searched also near the plans `near`, for similar budgets, maybe with other kernels.

    Raises InfeasibleError, with the smallest feasible budget and its cause, if the strategy finds
    no plan, and PlanError for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise PlanError(f"unknown strategy {strategy!r}; there are {', '.join(sorted(STRATEGIES))}")
    search = SEARCHES.get(strategy)
    try:
        found = search(problem, budget, near) if search else STRATEGIES[strategy](problem, budget)
    except Unplaceable as error:
        raise _infeasible(problem, budget, strategy, error) from None
    return in_two_ranges(problem, found)


def sketched(
    problem: Problem, budget: int, strategy: str = "best", *, near: Sequence[Plan] = (), limit: float = inf
) -> Sketched:
    """As `unchecked`, after a short search only; a latency above `limit` seconds may be a bound."""
    if strategy != "best":
        found = unchecked(problem, budget, strategy)
        return _Ready(latency_of(problem)(found), found)
    try:
        return Sketch(problem, budget, near, limit)
    except Unplaceable as error:
        raise _infeasible(problem, budget, strategy, error) from None


def _infeasible(problem: Problem, budget: int, strategy: str, error: Unplaceable) -> InfeasibleError:
    minimum = minimum_budget(problem)
    return InfeasibleError(strategy, budget, minimum, "" if budget < minimum.nbytes else str(error))
