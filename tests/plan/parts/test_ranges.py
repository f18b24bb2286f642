"""What stays between inferences goes behind all else, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.plan import PAGE, InfeasibleError, Plan, Problem, check, minimum_budget, resident_plan, simulate
from flexcomp.plan.parts.ranges import in_two_ranges
from flexcomp.plan.strategies import STRATEGIES, plan

from ..problems import problems, run_tagged


@given(problems(), st.sampled_from([1, 1.2, 1.6, 2.5]), st.sampled_from(sorted(STRATEGIES)), st.randoms())
def test_wherever_what_stays_lay_it_goes_behind_all_else(problem: Problem, factor: float, strategy: str, random: Random) -> None:
    """Scattered over an arena with a gap in it, as a search might place it."""
    try:
        found = plan(problem, int(minimum_budget(problem).nbytes * factor), strategy)
    except InfeasibleError:
        return
    wild = scattered(problem, found, random)
    moved = in_two_ranges(problem, wild)
    assert check(problem, moved) == [] and moved.arena == found.arena
    assert all(run_tagged(problem, moved, eager=eager) for eager in (False, True))
    assert moved == in_two_ranges(problem, moved)
    assert sum(nbytes for _, nbytes in moved.staying(problem)) == moved.arena - moved.working
    assert simulate(problem, moved).latency == pytest.approx(simulate(problem, wild).latency, rel=1e-12)


def scattered(problem: Problem, planned: Plan, random: Random) -> Plan:
    """A right plan in one range: what stays between other things, in any order, and a page that nothing uses at the end."""
    loads = [(one.address, one.nbytes) for one in planned.segments if not one.pinned]
    buffers = ((at, one.nbytes) for at, one in zip(planned.buffer_at, problem.buffers, strict=True) if not one.stays)
    scratch = zip(planned.scratch_at, (problem.layers[step.layer].scratch for step in planned.steps), strict=True)
    worked = [*loads, *buffers, *scratch]
    inside = {page for at, nbytes in worked for page in range(-(-at // PAGE) * PAGE, at + nbytes, PAGE) if page > at}
    borders = [page for page in range(0, planned.working + PAGE, PAGE) if page not in inside]
    stays = list(planned.staying(problem))
    random.shuffle(stays)
    before = sorted((random.choice(borders), number) for number in range(len(stays)))

    def up(address: int) -> int:
        return address + sum(stays[number][1] for border, number in before if border <= address) if address >= 0 else address

    new, below = {}, 0
    for border, number in before:
        new[stays[number][0]] = border + below
        below += stays[number][1]
    segments = tuple(
        one._replace(address=new[one.address] if one.pinned else up(one.address), kept_at=new.get(one.kept_at, -1))
        for one in planned.segments
    )
    return replace(
        planned,
        arena=planned.arena + PAGE,
        working=planned.arena + PAGE,
        buffer_at=tuple(new[at] if one.stays else up(at) for at, one in zip(planned.buffer_at, problem.buffers, strict=True)),
        scratch_at=tuple(map(up, planned.scratch_at)),
        segments=segments,
    )


@given(problems())
def test_plans_that_load_nothing_are_in_two_ranges_too(problem: Problem) -> None:
    planned = resident_plan(problem)
    assert check(problem, planned) == []
    state = sum(buffer.nbytes for buffer in problem.buffers if buffer.stays)
    assert planned.arena - planned.working == planned.pinned_nbytes + state
