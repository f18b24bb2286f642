"""From plans to the rungs of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from flexcomp import plan
from flexcomp.errors import BudgetError
from flexcomp.network import FitToBudget, Form, Planning, form_of
from flexcomp.network.preparing import PIECES, pieces, source
from flexcomp.program import Load, Prepared, Rung, Step, tapes_of
from flexcomp.runtime import Budget, note_minimum, resolve, too_small

from .first_inference import cold_steps

# Forms in bands of rows are tried for budgets up to this multiple of the least memory of the next form of fewer steps.
_BANDED_UP_TO = 2.5
# Kernels are chosen for budgets so far apart, and sets for so many smaller budgets are candidates for a budget.
_FITTED_APART = 1.05
_FITTED_BELOW = 2


def plan_rungs(
    planning: Planning,
    budget: Budget,
    strategy: str,
    report: Callable[[int, int], None],
    unit: int = plan.PAGE,
    thorough: bool = True,
    usual_from: int = 0,
) -> tuple[tuple[Rung, ...], int]:
    """The rungs of the ladder, one for the budget that was asked for among them, and the budget to use where none is given.

    Memory is given in `unit` bytes; `thorough` and `usual_from` as for `plan.ladder_of`.
    Raises BudgetError, naming the layer that sets the smallest feasible budget, if less was asked for.
    """
    minimum = plan.minimum_budget(planning.forms[0].problem)
    least = plan.rounded_up(minimum.nbytes, unit)
    resident = plan.rounded_up(max(minimum.nbytes, *(plan.resident_budget(form.problem) for form in planning.whole)), unit)
    # More memory than everything takes is of no use: the rung would be the last one again.
    asked = least if budget.smallest else min(resolve(budget, 0, resident, resident), resident)
    if asked < least:
        note = note_minimum(planning.network.titled(minimum.layer), minimum.needs)
        raise BudgetError(too_small(asked, least, note, budget.units))
    if unit != plan.PAGE:
        asked -= asked % unit  # the rest could not be used
    offers = Offers(planning)
    try:
        chosen = offers.ladder((asked,), strategy, report, unit=unit, thorough=thorough, usual_from=usual_from)
    except plan.InfeasibleError as error:
        least = replace(error.minimum, layer=planning.network.titled(error.minimum.layer))
        raise BudgetError(str(plan.InfeasibleError(error.strategy, error.asked, least, error.reason))) from error
    rungs = _once(_rung(planning, offers.forms[choice.index], choice) for choice in chosen)
    usual = plan.usual(chosen).plan.budget
    return rungs, max(rung.budget for rung in rungs if rung.budget <= usual)


def _once(rungs: Iterable[Rung]) -> tuple[Rung, ...]:
    """Without those that are the plan of the rung below: nothing is gained by giving them more memory."""
    kept: list[Rung] = []
    for rung in rungs:
        if not kept or replace(rung, budget=kept[-1].budget) != kept[-1]:
            kept.append(rung)
    return tuple(kept)


class Offers:
    """The forms of a planning, and those that are made for a budget."""

    def __init__(self, planning: Planning) -> None:
        self.forms = dict(enumerate(planning.forms))  # by the index of a choice
        self._planning = planning
        # Bands repeat work, which pays only where fewer of them leave little room for weights.
        self._between = [(0.0, _BANDED_UP_TO * _least_of_fewer(planning.forms, form)) for form in planning.banded]
        self._between += [(0.0, math.inf)] * len(planning.whole)
        several = bool(planning.network.alternatives) and not planning.fixed_order
        skeletons = (*planning.banded, planning.whole[0]) if several else ()
        self._fits = [(FitToBudget(planning, skeleton), self._between[at][1]) for at, skeleton in enumerate(skeletons)]

    def ladder(
        self,
        asked: Iterable[int],
        strategy: str = "best",
        report: Callable[[int, int], None] = lambda done, total: None,
        budgets: Sequence[int] | None = None,
        unit: int = plan.PAGE,
        thorough: bool = True,
        usual_from: int = 0,
    ) -> tuple[plan.Choice, ...]:
        """As `plan.ladder_of`; choices name forms by their index here."""
        return plan.ladder_of(
            [form.problem for form in self._planning.forms],
            budgets,
            extra=asked,
            strategy=strategy,
            report=report,
            last_that_fits=self._planning.fixed_order,
            between=self._between,
            fit_to_budget=self._fitted_to_budget,
            unit=unit,
            thorough=thorough,
            usual_from=usual_from,
        )

    def _fitted_to_budget(self, budget: int) -> list[tuple[int, plan.Problem]]:
        """Forms made for the budget and for a few smaller ones, the same for all budgets around: none is always the best."""
        made: dict[Form, int] = {}
        below = int(math.log(budget) / math.log(_FITTED_APART))
        for size in (int(_FITTED_APART**number) for number in range(below, below - _FITTED_BELOW, -1)):
            for at, (fit_to_budget, most) in enumerate(self._fits):
                form = fit_to_budget.form(size) if budget <= most else None
                if form and form not in made:
                    # Whatever was made before: budgets come in no particular order.
                    made[form] = len(self._planning.forms) + size * len(self._fits) + at
        for form, index in made.items():
            self.forms[index] = form
        return [(index, form.problem) for form, index in made.items()]


def _least_of_fewer(forms: Sequence[Form], banded: Form) -> int:
    """Bytes that the first of the forms that have fewer layers needs at least; the whole ones do."""
    other = next(form for form in forms if len(form.layers) < len(banded.layers))
    return plan.minimum_budget(other.problem).nbytes


def _rung(planning: Planning, form: Form, choice: plan.Choice) -> Rung:
    planned = choice.plan
    problem = form.problem
    value_at = [-1] * len(planning.network.values)
    for value, buffer in zip(form.values, form.buffers, strict=True):
        value_at[value] = planned.buffer_at[buffer]
    weights_at = [-1] * len(planned.steps)
    loads: list[Load] = []
    complete = [0]  # loads, by segments
    made = 0  # pieces that are prepared
    again: dict[int, list[int]] = {}  # steps, by the segment that brought their weights for others
    for index, number in planned.again:
        again.setdefault(number, []).append(index)
    for number, segment in enumerate(planned.segments):
        for index in (*range(segment.step, segment.step + segment.count), *again.get(number, ())):
            step = planned.steps[index]
            weights = problem.layers[step.layer].weights
            if weights is not None:
                inside = weights.offset + step.first * weights.block_nbytes - segment.source
                weights_at[index] = segment.address + inside
        some = list(_loads(planning, form, planned, segment, weights_at[segment.step], made))
        made += sum(load.prepared is not None and not load.kept for load in some)
        loads += some
        complete.append(len(loads))
    steps = tuple(
        Step(form.layers[step.layer], step.first, step.count, weights, scratch)
        for step, weights, scratch in zip(planned.steps, weights_at, planned.scratch_at, strict=True)
    )
    need = [complete[segments] for segments in planned.need]
    tapes = tapes_of(planning.network.layers, steps, loads, need, cold_steps(planning, form, planned))
    return Rung(planned.budget, planned.arena, planned.working, tuple(value_at), steps, tapes, choice.latency)


def _loads(
    planning: Planning, form: Form, planned: plan.Plan, segment: plan.Segment, at: int, made: int
) -> Iterator[Load]:
    """The loads of a segment. A prepared segment, with its first block `at`, is read in pieces, after `made` other pieces."""
    steps = planned.steps[segment.step : segment.step + segment.count]
    index = form.layers[steps[0].layer]
    layer = planning.network.layers[index]
    if layer.weights.preparation is None:
        yield Load(segment.source, segment.nbytes, segment.address, segment.after, segment.pinned, segment.ahead)
        return
    first, count = steps[0].first, sum(step.count for step in steps)
    if segment.kept_at >= 0:
        prepared = Prepared(index, first, count, at)
        yield Load(*source(layer, first, count), segment.kept_at, segment.after, False, segment.ahead, prepared, kept=True)
        return
    room = -(-planned.buffer_at[-1] // plan.PAGE) * plan.PAGE
    for number, (begin, some) in enumerate(pieces(layer, first, count, form.piece), made):
        prepared = Prepared(index, begin, some, at + (begin - first) * layer.weights.block_nbytes)
        place = (*source(layer, begin, some), room + number % PIECES * form.piece)
        yield Load(*place, segment.after, segment.pinned, segment.ahead, prepared)


def resident_rungs(planning: Planning, orders: Iterable[tuple[int, ...]]) -> tuple[Rung, ...]:
    """A rung for each of these orders of layers, once each, with everything resident: the time of computing alone."""
    chosen = []
    for layers in dict.fromkeys(orders):
        form = form_of(planning.network, layers, planning.costs)
        planned = plan.resident_plan(form.problem)
        chosen.append((form, plan.Choice(0, form.problem, planned, plan.simulate(form.problem, planned).latency)))
    chosen.sort(key=lambda one: one[1].plan.arena)
    result, budget = [], 0
    for form, choice in chosen:
        budget = max(choice.plan.arena, budget + plan.PAGE)  # budgets of a program ascend
        plan.verify(form.problem, choice.plan)
        result.append(_rung(planning, form, replace(choice, plan=replace(choice.plan, budget=budget))))
    return tuple(result)
