"""The budgets and the planning times that matter, on problems of the size of real networks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import FrameType

import pytest

from flexcomp.plan import PlanError, check, ladder, latency_bound, minimum_budget, plan, resident_budget, simulate
from flexcomp.plan.parts.layout import compact_layout, settling_layout, smallest_layout

from . import networks

MIB = 2**20
NETWORKS = {
    "vgg19": 28,
    "resnet152": 9,
    "resnet50": 9,
    "mobilenet_v2": 7.5,
    "squeezenet": 4.5,
}


@pytest.mark.parametrize(("name", "limit_mib"), NETWORKS.items())
def test_minimum_budget(name: str, limit_mib: float) -> None:
    problem = getattr(networks, name)()
    minimum = minimum_budget(problem)
    assert minimum.nbytes <= limit_mib * MIB
    assert minimum.nbytes <= 1.01 * minimum.bound
    assert check(problem, plan(problem, minimum.nbytes)) == []


@pytest.mark.parametrize("name", NETWORKS)
def test_every_rung_is_right_and_no_slower_than_flexnn(name: str) -> None:
    problem = getattr(networks, name)(networks.PHONE)
    rungs = ladder(problem)
    assert rungs[-1].budget == resident_budget(problem)
    for rung in rungs:
        latency = simulate(problem, rung).latency
        try:
            assert latency <= simulate(problem, plan(problem, rung.budget, "flexnn")).latency + 1e-6
        except PlanError:
            continue
    for smaller, larger in pairwise(rungs):
        fast, slow = simulate(problem, larger).latency, simulate(problem, smaller).latency
        assert fast <= slow or (fast <= 1.001 * slow and larger.streamed_nbytes < smaller.streamed_nbytes)


def test_half_the_memory_hides_most_loading_of_resnet152() -> None:
    problem = networks.resnet152(networks.DISK)
    half = plan(problem, resident_budget(problem) // 2)
    assert simulate(problem, half).latency < 0.65 * simulate(problem, plan(problem, half.budget, "flexnn")).latency


@pytest.mark.parametrize(("strategy", "limit"), [("best", 70_000), ("flexnn", 15_000)])
def test_planning_resnet152_takes_few_calls(strategy: str, limit: int) -> None:
    """Calls of Python functions: half as many again as today. Seconds depend on what else the machine does."""
    problem = replace(networks.resnet152())  # which knows no results yet
    for cached in (smallest_layout, compact_layout, settling_layout):
        cached.cache_clear()
    assert 0 < calls_of(plan, problem, 16 * MIB, strategy) < limit


def test_searching_a_budget_takes_few_calls() -> None:
    """Once layouts are known: C++ goes from point to point, which took 5,157 calls in Python."""
    problem = networks.squeezenet(networks.PHONE)
    budget = resident_budget(problem) * 3 // 4
    plan(problem, budget)
    assert 0 < calls_of(plan, problem, budget) < 1900


def calls_of(function: Callable[..., object], *arguments: object) -> int:
    """How often Python functions are called."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize(("name", "ratio"), [("vgg19", 1.06), ("resnet152", 1.06), ("resnet50", 1.08)])
def test_best_is_close_to_the_bound(name: str, ratio: float) -> None:
    problem = getattr(networks, name)(networks.PHONE)
    smallest, largest = minimum_budget(problem).nbytes, resident_budget(problem)
    for share in (0, 0.25, 0.5, 0.75):
        budget = int(smallest * (largest / smallest) ** share)
        bound = latency_bound(problem, budget)
        assert bound <= simulate(problem, plan(problem, budget)).latency <= ratio * bound
