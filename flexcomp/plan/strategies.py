"""The strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from .check import verify
from .errors import InfeasibleError, PlanError, Unplaceable
from .parts.minimum import minimum_budget
from .parts.ranges import in_two_ranges
from .problem import Plan, Problem
from .published.flexnn import flexnn
from .published.on_demand import on_demand
from .published.swapnet import swapnet
from .search.ablation import without_pinning, without_preloading, without_static_planning
from .search.best import best, sketch

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
# Strategies that can begin at plans for similar budgets: with all effort, or as a sketch.
SEARCHES: Mapping[str, Callable[[Problem, int, Sequence[Plan]], Plan]] = MappingProxyType({"best": best})
SKETCHES: Mapping[str, Callable[[Problem, int, Sequence[Plan]], Plan]] = MappingProxyType({"best": sketch})


def plan(
    problem: Problem, budget: int, strategy: str = "best", *, quick: bool = False, near: Sequence[Plan] = ()
) -> Plan:
    """A checked plan for `budget` bytes, found by `unchecked`."""
    return verify(problem, unchecked(problem, budget, strategy, quick=quick, near=near))


def unchecked(
    problem: Problem, budget: int, strategy: str = "best", *, quick: bool = False, near: Sequence[Plan] = ()
) -> Plan:
    """An unchecked plan for `budget` bytes; if `quick`, a sketch where the strategy would search for long.

    Such a strategy also searches near the plans `near`, for similar budgets, maybe with other kernels.

    Raises InfeasibleError, with the smallest feasible budget and its cause, if the strategy finds
    no plan, and PlanError for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise PlanError(f"unknown strategy {strategy!r}; there are {', '.join(sorted(STRATEGIES))}")
    search = (SKETCHES if quick else SEARCHES).get(strategy)
    try:
        found = search(problem, budget, near) if search else STRATEGIES[strategy](problem, budget)
    except Unplaceable as error:
        minimum = minimum_budget(problem)
        reason = "" if budget < minimum.nbytes else str(error)
        raise InfeasibleError(strategy, budget, minimum, reason) from None
    return in_two_ranges(problem, found)
