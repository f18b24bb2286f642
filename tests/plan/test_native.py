"""The planner's inner loops in C++ give what the Python ones give, bit for bit: same plans, same latencies, same choices."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.plan import (
    PAGE,
    STRATEGIES,
    InfeasibleError,
    Layer,
    Mixture,
    Plan,
    PlanError,
    Problem,
    Storage,
    ladder,
    latency_bound,
    layer_bounds,
    minimum_budget,
    plan,
    resident_budget,
    simulate,
)
from flexcomp.plan.bound import Cuts, live_at_cuts
from flexcomp.plan.loops import readable
from flexcomp.plan.native import block_starts
from flexcomp.plan.parts.layout import compact_layout, settling_layout, smallest_layout
from flexcomp.plan.parts.slicing import live_bytes
from flexcomp.plan.placement import Record, place_in_order, search
from flexcomp.plan.published import swapnet
from flexcomp.plan.search.candidate import CHOOSERS, PINS, Native, Point, Readable
from flexcomp.plan.search.descent import JOINED
from flexcomp.plan.simulate import latency_of
from flexcomp.plan.strategies import sketched

from . import networks
from .problems import choices, problems

NETWORKS = ("vgg19", "resnet152", "resnet50", "mobilenet_v2", "squeezenet")


@st.composite
def points(draw: st.DrawFn, cores: list[int], arena: int) -> Point:
    layout = draw(st.integers(0, len(cores) - 1))
    return Point(
        layout,
        draw(st.integers(cores[layout], arena)),
        draw(st.integers(1, 12)),
        draw(st.sampled_from(PINS)),
        draw(st.sampled_from(JOINED)),
        draw(st.sampled_from(list(CHOOSERS))),
        draw(st.sampled_from([0, 1, 4, 30])),
        draw(st.booleans()),
    )


def both(problem: Problem, budget: int) -> tuple[Native, Readable, list[int]]:
    """The candidates made both ways, and the smallest core of every layout that fits, in pages."""
    layouts = [make(problem) for make in (smallest_layout, settling_layout, compact_layout)]
    layouts = [layout for layout in layouts if layout.nbytes <= budget]
    cores = [layout.nbytes // PAGE for layout in layouts]
    return Native(problem, budget, layouts), Readable(problem, budget, layouts), cores


@settings(max_examples=160)  # `make fuzz` draws others
@given(st.data(), problems(), st.sampled_from([1, 1.01, 1.1, 1.3, 1.7, 2.5, 5]), st.sampled_from([0.0, 3e-5, 1e-3]))
def test_candidates_are_the_same(data: st.DataObject, problem: Problem, factor: float, wake_s: float) -> None:
    problem = replace(problem, storage=replace(problem.storage, wake_s=wake_s))
    budget = int(minimum_budget(problem).nbytes * factor)
    native, python, cores = both(problem, budget)
    point = data.draw(points(cores, budget // PAGE))
    tried = native.attempt(point)
    assert tried == python.attempt(point)
    if tried:
        assert native.plan(point) == python.plan(point)
        limit = data.draw(st.floats(0.5, 1.1)) * tried.latency
        limited = native.attempt(point, limit)
        assert limited == python.attempt(point, limit)
        # What is not made takes longer than the limit, and no longer than it is said to.
        assert limited == tried or (limit < limited.latency <= tried.latency + 1e-9 and not limited.arena)
        assert limited.nbytes == tried.nbytes or (problem.shares and limited.nbytes < tried.nbytes)


@settings(max_examples=60)
@given(problems(), st.sampled_from([1, 1.1, 1.5, 2.5]), st.sampled_from(sorted(STRATEGIES)), st.booleans())
def test_plans_are_the_same(problem: Problem, factor: float, strategy: str, short: bool) -> None:
    budget = int(minimum_budget(problem).nbytes * factor)

    def planned() -> Plan:
        return sketched(problem, budget, strategy).plan() if short else plan(problem, budget, strategy)

    try:
        found = planned()
    except InfeasibleError as error:
        with readable(), pytest.raises(InfeasibleError) as of_python:
            planned()
        assert str(of_python.value) == str(error)
        return
    with readable():
        assert planned() == found
        assert latency_of(problem)(found) == simulate(problem, found).latency
    assert latency_of(problem)(found) == simulate(problem, found).latency


@given(problems(), st.floats(0, 3), st.sampled_from([1.0, 1.8]))
def test_bounds_are_the_same(problem: Problem, factor: float, together: float) -> None:
    problem = replace(problem, storage=replace(problem.storage, together=together))
    budget = int(factor * minimum_budget(problem).nbytes)
    cuts = Cuts(live_at_cuts(live_bytes(problem)), budget, problem.storage)
    seconds = np.array([layer.seconds for layer in problem.layers])
    nbytes = np.array([layer.weights.nbytes if layer.weights else 0.0 for layer in problem.layers])
    with readable():
        values = cuts.values(seconds, nbytes)
        bound = latency_bound(problem, budget)
    assert (cuts.values(seconds, nbytes) == values).all()
    assert latency_bound(problem, budget) == bound


@settings(max_examples=200)
@given(choices(12), st.floats(0, 3), st.sampled_from([1.0, 1.8]), st.sampled_from([0.0, 2e-9]))
def test_choices_are_the_same(
    case: tuple[Problem, list[list[Layer]]], factor: float, together: float, disturbance: float
) -> None:
    problem, options = case
    problem = replace(problem, storage=replace(problem.storage, together=together, disturbance=disturbance))
    least = max(layer_bounds(problem))
    budget, limit = int((1 + factor) * least), int((1 + factor / 2) * least)
    picks = Mixture(problem, options).best(budget, limit)
    with readable():
        assert Mixture(problem, options).best(budget, limit) == picks


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(0, 9), st.sampled_from([1, 4]))), st.randoms())
def test_placements_are_the_same(rows: list[tuple[int, int, int, int]], random: Random) -> None:
    records = [Record(start, start + length, nbytes, align) for start, length, nbytes, align in rows]
    order = random.sample(range(len(records)), random.randint(0, len(records)))
    found, searched = place_in_order(records, order), search(records, 20, 4)
    with readable():
        assert place_in_order(records, order) == found
        assert search(records, 20, 4) == searched


@pytest.mark.parametrize("name", NETWORKS)
def test_plans_of_networks_are_the_same(name: str) -> None:
    problem = getattr(networks, name)(networks.PHONE)
    budgets = [int(part * resident_budget(problem)) for part in (0.25, 0.6)]
    found = ladder(problem, budgets)
    with readable():
        assert ladder(problem, budgets) == found


def test_waits_that_never_end_are_told() -> None:
    problem = networks.squeezenet()
    found = plan(problem, minimum_budget(problem).nbytes)
    stuck = replace(found, need=(len(found.segments), *found.need[1:]))
    with pytest.raises(PlanError) as of_python:
        simulate(problem, stuck)
    with pytest.raises(PlanError) as of_native:
        latency_of(problem)(stuck)
    assert str(of_native.value) == str(of_python.value)


def test_what_is_readable_runs_no_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("C++ was asked")

    problem = networks.squeezenet()
    budget = 2 * minimum_budget(problem).nbytes
    monkeypatch.setattr("flexcomp.plan.native._call", refuse)
    with readable():
        sketched(problem, budget).plan()
    with pytest.raises(AssertionError, match="C\\+\\+ was asked"):
        sketched(problem, budget)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=24), st.integers(1, 12), st.integers(0, 3))
def test_blocks_of_swapnet_are_those_of_the_readable_loop(layers: list[tuple[int, int]], room: int, fixed: int) -> None:
    """Of small whole numbers, so that many partitions take equally long; the first of them counts."""
    nbytes, tenths = (np.concatenate([[0], np.cumsum(column)]) for column in zip(*layers, strict=True))
    wanted = nbytes, tenths / 10, Storage(bandwidth=10, overhead_s=fixed / 10), room
    assert block_starts(*wanted) == swapnet._starts(*wanted)
