from __future__ import annotations

import math
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.plan import (
    PAGE,
    Layer,
    Plan,
    PlanError,
    Problem,
    Segment,
    Step,
    Storage,
    Stored,
    Weights,
    minimum_budget,
    plan,
    reuse_distances,
    simulate,
)
from flexcomp.plan.problem import HUGE_PAGE, IN_CACHE, SLICE_S
from flexcomp.plan.simulate import latency_of, step_seconds

from .problems import problems


def rates(problem: Problem, planned: Plan) -> list[tuple[float, float]]:
    """(bandwidth, disturbance) of every load, by the pages that are written between two times of writing one of its own.

    Bytes that are prepared come at the pace of reading and preparing, of which either hides a part of the other, but not where
    one core does both.
    """
    storage = problem.storage
    of_segment = (problem.layers[planned.steps[segment.step].layer].weights for segment in planned.segments)
    slower = 1 + storage.core_contention
    both = ((weights.read, weights.prepare_s * slower * storage.bandwidth) for weights in of_segment)
    prices = (sum(two) if storage.together > 1 else math.hypot(*two) for two in both)
    # Memory beyond the last whole huge page; what is prepared is read to other places.
    edge = planned.arena // HUGE_PAGE * HUGE_PAGE
    more = (
        0.0 if prepared else (storage.small_pages - 1) * np.mean([page >= edge for page in pages])
        for prepared, pages in (
            (problem.layers[planned.steps[one.step].layer].weights.prepare_s, range(one.address, one.address + one.nbytes, PAGE))
            for one in planned.segments
        )
    )
    written = [
        (number, page)
        for number, segment in enumerate(planned.segments)
        for page in range(segment.address, segment.address + segment.nbytes, PAGE)
        if not segment.pinned
    ]
    before, distances = {}, {number: [] for number in range(len(planned.segments))}
    for index, (number, page) in enumerate([*written, *written]):
        if index >= len(written):
            distances[number].append((index - before[page]) * PAGE)
        before[page] = index
    result = []
    for times in distances.values():
        hidden = 0.0
        if storage.cache and times:
            hidden = min(1.0, max(0.0, 3 - 2 * sum(times) / len(times) / storage.cache))
        bandwidth = storage.bandwidth * ((1 - hidden) + storage.cached * hidden) / (next(prices) + next(more))
        result.append((bandwidth, storage.disturbance * max(1 - hidden, IN_CACHE if storage.cache else 0.0)))
    return result


def by_events(problem: Problem, planned: Plan, inferences: int) -> float:
    """Latency of the last of so many inferences by advancing a clock from one completion to the next.

    Pinned segments are there from the start, unless it is one inference. A load is asked for when the step is computed that
    it waits for, and begins after the storage's latency, unless the one before it ends later. While a load runs, its bytes take
    their time from computing; while computing waits, bytes (not what a load costs besides) come faster.
    """
    storage, of_load = problem.storage, rates(problem, planned)
    seconds = step_seconds(problem, planned)
    steps, loads = len(seconds), len(planned.segments)
    if not steps:
        return 0.0
    clock = begin = 0.0
    loaded = 0  # in all inferences together, as steps are counted
    computed_at = [0.0]  # when so many steps were computed
    load_left: list[float] | None = None  # of the load that runs: seconds until it begins, besides its bytes, and for them
    slower = 1.0  # what a second of computing takes beside it
    step_left: float | None = None
    while (computed := len(computed_at) - 1) < inferences * steps:
        lap, segment = loaded // loads if loads else 0, planned.segments[loaded % loads] if loads else None
        if load_left is None and segment and lap <= inferences:
            after = 0 if segment.ahead and not lap else segment.after + (lap - segment.ahead) * steps
            if segment.pinned and (inferences > 1 or lap > 0):
                load_left = [0.0, 0.0, 0.0]
            elif computed >= after:
                idle = max(0.0, computed_at[after] + storage.latency_s - clock)
                bandwidth, disturbance = of_load[loaded % loads]
                load_left = [idle, storage.overhead_s, segment.nbytes / bandwidth]
                preparing = segment.nbytes * storage.prepare_s(problem.layers[planned.steps[segment.step].layer].weights)
                if segment.kept_at >= 0 and inferences > 1:  # asks the storage for nothing; nobody helps
                    load_left = [0.0, preparing, 0.0]
                slower = 1 + (disturbance * segment.nbytes + storage.core_contention * preparing) / sum(load_left[1:])
        if step_left is None and computed // steps * loads + planned.need[computed % steps] <= loaded:
            step_left = seconds[computed % steps]
        part = next((i for i, left in enumerate(load_left) if left), 2) if load_left else 0
        pace, speed = 1.0, storage.together if step_left is None and part == 2 else 1.0
        if load_left and not load_left[0] and any(load_left):
            pace = slower
        loading = inf if load_left is None else load_left[part] / speed
        passing = min(loading, inf if step_left is None else step_left * pace)
        clock += passing
        if load_left is not None:
            load_left[part] = 0.0 if loading <= passing else load_left[part] - passing * speed
            if not any(load_left):
                load_left, loaded = None, loaded + 1
        if step_left is not None:
            step_left = None if step_left * pace <= passing else step_left - passing / pace
            if step_left is None:
                computed_at.append(clock)
                if len(computed_at) - 1 == (inferences - 1) * steps:
                    begin = clock
    return clock - begin


@settings(max_examples=60)
@given(problems(), st.floats(1, 3), st.sampled_from(["best", "flexnn"]), st.booleans())
def test_agrees_with_an_event_simulation(problem: Problem, factor: float, strategy: str, cold: bool) -> None:
    try:
        planned = plan(problem, int(minimum_budget(problem).nbytes * factor), strategy)
    except PlanError:
        return
    timeline = simulate(problem, planned, cold=cold)
    assert timeline.latency == pytest.approx(by_events(problem, planned, 1 if cold else 12), abs=1e-9)
    assert timeline.latency == pytest.approx(timeline.compute + timeline.disturbed + timeline.stall, abs=1e-12)
    assert timeline.latency >= timeline.bound - 1e-12
    for (_, end), (start, _) in zip(timeline.steps, timeline.steps[1:], strict=False):
        assert end <= start + 1e-15
    weights = [problem.layers[planned.steps[segment.step].layer].weights for segment in planned.segments]
    read = sum(
        round(segment.nbytes * its.read)
        for segment, its in zip(planned.segments, weights, strict=True)
        if cold or not (segment.pinned or segment.kept_at >= 0)
    )
    assert timeline.nbytes == read


@settings(max_examples=40)
@given(problems(), st.floats(1, 3), st.sampled_from(["best", "flexnn"]), st.sampled_from([1e-5, 1e-4, 3e-3]))
def test_a_slower_device_delays_each_load_by_no_more_than_its_latency(
    problem: Problem, factor: float, strategy: str, more: float
) -> None:
    """Where loads do not slow down computing: there a load that comes later may fall into a wait, and disturb less."""
    problem = replace(problem, storage=replace(problem.storage, disturbance=0.0, core_contention=0.0))
    try:
        planned = plan(problem, int(minimum_budget(problem).nbytes * factor), strategy)
    except PlanError:
        return
    slow = replace(problem, storage=replace(problem.storage, latency_s=problem.storage.latency_s + more))
    soon, late = (simulate(one, planned, cold=True) for one in (problem, slow))
    asked = len({0 if segment.ahead else segment.after for segment in planned.segments})
    assert soon.latency - 1e-12 <= late.latency <= soon.latency + asked * more + 1e-12
    for early, delayed in zip(soon.loads + soon.steps, late.loads + late.steps, strict=True):
        assert early[0] <= delayed[0] + 1e-12 and early[1] <= delayed[1] + 1e-12
    for segment, (start, _) in zip(planned.segments, late.loads, strict=True):
        after = 0 if segment.ahead else segment.after
        assert start >= (late.steps[after - 1][1] if after else 0.0) + slow.storage.latency_s - 1e-12


def chain() -> tuple[Problem, Plan]:
    """Two layers; the first is cut in two; each load takes 1 s, each layer 4 s."""
    layers = (Layer("a", 0, Weights(0, 2, PAGE), 4.0), Layer("b", 0, Weights(2 * PAGE, 1, PAGE), 4.0))
    problem = Problem(layers, (), Storage(bandwidth=2 * PAGE, overhead_s=0.5))
    segments = (
        Segment(0, 0, PAGE, 0, 0, False),
        Segment(1, PAGE, PAGE, PAGE, 0, False),
        Segment(2, 2 * PAGE, PAGE, 0, 1, False),
    )
    return problem, Plan(
        "by hand", 2 * PAGE, 2 * PAGE, 2 * PAGE, (Step(0, 0, 1), Step(0, 1, 1), Step(1, 0, 1)), (), (-1,) * 3, segments, (1, 2, 3)
    )


def test_by_hand() -> None:
    problem, planned = chain()
    timeline = simulate(problem, planned)
    assert timeline.loads == ((0, 1), (1, 2), (3, 4))
    assert timeline.latency == pytest.approx(1 + 8 + SLICE_S)
    assert timeline.stall == pytest.approx(1)
    assert timeline.bound == pytest.approx(8, abs=1e-4)
    assert timeline.nbytes == 3 * PAGE


def test_pinned_loads_cost_time_only_in_the_first_inference() -> None:
    problem, planned = chain()
    pinned = replace(planned, segments=(planned.segments[0]._replace(pinned=True), *planned.segments[1:]))
    assert simulate(problem, pinned).stall == pytest.approx(0)
    assert simulate(problem, pinned, cold=True).stall == pytest.approx(1)


def test_waits_that_never_end() -> None:
    problem, planned = chain()
    stuck = replace(planned, segments=(planned.segments[0]._replace(after=1), *planned.segments[1:]))
    with pytest.raises(PlanError, match="step 0 waits for a load that waits for 1 steps"):
        simulate(problem, stuck)


def test_sleepers_need_time_to_wake_up():
    """A step behind a load, and a load behind a step, begin late; what need not wait does not."""
    layers = tuple(Layer(str(i), 0, Weights(i * PAGE, 1, PAGE), 1.0) for i in range(2))
    segments = (Segment(0, 0, PAGE, 0, 0, False), Segment(1, PAGE, PAGE, 0, 1, False))
    planned = Plan("", PAGE, PAGE, PAGE, (Step(0, 0, 1), Step(1, 0, 1)), (), (-1, -1), segments, (1, 2))
    plain, slow = (simulate(Problem(layers, (), Storage(PAGE, 0.0, wake)), planned).latency for wake in (0.0, 0.25))
    assert plain == 4.0 and slow == 4.0 + 3 * 0.25


def test_loads_slow_down_the_steps_beside_them():
    """Three pages of 1 s take 0.5 s of computing each, where they do not run in a wait."""
    layers = tuple(Layer(str(i), 0, Weights(i * PAGE, 1, PAGE), 2.0) for i in range(3))
    segments = tuple(Segment(i, i * PAGE, PAGE, i * PAGE, 0, False) for i in range(3))
    planned = Plan("", 3 * PAGE, 3 * PAGE, 3 * PAGE, tuple(Step(i, 0, 1) for i in range(3)), (), (-1,) * 3, segments, (1, 2, 3))
    timeline = simulate(Problem(layers, (), Storage(PAGE, 0.0, disturbance=0.5 / PAGE)), planned)
    # From 1 s on a step runs beside two loads: in 2 s it is done for 2 / 1.5 s.
    assert timeline.steps[0] == pytest.approx((1, 3 + (2 - 2 / 1.5)))
    assert timeline.disturbed == pytest.approx(2 - 2 / 1.5)
    assert timeline.latency == pytest.approx(1 + 6 + timeline.disturbed)
    assert timeline.stall == pytest.approx(1)


def test_who_waits_for_a_load_reads_too():
    """Two loads of 2 s and 1 s besides their bytes; who waits reads half of the bytes that are left."""
    layers = tuple(Layer(str(i), 0, Weights(2 * i * PAGE, 2, PAGE), 2.0) for i in range(2))
    segments = tuple(Segment(i, 2 * i * PAGE, 2 * PAGE, 2 * i * PAGE, 0, False) for i in range(2))
    planned = Plan("", 4 * PAGE, 4 * PAGE, 4 * PAGE, (Step(0, 0, 2), Step(1, 0, 2)), (), (-1, -1), segments, (1, 2))
    timeline = simulate(Problem(layers, (), Storage(PAGE, 1.0, together=2.0)), planned)
    assert timeline.loads == ((0, 2), (2, 2 + 1 + 1 + 0.5))
    assert timeline.steps == ((2, 4), (4.5, 6.5))
    assert timeline.bound == (4 + 4) / 2


def test_only_an_idle_device_has_latency():
    """Loads 0 and 1 are asked for together, load 2 after the first step, while load 1 runs or when nothing runs."""
    layers = tuple(Layer(str(i), 0, Weights(i * PAGE, 1, PAGE), 1.0) for i in range(3))
    segments = tuple(Segment(i, i * PAGE, PAGE, i * PAGE, after, False) for i, after in enumerate((0, 0, 1)))
    planned = Plan("", 3 * PAGE, 3 * PAGE, 3 * PAGE, tuple(Step(i, 0, 1) for i in range(3)), (), (-1,) * 3, segments, (1, 2, 3))
    long = simulate(Problem(layers, (), Storage(PAGE / 2, 0.0, latency_s=0.5)), planned)
    assert long.loads == ((0.5, 2.5), (2.5, 4.5), (4.5, 6.5))
    short = simulate(Problem(layers, (), Storage(4 * PAGE, 0.0, latency_s=0.5, wake_s=0.125)), planned)
    assert short.loads == ((0.5, 0.75), (0.75, 1.0), (2.5, 2.75))
    assert short.latency == 2.75 + 0.125 + 1


def test_loads_of_the_next_inference_slow_down_the_last_steps():
    layers = (Layer("a", 0, Weights(0, 1, PAGE), 4.0), Layer("b", 0, None, 4.0))
    segments = (Segment(0, 0, PAGE, 0, 1, False, ahead=True),)
    planned = Plan("", PAGE, PAGE, PAGE, (Step(0, 0, 1), Step(1, 0, 1)), (), (-1, -1), segments, (1, 1))
    timeline = simulate(Problem(layers, (), Storage(PAGE, 0.0, disturbance=0.5 / PAGE)), planned)
    assert timeline.latency == pytest.approx(8 + 1 - 1 / 1.5)
    assert timeline.stall == pytest.approx(0)


def test_loads_that_stay_in_the_cache_disturb_little():
    storage = Storage(PAGE, 0.0, disturbance=1.0, cache=4 * PAGE, cached=2.0)
    distances = np.array([1, 4, 5, 6, 9]) * PAGE
    bandwidth, disturbance = storage.rates_at(distances)
    assert bandwidth.tolist() == [2 * PAGE, 2 * PAGE, 1.5 * PAGE, PAGE, PAGE]
    assert disturbance.tolist() == [IN_CACHE, IN_CACHE, 0.5, 1, 1]
    bandwidth, disturbance = replace(storage, cache=0).rates_at(distances)
    assert set(bandwidth) == {PAGE} and set(disturbance) == {1}


def test_loads_that_go_round_have_its_size_as_their_distance():
    assert reuse_distances([]).size == 0
    assert reuse_distances([(at * PAGE, PAGE) for at in (3, 4, 5, 3, 4, 5, 3, 4, 5)]).tolist() == [3 * PAGE] * 9
    assert reuse_distances([(0, 2 * PAGE), (2 * PAGE, 2 * PAGE), (PAGE, 2 * PAGE)]).tolist() == [4.5 * PAGE, 4.5 * PAGE, 3 * PAGE]


def test_distances_of_reuse_are_no_whole_bytes():
    """Of a load of three pages one is written again in between: in the mean they come round in a third of a page less."""
    layers = (Layer("a", 0, Weights(0, 3, PAGE), 0.0), Layer("b", 0, Weights(3 * PAGE, 1, PAGE), 0.0))
    segments = (Segment(0, 0, 3 * PAGE, 0, 0, False), Segment(1, 3 * PAGE, PAGE, PAGE, 1, False))
    planned = Plan("", 3 * PAGE, 3 * PAGE, 3 * PAGE, (Step(0, 0, 3), Step(1, 0, 1)), (), (-1, -1), segments, (1, 2))
    problem = Problem(layers, (), Storage(PAGE, 0.0, cache=int(2.5 * PAGE), cached=2.0))
    of_load = rates(problem, planned)
    expected = sum(segment.nbytes / bandwidth for segment, (bandwidth, _) in zip(segments, of_load, strict=True))
    assert simulate(problem, planned).latency == pytest.approx(expected, abs=1e-9)
    assert latency_of(problem)(planned) == pytest.approx(expected, abs=1e-9)


def test_preparing_on_a_core_that_computes_takes_its_time_from_both() -> None:
    """Of one core: what is prepared meanwhile, and what is computed, take as long together as one after the other."""
    weights = Weights(0, 1, PAGE, read=0.0, prepare_s=0.5 / PAGE, stored=Stored(0, 64, 1, 1, 1))
    layers = (Layer("a", 0, None, 1.0), Layer("b", 0, weights, 1.0))
    problem = Problem(layers, (), Storage(1e9, 0.0, core_contention=1.0))
    segments = (Segment(1, 0, PAGE, 0, 0, False, kept_at=PAGE),)
    planned = Plan("by hand", 2 * PAGE, 2 * PAGE, 2 * PAGE, (Step(0, 0, 1), Step(1, 0, 1)), (), (-1, -1), segments, (0, 1))
    timeline = simulate(problem, planned)
    assert timeline.latency == pytest.approx(2.5) and timeline.disturbed == pytest.approx(0.5)
    assert latency_of(problem)(planned) == timeline.latency
