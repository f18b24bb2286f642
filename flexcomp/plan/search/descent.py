"""A coordinate descent over the choices that make a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ..bound import latency_bound
from ..loops import in_python
from ..native import Coordinates, NativeSearch
from ..parts.layout import Layout
from ..problem import PAGE, Plan, Problem
from .candidate import CHOOSERS, PINS, Point, Tried, candidates_of

Cost = tuple[float, int, int]  # latency in the steady state (to the microsecond), bytes to load, bytes of memory
IMPOSSIBLE: Cost = (inf, 0, 0)

SEGMENTS_AT_ONCE = (1, 2, 3, 4, 6, 8, 12)  # segments that fit into a layer's gap at once
GRID_SEGMENTS_AT_ONCE = (2, 4, 10)
JOINED = (0, 5, 12, 30)
STARTS = 2  # points of the grid from which to descend
ROUNDS = 2  # of a descent, at most
LARGE_ARENA = 2**15  # pages at which planning a step takes twice as long
GOOD_ENOUGH = 1.001  # stop at this multiple of the lower bound
NO_SLOWER = 1.001  # fewer bytes to load are worth this


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


class Search:
    """One search: the choices that were tried, and the effort that is spent, in planned steps."""

    def __init__(
        self,
        problem: Problem,
        budget: int,
        layouts: Sequence[Layout],
        core_shares: Sequence[float],
        effort: float,
        limit: float = inf,
    ) -> None:
        """`layouts` fit into the budget, in bytes; `core_shares` are the coarse grid of `Choice.share`.

        Candidates that must exceed `limit` seconds are not made; their cost is a bound.
        """
        self.spent = 0.0
        self._keeps, self._layouts, self._effort = problem.keeps, layouts, effort
        self._arena = budget // PAGE
        cache = problem.storage.cache // PAGE
        self._windows = [cache, 0] if 0 < cache < self._arena else [0]
        in_cache = _in_cache(layouts, self._arena, cache) if len(core_shares) > 1 else []
        self._core_shares = [*in_cache, *core_shares]
        self._pins = PINS if problem.shares else PINS[:-1]
        self._candidates = candidates_of(problem, budget, layouts)
        self._enough = GOOD_ENOUGH * latency_bound(problem, budget)
        self._step_effort = 1 + self._arena / LARGE_ARENA
        self._seen: dict[Choice, tuple[Cost, Point]] = {}
        self._made: dict[Point, Cost] = {}  # different choices may give the same point
        self._limit = limit  # seconds; slower candidates are of no interest

    def gridded(self, starts: Sequence[Choice], pin_more: int) -> Plan:
        """The plan of a coarse grid and of descents from its best points, then of a descent from the best of `starts`.

        Finally the core is halved `pin_more` times in search of a plan that is as fast and loads less; this effort is not
        counted.
        """
        first, _ = self.begin(
            Choice(layout, share, within=window, stored=self._keeps)
            for window in self._windows
            for layout in range(len(self._layouts))
            for share in self._core_shares
        )
        grid = [
            first._replace(share=share, segments_at_once=count)
            for share in self._core_shares
            for count in GRID_SEGMENTS_AT_ONCE
        ]
        if self.cost(first)[0] > self._enough and self.spent <= self._effort:
            self._winner(grid)
            for start in sorted(grid, key=self.cost)[:STARTS]:
                if self.spent <= self._effort:
                    self._descend(start)
        if starts:
            self.spent = min(self.spent, self._effort)  # even with no effort left
            self._descend(self._winner(starts))
        return self._frugal(pin_more)

    def descended(self, start: Choice) -> Plan:
        """The best plan of a descent, no slower than that of `start`."""
        self._descend(start)
        return self._frugal(0, self.cost(start)[0])

    def begin(self, choices: Iterable[Choice]) -> tuple[Choice, Cost]:
        """The best of `choices`, or the first of them with other loads; and its cost."""
        first = self._winner(choices)
        if self.cost(first) == IMPOSSIBLE:  # joined segments find no place
            first = self._winner([first._replace(joined=0)])
        # At any effort: where two slices in flight mean thousands of steps, one may be better.
        if self.cost(first)[0] > self._enough:
            first = self._winner([first._replace(segments_at_once=1), first])
        return first, self.cost(first)

    def _winner(self, choices: Iterable[Choice]) -> Choice:
        """The best of `choices`; stops early once one is good enough or no effort is left."""
        compared: list[Choice] = []
        for choice in choices:
            if choice not in self._seen:
                if self.spent > self._effort and compared:
                    break
                self._try(choice)
            compared.append(choice)
            if self.cost(choice)[0] <= self._enough:
                break
        return min(compared, key=self.cost)

    def _try(self, choice: Choice) -> None:
        point = self._point(choice)
        if point not in self._made:
            tried = self._candidates.attempt(point, self._limit)
            cost = self._made[point] = _cost(tried) if tried else IMPOSSIBLE
            self._limit = min(self._limit, max(self._enough, NO_SLOWER * cost[0]) + 2e-6)  # costs are to the microsecond
            self.spent += tried.effort * self._step_effort if tried else 0.0
        self._seen[choice] = self._made[point], point

    def cost(self, choice: Choice) -> Cost:
        """Of a choice that was tried; of others `IMPOSSIBLE`."""
        return self._seen[choice][0] if choice in self._seen else IMPOSSIBLE

    def _point(self, choice: Choice) -> Point:
        minimum = self._layouts[choice.layout].nbytes // PAGE
        core = minimum + int((self._arena - minimum) * choice.share)
        return Point(
            choice.layout,
            core,
            choice.segments_at_once,
            choice.pins if core < self._arena else PINS[0],  # nothing is pinned
            choice.joined,
            choice.chooser,
            choice.within,
            choice.stored and core < self._arena,
        )

    def _descend(self, point: Choice) -> None:
        for _ in range(ROUNDS):
            before = point
            for line in self._lines():
                point = self._winner(line(point))
            if point == before or self.cost(point)[0] <= self._enough or self.spent > self._effort:
                return

    def _lines(self) -> Iterator:
        """For each coordinate a function from a choice to those that differ in it, the likeliest first."""
        yield lambda at: (at._replace(joined=joined) for joined in JOINED)
        yield lambda at: (at._replace(segments_at_once=count) for count in SEGMENTS_AT_ONCE)
        yield lambda at: (at._replace(chooser=name) for name in CHOOSERS)
        yield lambda at: (at._replace(pins=name) for name in self._pins)
        if self._keeps:
            yield lambda at: (at._replace(stored=stored) for stored in (True, False))
        yield lambda at: (at._replace(within=window) for window in self._windows)
        yield lambda at: (at._replace(layout=index) for index in range(len(self._layouts)))
        yield lambda at: (at._replace(share=share) for share in self._shares_near(at.share))

    def _shares_near(self, share: float) -> list[float]:
        """The share, and those halfway to its neighbours."""
        shares = sorted({*self._core_shares, *(choice.share for choice in self._seen)})
        at = shares.index(share)
        near = shares[max(0, at - 1) : at + 2]
        return [share, *((one + other) / 2 for one, other in pairwise(near))]

    def _frugal(self, pin_more: int, most: float = inf) -> Plan:
        """The plan that loads least of the fastest: loads take memory bandwidth and so disturb computing.

        It takes at most `most` seconds, which the fastest does.
        """
        best = min(self._seen, key=self.cost)
        allowed = min(most, max(self._enough, NO_SLOWER * self.cost(best)[0]))
        searched = self.spent
        low, high = 0.0, best.share
        for _ in range(pin_more):
            choices = [best._replace(share=(low + high) / 2, pins=name) for name in self._pins]
            self.spent = min(self.spent, self._effort)  # even with no effort left
            fitting = [one for one in choices if self._winner([one]) == one and self.cost(one)[0] <= allowed]
            if fitting:
                high = fitting[0].share
            else:
                low = choices[0].share
        self.spent = searched
        fast = [(choice, *one) for choice, one in self._seen.items() if one[0][0] <= allowed]
        choice, _, point = min(fast, key=lambda one: (one[1][1], one[1]))
        return replace(self._candidates.plan(point), origin=choice)


class CompiledSearch(Search):
    """The same search in C++."""

    def __init__(
        self,
        problem: Problem,
        budget: int,
        layouts: Sequence[Layout],
        core_shares: Sequence[float],
        effort: float,
        limit: float = inf,
    ) -> None:
        super().__init__(problem, budget, layouts, core_shares, effort, limit)
        least = [layout.nbytes // PAGE for layout in layouts]
        lines = self._candidates.numbers, least, self._windows, SEGMENTS_AT_ONCE, GRID_SEGMENTS_AT_ONCE, JOINED
        self._compiled = NativeSearch(
            self._candidates.loops, lines, self._core_shares, Coordinates(*_row(Choice(0, 0.0, stored=self._keeps))),
            arena=self._arena, effort=effort, step_effort=self._step_effort, limit=limit, enough=self._enough,
            no_slower=NO_SLOWER, joined_s=problem.storage.single_s, keeps=self._keeps, pins=len(self._pins),
            choosers=len(CHOOSERS), starts=STARTS, rounds=ROUNDS,
        )  # fmt: skip

    def gridded(self, starts: Sequence[Choice], pin_more: int) -> Plan:
        return self._plan(self._compiled.descend([*map(_row, starts)], pin_more))

    def descended(self, start: Choice) -> Plan:
        return self._plan(self._compiled.descend([_row(start)]))

    def begin(self, choices: Iterable[Choice]) -> tuple[Choice, Cost]:
        row, cost = self._compiled.begin([*map(_row, choices)])
        return _choice(row), cost

    def _plan(self, row: tuple[int | float, ...]) -> Plan:
        self.spent, choice = self._compiled.spent, _choice(row)
        return replace(self._candidates.plan(self._point(choice)), origin=choice)


def search_of(
    problem: Problem, budget: int, layouts: Sequence[Layout], core_shares: Sequence[float], effort: float, limit: float = inf
) -> Search:
    """A search in C++, or in Python within `readable`."""
    return (Search if in_python() else CompiledSearch)(problem, budget, layouts, core_shares, effort, limit)


_CHOOSERS = tuple(CHOOSERS)


def _row(choice: Choice) -> tuple[int | float, ...]:
    """A choice with numbers for names."""
    layout, share, segments_at_once, pins, joined, chooser, within, stored = choice
    return layout, share, segments_at_once, PINS.index(pins), joined, _CHOOSERS.index(chooser), within, stored


def _choice(row: tuple[int | float, ...]) -> Choice:
    layout, share, segments_at_once, pins, joined, chooser, within, stored = row
    return Choice(layout, share, segments_at_once, PINS[pins], joined, _CHOOSERS[chooser], within, bool(stored))


def _cost(tried: Tried) -> Cost:
    return round(tried.latency, 6), tried.nbytes, tried.arena


def _in_cache(layouts: Sequence[Layout], arena: int, cache: int) -> list[float]:
    """The share at which the core of the first layout is as large as the cache, in pages."""
    minimum = layouts[0].nbytes // PAGE
    return [(cache - minimum) / (arena - minimum)] if minimum <= cache < arena else []
