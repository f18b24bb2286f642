"""From plans to the rungs of a program."""

from __future__ import annotations

from collections.abc import Callable

from . import plan
from .budget import Budget, resolve
from .errors import BudgetError
from .program import Load, Rung, Step
from .variants import Planning


def plan_rungs(
    planning: Planning, budget: Budget, strategy: str, report: Callable[[int, int], None]
) -> tuple[Rung, ...]:
    """A rung for every budget of the ladder, and for the one that was asked for.

    Raises BudgetError, naming the layer that sets the smallest feasible budget, if less was asked for.
    """
    minimum = plan.minimum_budget(planning.problems[0])
    resident = max(minimum.nbytes, *(plan.resident_budget(problem) for problem in planning.problems))
    # More memory than everything takes is of no use: the rung would be the last one again.
    asked = minimum.nbytes if budget.smallest else min(resolve(budget, 0, resident), resident)
    if asked < minimum.nbytes:
        raise BudgetError(f"a budget of {asked:,} B is too small: {minimum}")
    try:
        chosen = plan.ladder_of(
            planning.problems,
            extra=(asked,),
            strategy=strategy,
            report=report,
            last_that_fits=planning.fixed_order,
        )
    except plan.InfeasibleError as error:
        raise BudgetError(str(error)) from error
    return tuple(_rung(planning, choice) for choice in chosen)


def _rung(planning: Planning, choice: plan.Choice) -> Rung:
    problem, planned = planning.problems[choice.index], choice.plan
    layer_of = planning.network.indices(planning.choices[choice.index])
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
        Step(layer_of[step.layer], step.first, step.count, need, weights, scratch)
        for step, need, weights, scratch in zip(
            planned.steps, planned.need, weights_at, planned.scratch_at, strict=True
        )
    )
    return Rung(planned.budget, planned.arena, planned.tensor_at, steps, tuple(loads), choice.latency)
