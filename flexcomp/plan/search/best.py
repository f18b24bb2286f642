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
choices of acts 1 to 5 from a coarse grid; the plans of the other strategies are further candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ..bound import latency_bound, on_demand_bound, piecewise_bound, unpinned_bound
from ..errors import Unplaceable
from ..parts.assemble import Place, assemble
from ..parts.layout import Layout, compact_layout, settling_layout, smallest_layout
from ..parts.pages import pages
from ..parts.pieces import first_alike, pieces_of
from ..parts.ranges import in_two_ranges
from ..problem import PAGE, Plan, Problem, Step
from ..published.flexnn import flexnn
from ..published.on_demand import on_demand
from ..published.swapnet import swapnet
from ..simulate import fast_compute, latency_of
from .candidate import CHOOSERS, PINS, Point, Tried, candidates_of

Cost = tuple[float, int, int]  # the objective, see _cost
IMPOSSIBLE: Cost = (inf, 0, 0)

# of the arena beyond the layout's minimum: first grid, the likeliest and the cheapest to try first
CORE_SHARES = (0.3, 0.15, 0.6, 0.06, 1.0, 0.8, 0.0)
USUAL_SHARES = (1.0, 0.3)  # further starts of sketches besides the origins of nearby plans, which may have other kernels
SEGMENTS_AT_ONCE = (1, 2, 3, 4, 6, 8, 12)  # segments that fit into a layer's gap at once
GRID_SEGMENTS_AT_ONCE = (2, 4, 10)
JOINED = (0, 5, 12, 30)
STARTS = 2  # points of the grid from which to descend
ROUNDS = 2  # of a descent, at most
EFFORT = 70_000  # steps planned in all candidates together; bounds the planning time of huge networks
LARGE_ARENA = 2**15  # pages at which planning a step takes twice as long
GOOD_ENOUGH = 1.001  # stop at this multiple of the lower bound
NO_SLOWER = 1.001  # fewer bytes to load are worth this
PIN_MORE = 4  # halvings of the core, in search of fewer bytes
FAST_COMPUTE_EFFORT = EFFORT // 4  # the search for a steady plan gets this less the effort of the first search


class Choice(NamedTuple):
    """One point of the search."""

    layout: int  # index into the layouts that fit
    share: float  # of the arena beyond the layout's minimum that belongs to the core, not to pinned segments
    segments_at_once: int = 2
    pins: str = "evenly"  # one of PINS
    joined: int = 12  # bytes up to which segments are joined, in bytes that the storage reads in the fixed time of a load
    chooser: str = "ring"
    within: int = 0  # pages in which loads go round, if there is room at the time; 0: the arena
    stored: bool = False  # as Point.stored


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
    found, spent = _search(problem, budget, CORE_SHARES, layouts, EFFORT, PIN_MORE, _starts(near, budget, layouts))
    own = [found]
    if spent < FAST_COMPUTE_EFFORT and fast_compute_latency(found) > GOOD_ENOUGH * latency_bound(faster, budget):
        own.append(_search(faster, budget, CORE_SHARES, layouts, FAST_COMPUTE_EFFORT - spent, PIN_MORE)[0])
    costs = _costs(problem, own)
    rivals = _rivals(problem, budget, min(costs)[0])
    plans, costs = [*own, *rivals], costs + _costs(problem, rivals)
    allowed = min([NO_SLOWER * min(costs)[0], *(latency for latency, *_ in costs[len(own) :])])
    fast = [(cost, one, fast_compute_latency(one)) for cost, one in zip(costs, plans, strict=True) if cost[0] <= allowed]
    steady = NO_SLOWER * min(latency for *_, latency in fast)
    return min(fast, key=lambda one: (one[2] > steady, one[0][1], one[0]))[1]


def search_without_pinning(problem: Problem, budget: int) -> Plan:
    """The best plan that keeps nothing between inferences. Raises Unplaceable below the minimum."""
    return _search(problem, budget, (1.0,), _layouts(problem, budget), EFFORT)[0]


def sketch(problem: Problem, budget: int, near: Sequence[Plan] = ()) -> Plan:
    """The first plan that the search for the best finds: hardly slower, and not slower than the other named strategies.

    The search also begins at the origins of plans `near`, for similar budgets, maybe with other kernels. Raises Unplaceable
    below the minimum.
    """
    layouts = _layouts(problem, budget)
    resident = resident_plan(problem)
    if resident.arena <= budget:
        return replace(resident, budget=budget)
    starts = _starts(near, budget, layouts)
    starts += [
        Choice(layout, share, stored=problem.keeps)
        for layout in range(len(layouts))
        for share in (USUAL_SHARES if starts else CORE_SHARES)
    ]
    found, _ = _search(problem, budget, CORE_SHARES, layouts, EFFORT, starts=starts, gridded=False)
    (cost,) = _costs(problem, [found])
    rivals = _rivals(problem, budget, cost[0])
    return min([(cost, found), *zip(_costs(problem, rivals), rivals, strict=True)], key=lambda one: one[0])[1]


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


@lru_cache(maxsize=256)
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


def _cost(tried: Tried) -> Cost:
    """The objective: latency in the steady state (to the microsecond), bytes to load, bytes of memory."""
    return round(tried.latency, 6), tried.nbytes, tried.arena


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


def _search(
    problem: Problem,
    budget: int,
    core_shares: Sequence[float],
    layouts: Sequence[Layout],
    effort: float,
    pin_more: int = 0,
    starts: Sequence[Choice] = (),
    gridded: bool = True,
) -> tuple[Plan, float]:
    """Coarse grid, then one coordinate after the other from the best few points. Returns the plan and the effort.

    Then a descent from the best of `starts`; if not `gridded`, only this descent. Finally the core is halved `pin_more` times
    in search of a plan that is as fast and loads less.
    """
    arena = budget // PAGE
    cache = problem.storage.cache // PAGE
    windows = [cache, 0] if 0 < cache < arena else [0]
    if len(core_shares) > 1:
        core_shares = [*_in_cache(layouts, arena, cache), *core_shares]
    seen: dict[Choice, tuple[Cost, Point]] = {}
    made: dict[Point, Cost] = {}  # different choices may give the same point
    candidates = candidates_of(problem, budget, layouts)
    ways_to_pin = PINS if problem.shares else PINS[:-1]
    enough = GOOD_ENOUGH * latency_bound(problem, budget)
    step_effort = 1 + arena / LARGE_ARENA
    spent = 0.0
    limit = inf  # seconds; slower candidates are of no interest

    def winner(choices: Iterable[Choice]) -> Choice:
        """The best of `choices`; stops early once one is good enough or no effort is left."""
        nonlocal spent, limit
        compared: list[Choice] = []
        for choice in choices:
            if choice not in seen:
                if spent > effort and compared:
                    break
                point = _point(arena, layouts[choice.layout], choice)
                if point not in made:
                    tried = candidates.attempt(point, limit)
                    made[point] = _cost(tried) if tried else IMPOSSIBLE
                    limit = min(limit, max(enough, NO_SLOWER * made[point][0]) + 2e-6)  # costs are to the microsecond
                    spent += tried.effort * step_effort if tried else 0.0
                seen[choice] = made[point], point
            compared.append(choice)
            if seen[choice][0][0] <= enough:
                break
        return min(compared, key=lambda choice: seen[choice][0])

    def descend(point: Choice) -> None:
        for _ in range(ROUNDS):
            before = point
            point = winner(point._replace(joined=joined) for joined in JOINED)
            point = winner(point._replace(segments_at_once=count) for count in SEGMENTS_AT_ONCE)
            point = winner(point._replace(chooser=name) for name in CHOOSERS)
            point = winner(point._replace(pins=name) for name in ways_to_pin)
            if problem.keeps:
                point = winner(point._replace(stored=stored) for stored in (True, False))
            point = winner(point._replace(within=window) for window in windows)
            point = winner(point._replace(layout=index) for index in range(len(layouts)))
            shares = sorted({*core_shares, *(choice.share for choice in seen)})
            at = shares.index(point.share)
            near = shares[max(0, at - 1) : at + 2]
            between = [(one + other) / 2 for one, other in pairwise(near)]
            point = winner(point._replace(share=share) for share in [point.share, *between])
            if point == before or seen[point][0][0] <= enough or spent > effort:
                return

    first = winner(
        Choice(layout, share, within=window, stored=problem.keeps)
        for window in windows
        for layout in range(len(layouts))
        for share in core_shares
    ) if gridded else winner(starts)
    if seen[first][0] == IMPOSSIBLE:  # joined segments find no place
        first = winner([first._replace(joined=0)])
    # At any effort: where two slices in flight mean thousands of steps, one may be better.
    if seen[first][0][0] > enough:
        first = winner([first._replace(segments_at_once=1), first])
    grid = [
        first._replace(share=share, segments_at_once=count) for share in core_shares for count in GRID_SEGMENTS_AT_ONCE
    ]
    if not gridded:
        descend(first)
    elif seen[first][0][0] > enough and spent <= effort:
        winner(grid)
        for start in sorted(grid, key=lambda choice: seen[choice][0] if choice in seen else IMPOSSIBLE)[:STARTS]:
            if spent <= effort:
                descend(start)
    if gridded and starts:
        spent = min(spent, effort)  # even with no effort left
        descend(winner(starts))
    best = min(seen, key=lambda choice: seen[choice][0])
    allowed = max(enough, NO_SLOWER * seen[best][0][0])
    # Loads take memory bandwidth and so disturb computing: load as little as possible without losing time.
    searched = spent
    low, high = 0.0, best.share
    for _ in range(pin_more):
        choices = [best._replace(share=(low + high) / 2, pins=name) for name in ways_to_pin]
        spent = min(spent, effort)  # even with no effort left
        fitting = [choice for choice in choices if winner([choice]) == choice and seen[choice][0][0] <= allowed]
        if fitting:
            high = fitting[0].share
        else:
            low = choices[0].share
    frugal = [(choice, *one) for choice, one in seen.items() if one[0][0] <= allowed]
    choice, _, point = min(frugal, key=lambda one: (one[1][1], one[1]))
    return replace(candidates.plan(point), origin=choice), searched


def _in_cache(layouts: Sequence[Layout], arena: int, cache: int) -> list[float]:
    """The share at which the core of the first layout is as large as the cache, in pages."""
    minimum = layouts[0].nbytes // PAGE
    return [(cache - minimum) / (arena - minimum)] if minimum <= cache < arena else []


def _point(arena: int, layout: Layout, choice: Choice) -> Point:
    """The point of a choice in an arena of `arena` pages."""
    minimum = layout.nbytes // PAGE
    core = minimum + int((arena - minimum) * choice.share)
    return Point(
        choice.layout,
        core,
        choice.segments_at_once,
        choice.pins if core < arena else PINS[0],  # nothing is pinned
        choice.joined,
        choice.chooser,
        choice.within,
        choice.stored and core < arena,
    )
