"""One plan per rung, from the smallest feasible budget to everything resident."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from math import inf

from .bound import latency_bound
from .check import verify
from .errors import InfeasibleError
from .parts.minimum import layer_bounds, minimum_budget
from .problem import PAGE, Plan, Problem
from .search.best import resident_plan
from .search.descent import NO_SLOWER
from .simulate import fast_compute, latency_of
from .spacing import NEARLY, far_between, first_budgets, further_budgets, rounded_up, worthwhile
from .strategies import Sketched, sketched, unchecked

ABOUT = 1.005  # problems whose plans differ by no more than this in latency are equally good
SKETCHED = 6  # problems for which a search goes on after its starts, at most
STARTS_CLOSE = 1.15  # latency of its best start, as a multiple of the best of all, at most
FINALISTS = 2  # problems that are planned with all effort, at most
QUICKLY = 2, 1  # the same two where not every rung is planned with all effort
CLOSE = 1.02  # latency of a finalist's sketch, as a multiple of the fastest sketch, at most

FitToBudget = Callable[[int], Iterable[tuple[int, Problem]]]


def resident_budget(problem: Problem) -> int:
    """Bytes at which nothing is loaded after the first inference."""
    return resident_plan(problem).arena


def ladder(
    problem: Problem, budgets: Sequence[int] | None = None, extra: Iterable[int] = (), strategy: str = "best"
) -> tuple[Plan, ...]:
    """Checked plans in ascending order of budget, in bytes.

    Without `budgets`: enough rungs, from the minimum to everything resident, that no plan for a budget
    between two rungs would be faster than the smaller one by much more than `spacing.PAYS`. `extra` budgets are planned
    exactly as requested. A larger budget is never predicted to be slower, but for 0.1 % of the fastest so far if its plan loads
    less: where the search finds neither, the plan of the rung below is used. Raises InfeasibleError if a requested budget
    is too small.
    """
    return tuple(choice.plan for choice in ladder_of([problem], budgets, extra, strategy))


@dataclass(frozen=True)
class Choice:
    """The plan of a rung, and which of several problems the plan solves."""

    index: int
    problem: Problem
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
    fit_to_budget: FitToBudget = lambda budget: (),
    unit: int = PAGE,
    thorough: bool = True,
    usual_from: int = 0,
) -> tuple[Choice, ...]:
    """As `ladder`, where a rung may solve any of several problems: one network with other kernels.

    The first problem sets the smallest budget and should have the smallest kernels. For every budget problems are tried in
    the order of their lower bounds, until no bound is below the best plan. Among plans about as good as the best, the
    fastest is taken for computing that is faster than predicted. Or, with `last_that_fits`, the last problem that can be
    planned is taken at any latency. A budget that was not requested is left out if the strategy finds no plan. `between`,
    one pair per problem, are the smallest and the largest budget, in bytes, for which a problem is tried; `fit_to_budget` gives
    further problems for a budget, with the indices that name them in choices. Without `budgets`, the budgets of a grid are
    planned, multiples of `unit` bytes, the granularity of memory. Budgets between them follow, searched near the plans of
    their neighbours, and finally the budgets worth a rung, with all effort and their best kernels. Without `thorough` searches
    between go on for fewer problems, and no budget far from all rungs is looked at again: three quarters of the time.
    Budgets below `usual_from` bytes are those of the grid, after a short search; that budget has a plan of its own.

    Threads on all cores plan budgets, as the C++ loops release Python: several threads call `fit_to_budget` at once.
    The plans do not depend on the number of threads.
    """
    between = between or [(0, inf)] * len(problems)
    pick = _last if last_that_fits else _fastest
    extra, ends = set(extra), _ends(problems, unit) if budgets is None else ()
    asked = extra | set(budgets or ())
    if ends and ends[0] < usual_from < ends[1]:
        asked.add(usual_from)
    largest = max({*ends, *asked})
    found: dict[int, Choice] = {}
    done_thoroughly: set[int] = set()  # budgets planned with all effort
    limits = (SKETCHED, FINALISTS) if thorough else QUICKLY
    first = sorted({*asked, *(first_budgets(*ends, unit) if ends else ())})
    wanted = {budget: _Wanted(quick=budget < usual_from and budget not in asked) for budget in first}

    def choose(budget: int, how: _Wanted) -> Choice | None:
        offered = {index: problems[index] for index, (least, most) in enumerate(between) if least <= budget <= most}
        fitted = {one.index: one.problem for one in how.near if one.index >= len(problems)}
        offered = {how.only.index: how.only.problem} if how.only else offered | fitted | dict(fit_to_budget(budget))
        try:
            return pick(offered, budget, strategy, how, *limits)
        except InfeasibleError:
            if budget in extra or budget == largest:
                raise
            return None

    total = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        while wanted:
            total += len(wanted)
            chosen = [threads.submit(copy_context().run, choose, *one) for one in wanted.items()]
            try:
                for done, budget in enumerate(wanted):
                    report(total - len(wanted) + done, total)
                    if choice := chosen[done].result():
                        found[budget] = min(choice, found.get(budget, choice), key=lambda one: one.latency)
            finally:
                for one in chosen:
                    one.cancel()  # after an error: tasks that have not begun
            done_thoroughly |= {budget for budget, how in wanted.items() if not how.quick or budget < usual_from}
            further = budgets is None and not last_that_fits
            wanted = _wanted(found, done_thoroughly, {*ends, *asked}, unit, thorough, usual_from) if further else {}
    report(total, total)
    rungs = [found[budget] for budget in sorted(found)] if last_that_fits else _in_order(found, {*ends, *asked}, unit)
    for one in rungs:  # other plans are not used
        verify(one.problem, one.plan)
    return tuple(rungs)


@dataclass(frozen=True)
class _Wanted:
    """How to plan a budget."""

    near: Sequence[Choice] = ()  # plans where to begin; their fitted problems are candidates, too
    quick: bool = False  # not with all effort
    only: Choice | None = None  # only the problem of this choice


def _wanted(
    found: Mapping[int, Choice], done: Collection[int], asked: Collection[int], unit: int, between: bool, least: int
) -> dict[int, _Wanted]:
    """Budgets to plan next, from `least` bytes on; none once those worth a rung, and those far `between` if asked, are `done`,
    with all effort.
    """
    further = further_budgets({budget: choice.latency for budget, choice in found.items() if budget >= least}, unit)
    if further:
        return {budget: _Wanted(_neighbours(found, budget), quick=True) for budget in further}
    rungs = [choice.plan.budget for choice in _in_order(found, asked, unit)]
    wanted = {
        budget: _Wanted([found[budget], *_neighbours(found, budget)], only=found[budget])
        for budget in rungs
        if budget not in done
    }
    # A budget sketched between rungs far apart may be worth a rung with all effort.
    unsure = [budget for budget in far_between(rungs, found) if budget not in done] if between else []
    return wanted or {
        budget: _Wanted([found[budget], *_neighbours(found, budget)], only=found[budget]) for budget in unsure
    }


def _neighbours(found: Mapping[int, Choice], budget: int) -> list[Choice]:
    """The choices for the next smaller and the next larger budget, if any."""
    smaller, larger = [other for other in found if other < budget], [other for other in found if other > budget]
    return [found[other] for other in (*sorted(smaller)[-1:], *sorted(larger)[:1])]


def usual(choices: Sequence[Choice]) -> Choice:
    """Of choices by budget the first that is nearly as fast as the fastest, if computing is as fast as predicted or faster.

    Loads that the predicted computing hides are late where computing is faster: then more memory pays.
    """
    least = min(choice.latency for choice in choices)
    near = [choice for choice in choices if choice.latency <= NEARLY * least]
    latencies = [latency_of(fast_compute(choice.problem))(choice.plan) for choice in near]
    return next(choice for choice, latency in zip(near, latencies, strict=True) if latency <= NEARLY * min(latencies))


def _in_order(found: Mapping[int, Choice], asked: Collection[int], unit: int) -> list[Choice]:
    """Choices by budget, each at least as good as the smaller ones, without budgets not worth a rung."""
    result: list[Choice] = []
    fastest = inf
    for budget in sorted(found):
        best = found[budget]
        fastest = min(fastest, best.latency)
        if result and _cost(result[-1], fastest) <= _cost(best, fastest):
            best = replace(result[-1], plan=replace(result[-1].plan, budget=budget))
        result.append(best)
    kept = worthwhile({one.plan.budget: one.latency for one in result}, {*asked, usual(result).plan.budget}, unit)
    return [one for one in result if one.plan.budget in kept]


def _cost(choice: Choice, fastest: float) -> tuple[float, int]:
    """Among choices nearly as fast as the fastest, fewer loads win: loads cost more than predicted."""
    near = choice.latency <= NO_SLOWER * fastest
    return (fastest if near else choice.latency, choice.plan.streamed_nbytes if near else 0)


def _fastest(
    offered: Mapping[int, Problem], budget: int, strategy: str, how: _Wanted, most: int, finalists: int
) -> Choice:
    near = [one.plan for one in how.near]

    def thorough(index: int) -> Choice:
        return _choice(index, offered[index], unchecked(offered[index], budget, strategy, near=near))

    if len(offered) == 1 and not how.quick:
        return thorough(*offered)
    sketches = _sketches(offered, budget, strategy, near)
    likely = sorted(sketches, key=lambda index: sketches[index].latency)[:most]
    least = sketches[likely[0]].latency
    likely = [index for index in likely if sketches[index].latency <= STARTS_CLOSE * least]
    made = [_choice(index, offered[index], sketches[index].plan()) for index in likely]
    made.sort(key=lambda choice: choice.latency)
    if not how.quick:
        made += [thorough(one.index) for one in made[:finalists] if one.latency <= CLOSE * made[0].latency]
    best = min(choice.latency for choice in made)
    close = [choice for choice in made if choice.latency <= ABOUT * best]
    return min(close, key=lambda choice: latency_of(fast_compute(choice.problem))(choice.plan))


def _sketches(offered: Mapping[int, Problem], budget: int, strategy: str, near: Sequence[Plan]) -> dict[int, Sketched]:
    """By index the sketches of problems whose bounds are below the fastest sketch; at least one.

    Raises InfeasibleError if no problem can be planned.
    """
    bounds = {index: latency_bound(problem, budget) for index, problem in offered.items()}
    sketches: dict[int, Sketched] = {}
    failure: InfeasibleError | None = None
    least = inf
    for index in sorted(offered, key=lambda index: (bounds[index], index)):
        if bounds[index] >= least:
            break
        try:
            sketches[index] = sketched(offered[index], budget, strategy, near=near, limit=STARTS_CLOSE * least)
        except InfeasibleError as error:
            failure = error if index == min(offered) or failure is None else failure
            continue
        least = min(least, sketches[index].latency)
    if not sketches:
        assert failure is not None
        raise failure
    return sketches


def _last(offered: Mapping[int, Problem], budget: int, strategy: str, how: _Wanted, _most: int, _finalists: int) -> Choice:
    first, *others = sorted(offered)
    near = [one.plan for one in how.near]
    for index in reversed(others):
        if max(layer_bounds(offered[index]), default=0) > budget:
            continue
        try:
            return _choice(index, offered[index], unchecked(offered[index], budget, strategy, near=near))
        except InfeasibleError:
            continue
    return _choice(first, offered[first], unchecked(offered[first], budget, strategy, near=near))


def _choice(index: int, problem: Problem, found: Plan) -> Choice:
    return Choice(index, problem, found, latency_of(problem)(found))


def _ends(problems: Sequence[Problem], unit: int) -> tuple[int, int]:
    """The smallest budget, in bytes, and the one for everything resident."""
    smallest = rounded_up(minimum_budget(problems[0]).nbytes, unit)
    return smallest, max(smallest, *(rounded_up(resident_budget(problem), unit) for problem in problems))
