"""One plan per rung, from the smallest feasible budget to everything resident."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from .bound import latency_bound
from .check import verify
from .errors import InfeasibleError
from .parts.minimum import layer_bounds, minimum_budget
from .problem import PAGE, Plan, Problem
from .search.best import NO_SLOWER, resident_plan
from .simulate import brisk, latency_of
from .strategies import plan

RUNGS = 14
CLOSEST = 1.03  # neighbouring rungs differ at least by this factor
ABOUT = 1.005  # problems whose plans differ by no more than this in latency are equally good
FRACTIONS = (0.5, 0.25, 0.1)  # of everything resident: rungs for budgets that are likely to be asked for
FINALISTS = 2  # problems that are planned with all effort, at most
CLOSE = 1.02  # what the sketch of one of them may lack


def resident_budget(problem: Problem) -> int:
    """Bytes at which nothing is loaded after the first inference."""
    return resident_plan(problem).arena


def budgets_between(smallest: int, largest: int, rungs: int = RUNGS) -> list[int]:
    """At most `rungs` budgets in geometric progression, whole pages, both ends included.

    The nearest one to each of FRACTIONS of the largest is moved there: budgets are asked for as such.
    """
    if not 0 < smallest < largest:
        return [smallest]
    ratio = max((largest / smallest) ** (1 / (rungs - 1)), CLOSEST)
    between, budget = [], smallest * ratio
    while budget * CLOSEST**0.5 < largest:
        between.append(budget)
        budget *= ratio
    for wanted in (part * largest for part in FRACTIONS):
        for index, budget in enumerate(between):
            if budget / ratio**0.5 <= wanted < budget * ratio**0.5:
                between[index] = wanted
    return [smallest, *(int(budget) // PAGE * PAGE for budget in between), largest]


def ladder(
    problem: Problem, budgets: Sequence[int] | None = None, extra: Iterable[int] = (), strategy: str = "best"
) -> tuple[Plan, ...]:
    """Checked plans in ascending order of budget, in bytes.

    Without `budgets`: a geometric progression from the minimum to everything resident. `extra` budgets are planned
    exactly as asked. A larger budget is never predicted to be slower, but for 0.1 % of the fastest so far if it loads
    less: where the search finds neither, the plan of the rung below is used. Raises InfeasibleError if a budget
    that was asked for is too small.
    """
    return tuple(choice.plan for choice in ladder_of([problem], budgets, extra, strategy))


@dataclass(frozen=True)
class Choice:
    """The plan of a rung, and which of several problems it solves."""

    index: int
    plan: Plan
    latency: float  # predicted, seconds


def ladder_of(
    problems: Sequence[Problem],
    budgets: Sequence[int] | None = None,
    extra: Iterable[int] = (),
    strategy: str = "best",
    report: Callable[[int, int], None] = lambda done, total: None,
    last_that_fits: bool = False,
    between: Sequence[tuple[float, float]] = (),
) -> tuple[Choice, ...]:
    """As `ladder`, where a rung may solve any of several problems: one network with other kernels.

    The first problem sets the smallest budget; it should be the one with the smallest kernels. For every
    budget problems are tried in the order of their lower bounds, until no bound is below the best plan; of those about
    as good as that one, the plan is taken that is fastest if computing is faster than predicted. Or,
    with `last_that_fits`, the last problem that can be planned is taken whatever its latency. A budget that was
    not asked for is left out if the strategy finds no plan. `between`, one pair per problem, are the
    smallest and the largest budget, in bytes, for which a problem is tried.
    """
    between = between or [(0, inf)] * len(problems)
    if budgets is None:
        largest = max(resident_budget(problem) for problem in problems)
        budgets = budgets_between(minimum_budget(problems[0]).nbytes, largest)
    extra = set(extra)
    wanted = sorted({*budgets, *extra})
    pick = _last if last_that_fits else _fastest
    result: list[Choice] = []
    fastest = inf
    for done, budget in enumerate(wanted):
        report(done, len(wanted))
        tried = [index for index, (least, most) in enumerate(between) if least <= budget <= most]
        try:
            best = pick(problems, tried, budget, strategy)
        except InfeasibleError:
            if budget in extra or budget == wanted[-1]:
                raise
            continue
        fastest = min(fastest, best.latency)
        if result and not last_that_fits and _cost(result[-1], fastest) <= _cost(best, fastest):
            best = replace(result[-1], plan=replace(result[-1].plan, budget=budget))
        verify(problems[best.index], best.plan)
        result.append(best)
    report(len(wanted), len(wanted))
    return tuple(result)


def _cost(choice: Choice, fastest: float) -> tuple[float, int]:
    """Of those nearly as fast as the fastest that which loads least: what is predicted is not all that loads cost."""
    near = choice.latency <= NO_SLOWER * fastest
    return (fastest if near else choice.latency, choice.plan.streamed_nbytes if near else 0)


def _fastest(problems: Sequence[Problem], tried: Sequence[int], budget: int, strategy: str) -> Choice:
    bounds = {index: latency_bound(problems[index], budget) for index in tried}
    failure: InfeasibleError | None = None

    def plans(candidates: Sequence[int], quick: bool) -> list[Choice]:
        """Of those whose bounds are below the fastest plan."""
        nonlocal failure
        made: list[Choice] = []
        for index in candidates:
            if made and bounds[index] >= min(choice.latency for choice in made):
                break
            try:
                found = plan(problems[index], budget, strategy, quick=quick)
            except InfeasibleError as error:
                failure = error if index == min(tried) or failure is None else failure
                continue
            made.append(Choice(index, found, latency_of(problems[index])(found)))
        return made

    made = plans(sorted(tried, key=lambda index: (bounds[index], index)), quick=len(tried) > 1)
    if not made:
        assert failure is not None
        raise failure
    made.sort(key=lambda choice: choice.latency)
    close = [choice.index for choice in made[:FINALISTS] if choice.latency <= CLOSE * made[0].latency]
    if len(tried) > 1:
        made += plans(close, quick=False)
    best = min(choice.latency for choice in made)
    near = [choice for choice in made if choice.latency <= ABOUT * best]
    return min(near, key=lambda choice: latency_of(brisk(problems[choice.index]))(choice.plan))


def _last(problems: Sequence[Problem], tried: Sequence[int], budget: int, strategy: str) -> Choice:
    first, *others = tried
    for index in reversed(others):
        if max(layer_bounds(problems[index]), default=0) > budget:
            continue
        try:
            found = plan(problems[index], budget, strategy)
        except InfeasibleError:
            continue
        return Choice(index, found, latency_of(problems[index])(found))
    found = plan(problems[first], budget, strategy)
    return Choice(first, found, latency_of(problems[first])(found))
