"""The predicted gain of changes: the planner plans the changed network anew, for a few of the library's budgets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from flexcomp import plan
from flexcomp.program import CUDA, MEMORY_UNIT, Prediction, Program, Rung, from_program
from flexcomp.report.changes import Change, changes
from flexcomp.report.replanned import problem_of

PARTS = (0.1, 0.25)  # of everything resident


def gains(program: Program, asked: Rung | None = None) -> list[dict] | None:
    """For each change the smallest budget and the latencies that it leads to; None in libraries without assumed times.

    The kernels of a rung stay. A gain is the ratio of two new plans, with and without the change: searches that begin anew
    miss some of the plans that the build found. The budgets are the smallest, a tenth and a quarter of everything resident,
    the default, and `asked`.
    """
    assumed = from_program(program)
    if assumed is None:
        return None
    rungs = _rungs(program, asked)
    found = changes(program, assumed)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # the planner's loops in C++ release Python
        least = list(threads.map(lambda change: _least(program, assumed, change), found))
        plain = list(threads.map(lambda rung: _latency(program, rung, assumed, None), rungs))
        after = list(threads.map(lambda one: _latency(program, one[1], assumed, one[0]), product(found, rungs)))
    rows = [after[start : start + len(rungs)] for start in range(0, len(after), len(rungs))]
    return [
        {
            **change.facts,
            "min_budget_bytes": nbytes,
            "at": [_gain(rung, *one) for rung, *one in zip(rungs, plain, row, strict=True)],
        }
        for change, nbytes, row in zip(found, least, rows, strict=True)
    ]


def _gain(rung: Rung, plain: float, after: float) -> dict:
    before = rung.predicted_ms
    part = min(1.0, after / plain) if 0 < plain < math.inf else 1.0
    return {"budget_bytes": rung.budget, "before_ms": before, "after_ms": part * before}


def _rungs(program: Program, asked: Rung | None) -> Sequence[Rung]:
    """Each once, ascending."""
    smallest, largest = program.rungs[0].budget, program.rungs[-1].budget
    wanted = [smallest, *(max(smallest, int(part * largest)) for part in PARTS), program.default_budget]
    wanted += [asked.budget] if asked else []
    at = {max(index for index, rung in enumerate(program.rungs) if rung.budget <= nbytes) for nbytes in wanted}
    return [program.rungs[index] for index in sorted(at)]


def _least(program: Program, assumed: Prediction, change: Change) -> int:
    """The smallest budget after the change, in bytes; never more than before."""
    rung = program.rungs[0]
    unit = MEMORY_UNIT if program.space == CUDA else plan.PAGE
    nbytes = plan.minimum_budget(change.apply(problem_of(program, rung, assumed), rung)).nbytes
    return min(rung.budget, plan.rounded_up(nbytes, unit))


def _latency(program: Program, rung: Rung, assumed: Prediction, change: Change | None) -> float:
    """Seconds of a new plan in the budget of a rung; infinite where the search finds none."""
    problem = problem_of(program, rung, assumed)
    if change:
        problem = change.apply(problem, rung)
    try:
        return plan.simulate(problem, plan.plan(problem, rung.budget)).latency
    except plan.InfeasibleError:
        return math.inf
