"""The default strategy: many plans, judged by the simulator; the fastest is returned.

A candidate is made in five acts, each a file of its own:

1. buffers and scratch are placed for good (layout.py), so that every layer keeps a gap for its weights;
2. the arena is split: a core with the layout, in which weights are streamed, and the top for pinned weights;
3. layers are cut into slices that fit the gaps of the core a given number of times (slicing.py);
4. segments are chosen to stay at the top (pin.py), small ones in a row are joined into one load (pieces.py);
5. the others are placed as early as possible in pages that are free at the time, core or top (preload.py),
   the first of them in pages that are free at the end of the previous inference (ahead.py).

Without joining, act 5 cannot fail: during its own step a segment always finds the gap that act 3 measured. So
a plan exists for every budget from the smallest layout on. The search is a coordinate descent over the
choices of acts 1 to 5 from a coarse grid (descent.py); the plans of the other strategies are further candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from ..bound import latency_bound, on_demand_bound, piecewise_bound, unpinned_bound
from ..errors import Unplaceable
from ..parts.assemble import Place, assemble
from ..parts.layout import Layout, compact_layout, settling_layout, smallest_layout
from ..parts.pages import pages
from ..parts.pieces import first_alike, pieces_of
from ..parts.ranges import in_two_ranges
from ..problem import PAGE, Plan, Problem, Step, of_problem
from ..published.flexnn import flexnn
from ..published.on_demand import on_demand
from ..published.swapnet import swapnet
from ..simulate import fast_compute, latency_of
from .descent import GOOD_ENOUGH, NO_SLOWER, Choice, Cost, search_of

# of the arena beyond the layout's minimum: first grid, the likeliest and the cheapest to try first
CORE_SHARES = (0.3, 0.15, 0.6, 0.06, 1.0, 0.8, 0.0)
USUAL_SHARES = (1.0, 0.3)  # further starts of sketches besides the origins of nearby plans, which may have other kernels
EFFORT = 70_000  # steps planned in all candidates together; bounds the planning time of huge networks
PIN_MORE = 4  # halvings of the core, in search of fewer bytes
FAST_COMPUTE_EFFORT = EFFORT // 4  # the search for a steady plan gets this less the effort of the first search


def best(problem: Problem, budget: int, near: Sequence[Plan] = ()) -> Plan:
    """The plan of smallest predicted latency for a budget in bytes; of plans within 0.1 %, the one that loads least.

    The plan is never slower than the plan of another named strategy, to the microsecond. Among equally fast plans, plans
    that stay fast with faster computing than predicted come first: loads that would have been in time are then late.
    The search also begins at plans `near`, for similar budgets, maybe with other kernels. Raises Unplaceable below the minimum.
    """
    arena = budget // PAGE * PAGE
    layouts = _layouts(problem, arena)
    resident = resident_plan(problem)
    if resident.arena <= arena:
        return replace(resident, budget=budget)
    faster = fast_compute(problem)
    fast_compute_latency = latency_of(faster)
    search = search_of(problem, budget, layouts, CORE_SHARES, EFFORT)
    found = search.gridded(_starts(near, budget, layouts), PIN_MORE)
    own, spent = [found], search.spent
    if spent < FAST_COMPUTE_EFFORT and fast_compute_latency(found) > GOOD_ENOUGH * latency_bound(faster, budget):
        own.append(search_of(faster, budget, layouts, CORE_SHARES, FAST_COMPUTE_EFFORT - spent).gridded((), PIN_MORE))
    costs = _costs(problem, own)
    rivals = _rivals(problem, budget, min(costs)[0])
    plans, costs = [*own, *rivals], costs + _costs(problem, rivals)
    allowed = min([NO_SLOWER * min(costs)[0], *(latency for latency, *_ in costs[len(own) :])])
    fast = [(cost, one, fast_compute_latency(one)) for cost, one in zip(costs, plans, strict=True) if cost[0] <= allowed]
    steady = NO_SLOWER * min(latency for *_, latency in fast)
    return min(fast, key=lambda one: (one[2] > steady, one[0][1], one[0]))[1]


def search_without_pinning(problem: Problem, budget: int) -> Plan:
    """The best plan that keeps nothing between inferences. Raises Unplaceable below the minimum."""
    return search_of(problem, budget, _layouts(problem, budget), (1.0,), EFFORT).gridded((), 0)


class Sketch:
    """A plan after a short search: a few starts, and on demand a descent from the best of them."""

    latency: float  # of the best start, in the steady state, in seconds; a bound where it exceeds `limit`

    def __init__(self, problem: Problem, budget: int, near: Sequence[Plan] = (), limit: float = inf) -> None:
        """Starts are the origins of plans `near`, for similar budgets, maybe with other kernels, and the usual ones.

        No plan is made for a start that must exceed `limit` seconds. Raises Unplaceable below the minimum.
        """
        self._problem, layouts, resident = problem, _layouts(problem, budget), resident_plan(problem)
        self._resident = replace(resident, budget=budget) if resident.arena <= budget else None
        if self._resident:
            self.latency = latency_of(problem)(resident)
            return
        starts = _starts(near, budget, layouts)
        starts += [
            Choice(layout, share, stored=problem.keeps)
            for layout in range(len(layouts))
            for share in (USUAL_SHARES if starts else CORE_SHARES)
        ]
        self._search = search_of(problem, budget, layouts, CORE_SHARES, EFFORT, limit)
        self._start, (self.latency, *_) = self._search.begin(starts)

    def plan(self) -> Plan:
        """The best plan of a descent from the best start, in two ranges."""
        return self._resident or in_two_ranges(self._problem, self._search.descended(self._start))


def _starts(plans: Iterable[Plan], budget: int, layouts: Sequence[Layout]) -> list[Choice]:
    """The origins of plans, as recorded and with the shares that give cores of the same size."""
    starts = []
    for plan in plans:
        if isinstance(plan.origin, Choice):
            origin = plan.origin._replace(layout=min(plan.origin.layout, len(layouts) - 1))
            minimum = layouts[origin.layout].nbytes
            core = origin.share * max(0, plan.budget - minimum)
            starts += [origin, origin._replace(share=min(1.0, core / max(PAGE, budget - minimum)))]
    return starts


def _rivals(problem: Problem, budget: int, latency: float) -> list[Plan]:
    """Plans of the other named strategies, if found, without strategies whose bound is well above `latency`."""
    plans: list[Plan] = []
    for strategy, bound in ((flexnn, piecewise_bound), (swapnet, unpinned_bound), (on_demand, on_demand_bound)):
        if bound(problem) <= NO_SLOWER * latency + 1e-6:  # a cost is to the microsecond
            with suppress(Unplaceable):
                plans.append(replace(strategy(problem, budget), strategy="best"))
    return plans


@of_problem
def resident_plan(problem: Problem) -> Plan:
    """The smallest plan that loads nothing after its first inference: whole layers, every segment pinned."""
    layout = compact_layout(problem)
    steps = tuple(Step(index, 0, layer.blocks) for index, layer in enumerate(problem.layers))
    first = pages(max((at + nbytes for intervals in layout.occupied for at, nbytes in intervals), default=0))
    pieces = pieces_of(problem, steps)
    alike = first_alike(pieces) if problem.shares else range(len(pieces))
    places = []
    for at, piece in enumerate(pieces):
        places.append(Place(0, first) if alike[at] == at else Place(0, 0, again=alike[at]))
        first += piece.pages if alike[at] == at else 0
    plan = assemble(problem, "best", 0, steps, layout.buffer_at, layout.scratch_at, pieces, places, range(len(steps)))
    return replace(in_two_ranges(problem, plan), budget=plan.arena)


def _costs(problem: Problem, plans: Iterable[Plan]) -> list[Cost]:
    """The costs of plans of any strategy."""
    latency = latency_of(problem)
    return [(round(latency(plan), 6), plan.streamed_nbytes, plan.arena) for plan in plans]


def _layouts(problem: Problem, arena: int) -> list[Layout]:
    """The layouts that fit, the smallest first. Raises Unplaceable if none does."""
    every = smallest_layout(problem), settling_layout(problem), compact_layout(problem)
    fitting = [layout for layout in every if layout.nbytes <= arena // PAGE * PAGE]
    if not fitting:
        raise Unplaceable(f"the smallest arena is {every[0].nbytes:,} B")
    return fitting
