from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flexcomp.plan import (
    PAGE,
    STRATEGIES,
    Buffer,
    InfeasibleError,
    Layer,
    PlanError,
    Problem,
    Storage,
    Weights,
    check,
    ladder,
    latency_bound,
    minimum_budget,
    plan,
    resident_budget,
    simulate,
)
from flexcomp.plan.bound import on_demand_bound, piecewise_bound, unpinned_bound
from flexcomp.plan.parts.minimum import layer_bounds
from flexcomp.plan.parts.ranges import in_two_ranges
from flexcomp.plan.strategies import sketched

from .problems import problems

factors = st.sampled_from([1, 1.01, 1.1, 1.3, 1.7, 2.5, 5, 100])


@given(problems(), factors, st.sampled_from(sorted(STRATEGIES)))
def test_plans_are_right_and_the_same_every_time(problem: Problem, factor: float, strategy: str) -> None:
    budget = int(minimum_budget(problem).nbytes * factor)
    try:
        planned = plan(problem, budget, strategy)
    except InfeasibleError:
        assert strategy in ("flexnn", "swapnet", "without_static_planning")
        return
    assert check(problem, planned) == []
    assert planned.strategy == strategy
    assert planned.budget == budget
    assert planned == in_two_ranges(problem, STRATEGIES[strategy](problem, budget))


@given(problems(), factors, st.sampled_from(["flexnn", "swapnet", "on_demand"]))
def test_what_keeps_nothing_is_not_faster_than_reading_everything(problem: Problem, factor: float, strategy: str) -> None:
    try:
        planned = plan(problem, int(minimum_budget(problem).nbytes * factor), strategy)
    except InfeasibleError:
        return
    latency = simulate(problem, planned).latency
    assert unpinned_bound(problem) <= latency
    assert strategy == "swapnet" or piecewise_bound(problem) <= latency
    assert strategy != "on_demand" or on_demand_bound(problem) <= latency


@given(problems(), factors)
def test_best_is_never_slower_than_any_other(problem: Problem, factor: float) -> None:
    budget = int(minimum_budget(problem).nbytes * factor)
    fastest = simulate(problem, plan(problem, budget)).latency
    for strategy in ("flexnn", "swapnet", "on_demand"):
        try:
            other = plan(problem, budget, strategy)
        except InfeasibleError:
            continue
        assert fastest <= simulate(problem, other).latency + 1e-6


def late_load() -> Problem:
    """A plan that waits for its last load takes 0.1 % longer than one that loads more, ahead of the inference."""
    weights = (Weights(0, 1, 64), Weights(64, 2, 1472), None, None, None, Weights(3008, 2, 576))
    seconds = (0.0, 0.0, 0.0005345645010942842, 0.0008321572858071121, 0.00046052914752725137, 0.00023354494709202218)
    layers = tuple(Layer(f"l{i}", 0, one, time) for i, (one, time) in enumerate(zip(weights, seconds, strict=True)))
    return Problem(layers, (), Storage(1e9, 0.0, together=1.8, latency_s=2e-5))


@example(late_load(), 1, 1.0)
@given(problems(), factors, st.floats(0.5, 1.5))
def test_a_sketch_is_no_slower_than_its_best_start(problem: Problem, factor: float, part: float) -> None:
    budget = int(minimum_budget(problem).nbytes * factor)
    sketch = sketched(problem, budget)
    planned = sketch.plan()
    assert check(problem, planned) == []
    assert simulate(problem, planned).latency <= sketch.latency + 1e-6
    assert latency_bound(problem, budget) <= sketch.latency + 1e-6
    limit = part * sketch.latency
    limited = sketched(problem, budget, limit=limit).latency
    assert limited == sketch.latency or min(limited, sketch.latency) > limit


@given(problems(), factors)
def test_on_demand_plans_never_overlap_loading_and_computing(problem: Problem, factor: float) -> None:
    planned = plan(problem, int(minimum_budget(problem).nbytes * factor), "on_demand")
    timeline = simulate(problem, planned)
    asked = {segment.after for segment in planned.segments if not segment.pinned}  # what is asked for together waits once
    waiting = len(asked) * problem.storage.latency_s
    assert timeline.latency == pytest.approx(timeline.compute + waiting + timeline.loading)


@given(problems(), factors)
def test_ablations_take_away_what_they_say(problem: Problem, factor: float) -> None:
    budget = int(minimum_budget(problem).nbytes * factor)
    assert plan(problem, budget, "without_pinning").pinned_nbytes == 0
    waiting = plan(problem, budget, "without_preloading")
    assert all(s.after == s.step and not s.ahead for s in waiting.segments)
    first = simulate(problem, waiting, cold=True)
    assert first.latency >= first.compute + first.loading - 1e-9


def test_swapnet_takes_the_best_of_all_partitions() -> None:
    seconds = (2.0, 0.5, 3.0, 1.0, 0.1)
    layers = tuple(
        Layer(f"l{i}", 0, Weights(sum(SIZES[:i]) * PAGE, 1, SIZES[i] * PAGE), time) for i, time in enumerate(seconds)
    )
    problem = Problem(layers, (), Storage(bandwidth=PAGE, overhead_s=0.25))
    for pages in (5, 6, 8, 16):
        found = simulate(problem, plan(problem, pages * PAGE, "swapnet")).latency
        assert found == pytest.approx(min(two_in_flight(problem, cuts, pages) for cuts in all_cuts(len(layers))))
    with pytest.raises(InfeasibleError, match="SwapNet cuts no layer"):
        plan(problem, 4 * PAGE, "swapnet")


SIZES = (1, 3, 2, 1, 4)


def all_cuts(layers: int) -> list[tuple[int, ...]]:
    return [cuts for count in range(layers) for cuts in combinations(range(1, layers), count)]


def two_in_flight(problem: Problem, cuts: tuple[int, ...], room: int) -> float:
    """Latency by the delay model, block by block; infinite if two neighbours do not fit in `room` pages."""
    blocks = list(pairwise((0, *cuts, len(problem.layers))))
    sizes = [sum(SIZES[start:stop]) for start, stop in blocks]
    if sizes[0] > room or any(one + other > room for one, other in pairwise(sizes)):
        return float("inf")
    ready = problem.storage.seconds(sizes[0] * PAGE)
    computed = 0.0
    for number, (start, stop) in enumerate(blocks):
        begin = max(ready, computed)
        computed = begin + sum(layer.seconds for layer in problem.layers[start:stop])
        if number + 1 < len(blocks):
            ready = begin + problem.storage.seconds(sizes[number + 1] * PAGE)
    return computed


@given(problems(), factors, st.sampled_from(sorted(STRATEGIES)))
def test_no_plan_beats_the_bound(problem: Problem, factor: float, strategy: str) -> None:
    budget = int(minimum_budget(problem).nbytes * factor)
    try:
        planned = plan(problem, budget, strategy)
    except InfeasibleError:
        return
    assert simulate(problem, planned).latency >= latency_bound(problem, budget) - 1e-12


@given(problems())
def test_the_minimum_is_feasible_and_a_page_less_is_not(problem: Problem) -> None:
    minimum = minimum_budget(problem)
    assert minimum.nbytes >= minimum.bound == max(layer_bounds(problem))
    assert check(problem, plan(problem, minimum.nbytes)) == []
    if minimum.nbytes:
        with pytest.raises(InfeasibleError) as error:
            plan(problem, minimum.nbytes - 1)
        assert (error.value.asked, error.value.minimum) == (minimum.nbytes - 1, minimum)


@given(problems())
def test_from_the_resident_budget_on_nothing_is_loaded_twice(problem: Problem) -> None:
    budget = resident_budget(problem)
    planned = plan(problem, budget + 5)
    assert planned.streamed_nbytes == 0
    assert planned.arena == budget
    assert len(planned.steps) == len(problem.layers)
    assert simulate(problem, planned).stall == pytest.approx(0)


@settings(max_examples=25)
@given(problems(), st.lists(st.floats(1, 4), max_size=2))
def test_ladder(problem: Problem, asked: list[float]) -> None:
    smallest, largest = minimum_budget(problem).nbytes, resident_budget(problem)
    extra = [int(smallest * factor) for factor in asked]
    rungs = ladder(problem, extra=extra)
    assert [rung.budget for rung in rungs] == sorted({*(rung.budget for rung in rungs), *extra})
    assert {smallest, max(smallest, largest)} <= {rung.budget for rung in rungs}
    latencies = [simulate(problem, rung).latency for rung in rungs]
    for index, (smaller, larger) in enumerate(pairwise(rungs)):
        if latencies[index + 1] > latencies[index]:  # it loads less for that, and no slower than need be
            assert larger.streamed_nbytes < smaller.streamed_nbytes
            assert latencies[index + 1] <= 1.001 * min(latencies[: index + 2])
    for rung in rungs:
        assert check(problem, rung) == []


def chain() -> Problem:
    layers = (
        Layer("conv", 128, Weights(0, 4, PAGE), 1e-3),
        Layer("dense", 0, Weights(4 * PAGE, 1, 8 * PAGE), 1e-3),
    )
    buffers = (Buffer("x", 2 * PAGE, 0, 1), Buffer("y", PAGE, 0, 2), Buffer("z", 64, 1, 2))
    return Problem(layers, buffers, Storage(1e9, 0.0))


def test_the_message_says_what_was_asked_what_is_needed_and_why() -> None:
    expected = (
        "budget of 30,000 B is too small for strategy 'best'; the smallest feasible budget is 40,960 B, set by layer dense: "
        "4,160 B of activations, 32,768 B of weights, 0 B of scratch"
    )
    with pytest.raises(InfeasibleError) as error:
        plan(chain(), 30_000)
    assert str(error.value) == expected


def test_ladder_refuses_a_budget_below_the_minimum() -> None:
    with pytest.raises(InfeasibleError):
        ladder(chain(), extra=[PAGE])


def test_unknown_strategy() -> None:
    with pytest.raises(
        PlanError, match="unknown strategy 'lucky'; there are best, flexnn, on_demand, swapnet, "
    ):
        plan(chain(), 10**6, "lucky")


def test_a_network_without_weights_and_an_empty_one() -> None:
    storage = Storage(1e9, 0.0)
    relu = Problem((Layer("relu", 0, None, 1.0),), (Buffer("x", 64, 0, 1), Buffer("y", 64, 0, 1)), storage)
    for strategy in STRATEGIES:
        assert plan(relu, 2 * PAGE, strategy).arena in (PAGE, 2 * PAGE)
    empty = Problem((), (), storage)
    assert minimum_budget(empty).nbytes == 0
    assert plan(empty, 0).steps == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Buffer("t", 63, 0, 1),
        lambda: Buffer("t", 64, 1, 1),
        lambda: Weights(32, 1, 64),
        lambda: Weights(0, 2, 100),
        lambda: Weights(0, 0, 64),
        lambda: Layer("l", 1, None, 0.0),
        lambda: Layer("l", 0, None, -1.0),
        lambda: Storage(0.0, 0.0),
        lambda: replace(chain(), layers=()),
    ],
)
def test_impossible_problems_are_refused(make) -> None:
    with pytest.raises(ValueError):
        make()
