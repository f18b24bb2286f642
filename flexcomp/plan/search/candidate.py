"""One point of the search becomes a plan: acts 2 to 5 of `best.py`, and what the simulator says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Protocol

from ..errors import Unplaceable
from ..loops import in_python
from ..parts.assemble import Place, assemble
from ..parts.layout import Layout
from ..parts.pages import span
from ..parts.pieces import Piece, join, pieces_of
from ..parts.preload import Ring, choose_highest, choose_lowest, preload
from ..parts.slicing import finest_segment, slice_to_room
from ..problem import PAGE, Plan, Problem, Step, Storage
from ..simulate import native_problem, simulate
from .ahead import begin_ahead
from .pin import pin_evenly, pin_in_order, pin_small

PINS = ("evenly", "in order", "small")  # C++ has the numbers of both
CHOOSERS = {"ring": Ring, "lowest": lambda: choose_lowest, "highest": lambda: choose_highest}
_NUMBER_OF_CHOOSER = {name: number for number, name in enumerate(CHOOSERS)}


class Point(NamedTuple):
    """What a candidate is made of. Different choices of the search may come to the same."""

    layout: int  # index into the layouts
    core: int  # pages of the arena that belong to the layout, not to pinned segments
    in_flight: int
    pins: str  # one of PINS
    joined: int  # bytes up to which segments are joined, in what the storage reads in the time a load costs anyhow; 0: none
    chooser: str  # one of CHOOSERS
    within: int  # pages that are preferred; 0: none


class Tried(NamedTuple):
    """What a candidate came to; one that is not made, since it would take too long, has no arena."""

    latency: float  # seconds, in the steady state
    nbytes: int  # to load for every inference but the first
    arena: int  # bytes
    effort: int  # steps before neighbouring pinned ones were merged


def joined_nbytes(storage: Storage, joined: int) -> int:
    """Bytes up to which segments are joined, by a point's `joined`."""
    return int(joined * storage.single_s * storage.bandwidth)


class Candidates(Protocol):
    """The candidates of a problem, for one budget and in some layouts, which fit."""

    def attempt(self, point: Point, limit: float = inf) -> Tried | None:
        """None if something finds no place, which happens only where segments are joined.

        What takes more than `limit` seconds at least, wherever segments are placed, is not made: so long it takes.
        """

    def plan(self, point: Point) -> Plan:
        """The plan of a point that is one."""


def candidates_of(problem: Problem, budget: int, layouts: Sequence[Layout]) -> Candidates:
    """Made in C++, or in Python within `readable`."""
    return (Readable if in_python() else Native)(problem, budget, layouts)


class Native:
    """The candidates made in C++."""

    def __init__(self, problem: Problem, budget: int, layouts: Sequence[Layout]) -> None:
        self.problem, self.budget, self.layouts, self.loops = problem, budget, layouts, native_problem(problem)
        self.numbers = [self.loops.number_of(layout) for layout in layouts]

    def attempt(self, point: Point, limit: float = inf) -> Tried | None:
        """As Candidates says."""
        made = self.loops.attempt(self.numbers[point.layout], limit, *self._numbers(point))
        return Tried(made.latency, made.nbytes, made.arena, made.effort) if made else None

    def plan(self, point: Point) -> Plan:
        """As Candidates says."""
        made, steps, segments, need = self.loops.plan(self.numbers[point.layout], *self._numbers(point))
        layout = self.layouts[point.layout]
        scratch_at = tuple(layout.scratch_at[step.layer] for step in steps)
        return Plan("best", self.budget, made.arena, steps, layout.tensor_at, scratch_at, segments, need)

    def _numbers(self, point: Point) -> tuple[int, ...]:
        """In the order of C++."""
        joined = joined_nbytes(self.problem.storage, point.joined)
        pins, chooser = PINS.index(point.pins), _NUMBER_OF_CHOOSER[point.chooser]
        return self.budget // PAGE, point.core, point.in_flight, pins, joined, chooser, point.within


@dataclass(frozen=True)
class _Sliced:
    """What acts 2 to 4 make of a point."""

    steps: tuple[Step, ...]
    pinned: set[int]  # steps
    pieces: list[Piece]
    effort: int  # steps before neighbouring pinned ones were merged


class Readable:
    """The candidates made in Python."""

    def __init__(self, problem: Problem, budget: int, layouts: Sequence[Layout]) -> None:
        self.problem, self.budget, self.layouts = problem, budget, layouts

    def attempt(self, point: Point, limit: float = inf) -> Tried | None:
        """As Candidates says."""
        sliced = self._sliced(point)
        streamed = [piece for piece in sliced.pieces if piece.step not in sliced.pinned]
        least = least_seconds(self.problem, sliced.steps, streamed)
        if least > limit:
            return Tried(least, sum(piece.nbytes for piece in streamed), 0, sliced.effort)
        try:
            made = self._placed(point, sliced)
        except Unplaceable:
            return None
        return Tried(simulate(self.problem, made).latency, made.streamed_nbytes, made.arena, sliced.effort)

    def plan(self, point: Point) -> Plan:
        """As Candidates says."""
        return self._placed(point, self._sliced(point))

    def _placed(self, point: Point, sliced: _Sliced) -> Plan:
        """Act 5. Raises Unplaceable where something finds no place."""
        problem, layout, arena = self.problem, self.layouts[point.layout], self.budget // PAGE
        steps, pinned, pieces = sliced.steps, sliced.pinned, sliced.pieces

        # pinned segments lie at the top of the arena, in step order
        top = first = arena - sum(piece.pages for piece in pieces if piece.step in pinned)
        pinned_at = {}
        for piece in pieces:
            if piece.step in pinned:
                pinned_at[piece.step] = Place(0, first)
                first += piece.pages
        of_layer = layout.free_pages(top * PAGE)
        free = [*(of_layer[step.layer] for step in steps), of_layer[-1]]
        streamed = [piece for piece in pieces if piece.step not in pinned]
        chooser = CHOOSERS[point.chooser]()
        within = span(0, point.within) if point.within else -1
        found = iter(begin_ahead(free, streamed, preload(free, streamed, chooser, within), chooser, within))
        places = [pinned_at[piece.step] if piece.step in pinned else next(found) for piece in pieces]
        scratch_at = [layout.scratch_at[step.layer] for step in steps]
        return assemble(problem, "best", self.budget, steps, layout.tensor_at, scratch_at, pieces, places, pinned)

    def _sliced(self, point: Point) -> _Sliced:
        """The slices, the pins and the loads of a point."""
        problem, arena = self.problem, self.budget // PAGE
        room = self.layouts[point.layout].room(point.core * PAGE)
        most = point.within * PAGE or arena * PAGE
        limits = [
            min(gap, max(finest_segment(layer), min(gap, most) // point.in_flight))
            for layer, gap in zip(problem.layers, room, strict=True)
        ]
        steps = slice_to_room(problem, limits)
        effort = len(steps)
        pinned = self._pinned(steps, room, point)
        steps, pinned = merge_pinned(steps, pinned)
        pieces = pieces_of(problem, steps)
        if point.joined:
            pieces = join(pieces, [limits[step.layer] for step in steps], joined_nbytes(problem.storage, point.joined), pinned)
        return _Sliced(steps, pinned, pieces, effort)

    def _pinned(self, steps: tuple[Step, ...], room: list[int], point: Point) -> set[int]:
        """The steps whose segments stay, in what the core leaves of the arena; `room` in bytes per layer."""
        problem, capacity = self.problem, self.budget // PAGE - point.core
        counts = [0] * len(steps)
        for piece in pieces_of(problem, steps):
            counts[piece.step] = piece.pages
        if point.pins == "in order":
            return pin_in_order(counts, capacity)
        if point.pins == "small":
            return pin_small(counts, capacity)
        seconds = [problem.layers[step.layer].seconds * step.count / problem.layers[step.layer].blocks for step in steps]
        limit = [room[step.layer] // PAGE for step in steps]
        bandwidth = problem.storage.bandwidth / PAGE
        costs = [
            count * problem.load_costs[step.layer] + problem.storage.overhead_s * bandwidth if count else 0
            for count, step in zip(counts, steps, strict=True)
        ]
        return pin_evenly(counts, seconds, limit, capacity, bandwidth, costs)


def least_seconds(problem: Problem, steps: Sequence[Step], streamed: Sequence[Piece]) -> float:
    """Seconds below which no plan of these steps gets that streams these pieces, wherever they are placed."""
    storage = problem.storage.in_cache  # all loads may be
    reading = computing = 0.0
    for piece in streamed:
        reading += storage.overhead_s + piece.nbytes * problem.load_cost_of(steps, piece.step) / storage.bandwidth
    for step in steps:
        layer = problem.layers[step.layer]
        computing += layer.seconds * step.count / layer.blocks + (layer.slice_s if step.first else 0.0)
    return storage.least_seconds(reading, computing) * (1 - 1e-9)


def merge_pinned(steps: tuple[Step, ...], pinned: set[int]) -> tuple[tuple[Step, ...], set[int]]:
    """Neighbouring pinned slices of one layer become one step: they need no cutting."""
    merged: list[Step] = []
    kept: set[int] = set()
    for index, step in enumerate(steps):
        if index in pinned and index - 1 in pinned and merged[-1].layer == step.layer:
            merged[-1] = replace(merged[-1], count=merged[-1].count + step.count)
            continue
        if index in pinned:
            kept.add(len(merged))
        merged.append(step)
    return tuple(merged), kept
