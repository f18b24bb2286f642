"""Who is run, when, and what traces are taken for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexcomp.errors import ArtifactError
from flexcomp.profiling.observing import RUNGS, Observations, Runs, note, observe
from flexcomp.program import CountArg, FirstArg, Layer, Preparation, Prepared, Program, TensorType, WeightArg, Weights
from flexcomp.runtime.trace import Trace
from tests.by_hand import by_hand

from .networks import PAGE, Network, program_of


def test_plans_run_in_turns():
    networks = Network(program_of(8)), Network(program_of(2))
    seen = observe(networks, repeat=6)
    assert seen.plans == RUNGS + 2
    for network, rungs in zip(networks, ([0, 1, 3, 4, 6, 7], [0, 1]), strict=True):
        turn = [(rung, 2) for rung in rungs]
        assert network.asked == turn * (len(network.asked) // len(turn))
        assert sum(repeat for rung, repeat in network.asked if rung == 0) >= 6
    assert len(seen.steps) == 2 and all(len(steps) == seen.plans for steps in seen.steps.values())


def test_few_inferences_make_few_turns():
    network = Network(program_of(1))
    observe([network], repeat=1)
    assert network.asked == [(0, 1)]


def test_different_threads_are_refused():
    with pytest.raises(ArtifactError, match="give --threads"):
        observe([Network(program_of(1)), Network(program_of(1), threads=2)])


def test_inferences_of_a_plan_belong_together():
    program, runs = program_of(2), Runs()
    for rung in (0, 1, 0):
        runs.add(program, Network(program).traces(program.rungs[rung].budget, 1, 3))
    assert runs.observations().plans == 2
    assert len(runs.observations().releases) == 9


def test_what_waited():
    """Step a waits for its load, the load of b for step a, and step b for its load; times in nanoseconds."""
    seen, program = Observations(), program_of(1)
    note(seen, program, program.rungs[0], [Trace(0, 0, 400, ((100, 200), (250, 350)), ((10, 90), (210, 260)))])
    assert seen.releases == [pytest.approx(10e-9)]
    assert [load.waited for load in seen.loads] == [1.0, pytest.approx(40 / 50)]
    (a,), (b,) = seen.steps.values()
    assert (a.nbytes, b.nbytes) == (0.0, pytest.approx(PAGE / 5))


def test_pinned_loads_are_nobody_s_predecessor():
    """The load of a was read long ago: nobody knows whether the loader was free when b's could begin."""
    seen, program = Observations(), program_of(1, (True, False))
    note(seen, program, program.rungs[0], [Trace(0, 0, 400, ((100, 200), (360, 390)), ((0, 0), (310, 350)))])
    assert seen.releases == []
    assert len(seen.loads) == 1


def preparing(program: Program) -> list[Layer]:
    """Its layers, with weights that can be prepared from as many stored bytes."""
    panel = WeightArg(0, TensorType((1, 1, PAGE // 4)))
    made = Preparation("prepare", TensorType((1, 1, PAGE // 4)), PAGE // 4)
    args = (panel, FirstArg(), CountArg())
    return [replace(one, args=args, weights=replace(one.weights, preparation=made)) for one in program.layers]


def test_loads_behind_one_that_is_prepared_are_not_counted():
    """Their spans contain what the loader did meanwhile: those of b, c behind it, and a, which is read ahead behind d."""
    program = program_of(1)
    plan = by_hand(program, program.rungs[0])
    (a, b), made = plan.loads, Prepared(0, 0, 1, 0)
    spans = ((0, 50), (60, 90), (110, 150), (160, 200))
    for prepared, counted in ((), {0, 1, 2, 3}), ((1,), {0, 3}), ((3,), {1, 2}), ((1, 2), {0}):
        loads = [replace(load, nbytes=(at + 1) * PAGE) for at, load in enumerate((replace(a, ahead=True), b, b, b))]
        loads = tuple(replace(load, prepared=made if at in prepared else None) for at, load in enumerate(loads))
        seen = Observations()
        rung = replace(plan, loads=loads).rung(preparing(program))
        note(seen, program, rung, [Trace(0, 0, 400, ((210, 220), (250, 350)), spans)])
        assert {load.nbytes // PAGE - 1 for load in seen.loads} == counted


def test_what_preparing_takes():
    """Of loads that prepare in every inference; a pinned one's happened once, and says nothing of the rest."""
    program = program_of(1)
    plan, made = by_hand(program, program.rungs[0]), Prepared(1, 0, 1, 0)
    trace = Trace(0, 0, 400, ((100, 200), (250, 350)), ((0, 90), (60, 90)), prepares=((0, 0), (90, 130)))
    for pinned, seconds in ((False, 40e-9), (True, 0.0)):
        seen = Observations()
        loads = plan.loads[0], replace(plan.loads[1], prepared=made, pinned=pinned)
        note(seen, program, replace(plan, loads=loads).rung(preparing(program)), [trace])
        assert seen.preparing_s == pytest.approx(seconds)
        assert seen.prepared_nbytes == (0 if pinned else PAGE)


def test_tensors_are_those_that_are_stored_where_a_load_reads():
    """A layer whose weights are prepared of another's takes none of its own from the file, as large as they may be."""
    program = program_of(1)
    stored = TensorType((1, PAGE // 4))
    prepared = Weights(0, 1, 4 * PAGE, Preparation("prepare", stored, 1))
    layers = (*program.layers, replace(program.layers[0], name="a.winograd", weights=prepared))
    seen, rung = Observations(), program.rungs[0]
    note(seen, replace(program, layers=layers), rung, [Trace(0, 0, 400, ((100, 200), (250, 350)), ((0, 90), (210, 240)))])
    assert [load.tensors for load in seen.loads] == [1, 1]
