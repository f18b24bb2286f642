"""The ladder over several problems: one network with other kernels."""

from dataclasses import replace

import numpy as np
import pytest

from flexcomp.plan import PAGE, ladder, ladder_of, usual
from flexcomp.plan.search.descent import NO_SLOWER
from flexcomp.plan.simulate import fast_compute, latency_of
from flexcomp.plan.spacing import NEARLY, first_budgets

from .networks import squeezenet


def with_faster_kernels(problem, speed: float, size: int):
    """The same layers, `speed` times as fast on weights of `size` times as many blocks."""
    return replace(
        problem,
        layers=tuple(
            replace(
                layer,
                seconds=layer.seconds / speed,
                weights=replace(layer.weights, blocks=layer.weights.blocks * size) if layer.weights else None,
            )
            for layer in problem.layers
        ),
    )


def test_a_rung_takes_the_problem_that_is_faster_under_its_budget():
    small = squeezenet()
    fast = with_faster_kernels(small, speed=4.0, size=4)
    choices = ladder_of([small, fast])
    alone = ladder_of([small], budgets=[choice.plan.budget for choice in choices])
    assert choices[0].index == 0 and choices[-1].index == 1
    assert all(both.latency <= one.latency for both, one in zip(choices, alone, strict=True))
    latency = {choice.plan.budget: choice.latency for choice in choices}
    for other in ladder_of([small, fast], budgets=sorted(latency)[1:], strategy="flexnn"):
        assert latency[other.plan.budget] <= NO_SLOWER * other.latency  # by so much it may be slower, to load less


def test_one_problem_is_the_plain_ladder():
    problem = squeezenet()
    assert tuple(choice.plan for choice in ladder_of([problem])) == ladder(problem)


def test_a_ladder_that_is_not_thorough_is_hardly_slower():
    """At budgets from the smallest to the largest; the prediction is good to a few percent itself."""
    small = squeezenet()
    problems = [small, with_faster_kernels(small, speed=4.0, size=4)]
    made = [0, 0]  # plans
    thorough = ladder_of(problems, report=lambda done, total: made.__setitem__(0, total))
    quick = ladder_of(problems, thorough=False, report=lambda done, total: made.__setitem__(1, total))
    assert made[1] < made[0]
    ends = [[rung.plan.budget for rung in (one[0], one[-1])] for one in (thorough, quick)]
    assert ends[0] == ends[1]
    ratios = []
    for budget in np.geomspace(*ends[0], 60).astype(int):
        best = [min(rung.latency for rung in one if rung.plan.budget <= budget) for one in (thorough, quick)]
        ratios.append(best[1] / best[0])
    assert np.mean(ratios) < 1.001 and max(ratios) < 1.01


def test_few_budgets_are_planned_below_those_that_are_used():
    """The smallest one is among them, and where use begins there is a plan as good as any."""
    problem, made = squeezenet(), [0, 0]  # plans
    every = ladder_of([problem], report=lambda done, total: made.__setitem__(0, total))
    least = every[2 * len(every) // 3].plan.budget + PAGE
    some = ladder_of([problem], usual_from=least, report=lambda done, total: made.__setitem__(1, total))
    assert made[1] < 0.9 * made[0]
    budgets = [[choice.plan.budget for choice in one] for one in (every, some)]
    assert budgets[1][0] == budgets[0][0] and budgets[1][-1] == budgets[0][-1] and least in budgets[1]
    assert {one for one in budgets[1] if one < least} <= {*first_budgets(budgets[0][0], budgets[0][-1])}
    ratios = []
    for budget in (least, *(one for one in budgets[0] if one > least)):
        best = [min(rung.latency for rung in one if rung.plan.budget <= budget) for one in (every, some)]
        ratios.append(best[1] / best[0])
    assert np.mean(ratios) < 1.01 and max(ratios) < 1.03


def test_the_usual_budget_is_nearly_as_fast_where_computing_is_faster():
    """Loads that the predicted computing just hides are late then: the smallest budget for the prediction alone is too small."""
    problem = squeezenet()
    choices = ladder_of([problem])
    faster = latency_of(fast_compute(problem))

    def enough(choice) -> tuple[bool, bool]:
        return choice.latency <= NEARLY * choices[-1].latency, faster(choice.plan) <= NEARLY * faster(choices[-1].plan)

    chosen = usual(choices)
    assert chosen in choices and enough(chosen) == (True, True)
    smaller = [enough(choice) for choice in choices if choice.plan.budget < chosen.plan.budget]
    assert (True, False) in smaller and (True, True) not in smaller


def test_plans_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    """Whichever budget is planned for first: kernels that are made for budgets, too."""
    small = squeezenet()
    fast = with_faster_kernels(small, speed=4.0, size=4)
    found, fitted = [], set()

    def fit_to_budget(budget):
        fitted.add(budget)
        return [(budget, with_faster_kernels(small, speed=1 + budget / 2**21, size=2))]

    for cores in (1, 3):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cores=cores: range(cores))
        found.append(ladder_of([small, fast], fit_to_budget=fit_to_budget))
    assert found[0] == found[1]
    assert len({choice.index for choice in found[0]} & fitted) > 2
