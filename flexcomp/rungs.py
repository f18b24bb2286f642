"""From plans to the rungs of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from . import plan
from .budget import Budget, resolve
from .errors import BudgetError
from .program import Load, Rung, Step
from .variants import Planning

# Forms in bands of rows are tried for budgets up to this multiple of what whole layers need at least.
_BANDED_UP_TO = 1.5


def plan_rungs(
    planning: Planning, budget: Budget, strategy: str, report: Callable[[int, int], None]
) -> tuple[Rung, ...]:
    """A rung for every budget of the ladder, and for the one that was asked for.

    Raises BudgetError, naming the layer that sets the smallest feasible budget, if less was asked for.
    """
    problems = [form.problem for form in planning.forms]
    minimum = plan.minimum_budget(problems[0])
    resident = max(minimum.nbytes, *(plan.resident_budget(form.problem) for form in planning.whole))
    # More memory than everything takes is of no use: the rung would be the last one again.
    asked = minimum.nbytes if budget.smallest else min(resolve(budget, 0, resident), resident)
    if asked < minimum.nbytes:
        raise BudgetError(f"a budget of {asked:,} B is too small: {minimum}")
    try:
        chosen = plan.ladder_of(
            problems,
            plan.budgets_between(minimum.nbytes, resident),
            extra=(asked,),
            strategy=strategy,
            report=report,
            last_that_fits=planning.fixed_order,
            limits=_limits(planning),
        )
    except plan.InfeasibleError as error:
        raise BudgetError(str(error)) from error
    return tuple(_rung(planning, choice) for choice in chosen)


def _limits(planning: Planning) -> list[float]:
    """Budgets above which a form is not tried: bands repeat work, which pays only where whole layers hardly fit."""
    whole = plan.minimum_budget(planning.whole[0].problem).nbytes
    return [_BANDED_UP_TO * whole] * len(planning.banded) + [math.inf] * len(planning.whole)


def _rung(planning: Planning, choice: plan.Choice) -> Rung:
    form, planned = planning.forms[choice.index], choice.plan
    problem = form.problem
    value_at = [-1] * len(planning.network.values)
    for value, tensor in zip(form.values, form.tensors, strict=True):
        value_at[value] = planned.tensor_at[tensor]
    weights_at = [-1] * len(planned.steps)
    loads = []
    for segment in planned.segments:
        for index in range(segment.step, segment.step + segment.count):
            step = planned.steps[index]
            weights = problem.layers[step.layer].weights
            if weights is not None:
                inside = weights.offset + step.first * weights.block_nbytes - segment.source
                weights_at[index] = segment.address + inside
        place = (segment.source, segment.nbytes, segment.address)
        loads.append(Load(*place, segment.after, segment.pinned, segment.ahead))
    steps = tuple(
        Step(form.layers[step.layer], step.first, step.count, need, weights, scratch)
        for step, need, weights, scratch in zip(
            planned.steps, planned.need, weights_at, planned.scratch_at, strict=True
        )
    )
    return Rung(planned.budget, planned.arena, tuple(value_at), steps, tuple(loads), choice.latency)


def resident_rungs(planning: Planning, like: Iterable[Rung]) -> tuple[Rung, ...]:
    """The forms that the rungs `like` compute, once each, with everything resident: what computing alone takes."""
    wanted = {layers_of(rung) for rung in like}
    chosen = []
    for index, form in enumerate(planning.forms):
        if tuple(form.layers) in wanted:
            planned = plan.resident_plan(form.problem)
            chosen.append(plan.Choice(index, planned, plan.simulate(form.problem, planned).latency))
    chosen.sort(key=lambda choice: choice.plan.arena)
    result, budget = [], 0
    for choice in chosen:
        budget = max(choice.plan.arena, budget + plan.PAGE)  # budgets of a program ascend
        plan.verify(planning.forms[choice.index].problem, choice.plan)
        result.append(_rung(planning, replace(choice, plan=replace(choice.plan, budget=budget))))
    return tuple(result)


def layers_of(rung: Rung) -> tuple[int, ...]:
    """The layers that a rung computes, in their order; slices of one count once."""
    return tuple(layer for layer, _ in groupby(step.layer for step in rung.steps))
