"""One point of the search becomes a plan: acts 2 to 5 of `best.py`, and the simulated latency."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, Protocol

from ..errors import Unplaceable
from ..loops import in_python
from ..parts.assemble import Place, assemble
from ..parts.layout import Layout
from ..parts.pages import span
from ..parts.pieces import Piece, first_alike, join, pieces_of
from ..parts.preload import Ring, choose_highest, choose_lowest, preload
from ..parts.slicing import finest_segment, slice_to_room
from ..problem import PAGE, Plan, Problem, Step, Storage, Weights
from ..simulate import native_problem, simulate
from .ahead import begin_ahead
from .pin import most_read, pin_evenly, pin_in_order, pin_small

PINS = ("evenly", "in order", "small", "shared")  # in the order of C++; without shared weights "shared" equals "evenly"
CHOOSERS = {"ring": Ring, "lowest": lambda: choose_lowest, "highest": lambda: choose_highest}
_NUMBER_OF_CHOOSER = {name: number for number, name in enumerate(CHOOSERS)}


class Point(NamedTuple):
    """The parameters of a candidate. Different choices of the search may give the same point."""

    layout: int  # index into the layouts
    core: int  # pages of the arena that belong to the layout, not to pinned segments
    segments_at_once: int
    pins: str  # one of PINS
    joined: int  # bytes up to which segments are joined, in bytes that the storage reads in the fixed time of a load; 0: none
    chooser: str  # one of CHOOSERS
    within: int  # pages that are preferred; 0: none
    stored: bool = False  # where prepared weights find no room to stay, their stored weights stay, if fewer bytes


class Tried(NamedTuple):
    """The result of a candidate; a candidate that is not made, since the plan would be too slow, has no arena."""

    latency: float  # seconds, in the steady state
    nbytes: int  # to load for every inference but the first
    arena: int  # bytes
    effort: int  # steps before neighbouring pinned ones were merged


def joined_nbytes(storage: Storage, joined: int) -> int:
    """Bytes up to which segments are joined, by a point's `joined`."""
    return int(joined * storage.single_s * storage.bandwidth)


class Candidates(Protocol):
    """The candidates of a problem, for one budget and layouts that fit."""

    def attempt(self, point: Point, limit: float = inf) -> Tried | None:
        """None if something finds no place, which happens only where segments are joined.

        If a lower bound for any placement of the segments exceeds `limit` seconds, no plan is made and the bound is the latency.
        """

    def plan(self, point: Point) -> Plan:
        """The plan of a point for which `attempt` finds places."""


def candidates_of(problem: Problem, budget: int, layouts: Sequence[Layout]) -> Candidates:
    """Made in C++, or in Python within `readable`."""
    return (Readable if in_python() else Native)(problem, budget, layouts)


class Native:
    """The candidates made in C++."""

    def __init__(self, problem: Problem, budget: int, layouts: Sequence[Layout]) -> None:
        self.problem, self.budget, self.layouts, self.loops = problem, budget, layouts, native_problem(problem)
        self.numbers = [self.loops.number_of(layout) for layout in layouts]

    def attempt(self, point: Point, limit: float = inf) -> Tried | None:
        """See `Candidates`."""
        made = self.loops.attempt(self.numbers[point.layout], limit, *self._numbers(point))
        return Tried(made.latency, made.nbytes, made.arena, made.effort) if made else None

    def plan(self, point: Point) -> Plan:
        """See `Candidates`."""
        made, steps, segments, need, again = self.loops.plan(self.numbers[point.layout], *self._numbers(point))
        layout = self.layouts[point.layout]
        scratch_at = tuple(layout.scratch_at[step.layer] for step in steps)
        return Plan("best", self.budget, made.arena, made.arena, steps, layout.buffer_at, scratch_at, segments, need, again)

    def _numbers(self, point: Point) -> tuple[int, ...]:
        """In the order of C++."""
        joined = joined_nbytes(self.problem.storage, point.joined)
        pins, chooser = PINS.index(point.pins), _NUMBER_OF_CHOOSER[point.chooser]
        return self.budget // PAGE, point.core, point.segments_at_once, pins, joined, chooser, point.within, point.stored


@dataclass(frozen=True)
class _Sliced:
    """The result of acts 2 to 4."""

    steps: tuple[Step, ...]
    pinned: set[int]  # steps
    kept: dict[int, int]  # the pages of stored weights that stay, by steps
    pieces: list[Piece]
    effort: int  # steps before neighbouring pinned ones were merged


class Readable:
    """The candidates made in Python."""

    def __init__(self, problem: Problem, budget: int, layouts: Sequence[Layout]) -> None:
        self.problem, self.budget, self.layouts = problem, budget, layouts

    def attempt(self, point: Point, limit: float = inf) -> Tried | None:
        """See `Candidates`."""
        sliced = self._sliced(point)
        streamed = [piece for piece in sliced.pieces if piece.step not in sliced.pinned]
        if self.problem.shares:  # each piece at least once
            streamed = [piece for at, piece in zip(first_alike(streamed), streamed, strict=True) if streamed[at] is piece]
        least = least_seconds(self.problem, sliced.steps, streamed, sliced.kept)
        if least > limit:
            read = sum(piece.nbytes for piece in streamed if piece.step not in sliced.kept)
            return Tried(least, read, 0, sliced.effort)
        try:
            made = self._placed(point, sliced)
        except Unplaceable:
            return None
        return Tried(simulate(self.problem, made).latency, made.streamed_nbytes, made.arena, sliced.effort)

    def plan(self, point: Point) -> Plan:
        """See `Candidates`."""
        return self._placed(point, self._sliced(point))

    def _placed(self, point: Point, sliced: _Sliced) -> Plan:
        """Act 5. Raises Unplaceable where something finds no place."""
        problem, layout, arena = self.problem, self.layouts[point.layout], self.budget // PAGE
        steps, pinned, kept, pieces = sliced.steps, sliced.pinned, sliced.kept, sliced.pieces

        # weights that stay lie at the top of the arena, in step order; once each
        alike = first_alike(pieces, pinned) if problem.shares else range(len(pieces))
        stays = {
            piece.step: kept.get(piece.step, piece.pages)
            for at, piece in enumerate(pieces)
            if alike[at] == at and (piece.step in kept or piece.step in pinned)
        }
        top = first = arena - sum(stays.values())
        stays_at = {}
        for step, count in stays.items():
            stays_at[step] = first
            first += count
        of_layer = layout.free_pages(top * PAGE)
        free = [*(of_layer[step.layer] for step in steps), of_layer[-1]]
        streamed = [at for at, piece in enumerate(pieces) if piece.step not in pinned]
        places = [Place(0, 0, again=at) for at in alike]
        for at, place in zip(streamed, self._streamed(free, [pieces[at] for at in streamed], point), strict=True):
            places[at] = place if place.again < 0 else replace(place, again=streamed[place.again])
        for at, piece in enumerate(pieces):
            if piece.step in pinned and alike[at] == at:
                places[at] = Place(0, stays_at[piece.step])
        scratch_at = [layout.scratch_at[step.layer] for step in steps]
        kept_at = {
            piece.step: (stays_at[pieces[alike[at]].step], kept[piece.step])
            for at, piece in enumerate(pieces)
            if piece.step in kept
        }
        return assemble(problem, "best", self.budget, steps, layout.buffer_at, scratch_at, pieces, places, pinned, kept_at)

    def _streamed(self, free: list[int], pieces: list[Piece], point: Point) -> list[Place]:
        """Places of streamed pieces."""
        chooser = CHOOSERS[point.chooser]()
        within = span(0, point.within) if point.within else -1
        places, ends = preload(free, pieces, chooser, within, hold=self.problem.shares)
        own = [at for at, place in enumerate(places) if place.again < 0]
        lasting = [replace(pieces[at], end=ends[at]) for at in own]
        for at, place in zip(own, begin_ahead(free, lasting, [places[at] for at in own], chooser, within), strict=True):
            places[at] = place
        return places

    def _sliced(self, point: Point) -> _Sliced:
        """The slices, the pins and the loads of a point."""
        problem, arena = self.problem, self.budget // PAGE
        room = self.layouts[point.layout].room(point.core * PAGE)
        most = point.within * PAGE or arena * PAGE
        limits = [
            min(gap, max(finest_segment(layer), min(gap, most) // point.segments_at_once))
            for layer, gap in zip(problem.layers, room, strict=True)
        ]
        if problem.shares:  # equal slices can be shared
            least: dict[Weights, int] = {}
            for layer, limit in zip(problem.layers, limits, strict=True):
                if layer.weights:
                    least[layer.weights] = min(limit, least.get(layer.weights, limit))
            limits = [least.get(layer.weights, limit) for layer, limit in zip(problem.layers, limits, strict=True)]
        steps = slice_to_room(problem, limits)
        effort = len(steps)
        steps, pinned, kept = merge_pinned(steps, *self._stays(steps, room, point))
        pieces = pieces_of(problem, steps)
        if point.joined:
            apart = pinned | kept.keys()
            pieces = join(pieces, [limits[step.layer] for step in steps], joined_nbytes(problem.storage, point.joined), apart)
        return _Sliced(steps, pinned, kept, pieces, effort)

    def _stays(self, steps: tuple[Step, ...], room: list[int], point: Point) -> tuple[set[int], dict[int, int]]:
        """The steps whose segments stay, outside the core of the arena, and the pages of stored weights that stay, by step.

        `room` in bytes per layer.
        """
        problem, capacity = self.problem, self.budget // PAGE - point.core
        counts, owner = [0] * len(steps), list(range(len(steps)))
        pieces = pieces_of(problem, steps)
        for at, piece in zip(first_alike(pieces) if problem.shares else range(len(pieces)), pieces, strict=True):
            counts[piece.step] = piece.pages
            owner[piece.step] = pieces[at].step
        stored: dict[int, int] = {}
        for index, step in enumerate(steps) if point.stored else ():
            weights = problem.layers[step.layer].weights
            if weights and weights.stored:
                fewer = weights.stored.pages_of(step.first, step.count)[1] // PAGE
                if fewer < counts[index]:
                    stored[index] = fewer
        bandwidth = problem.storage.bandwidth / PAGE
        overhead = problem.storage.overhead_s * bandwidth
        costs = [
            count * problem.load_costs[step.layer] + overhead if count else 0.0 for count, step in zip(counts, steps, strict=True)
        ]
        storage = problem.storage
        kept = [
            count * storage.prepare_s(problem.layers[step.layer].weights) * storage.bandwidth if index in stored else 0.0
            for index, (count, step) in enumerate(zip(counts, steps, strict=True))
        ]
        least = [stored.get(index, count) for index, count in enumerate(counts)]
        chosen = self._chosen(steps, room, point.pins, least, capacity, costs, kept, owner)
        stays = {step for step in chosen if step in stored}
        more = [counts[step] - least[step] if owner[step] in stays else 0 for step in range(len(steps))]
        rest = capacity - sum(least[step] for step in chosen)
        costs = [cost if owner[step] in stays else 0.0 for step, cost in enumerate(kept)]
        stays -= self._chosen(steps, room, point.pins, more, rest, costs, [0.0] * len(steps), owner) if stays else set()
        return (
            {step for step in range(len(steps)) if owner[step] in chosen - stays},
            {step: stored[step] for step in range(len(steps)) if owner[step] in stays},
        )

    def _chosen(
        self,
        steps: tuple[Step, ...],
        room: list[int],
        pins: str,
        counts: list[int],
        capacity: int,
        costs: list[float],
        kept: list[float],
        owner: list[int],
    ) -> set[int]:
        """Steps whose `counts` pages fit in `capacity` pages together; the arguments are as for `pin_evenly`."""
        problem = self.problem
        if pins == "in order":
            return pin_in_order(counts, capacity, owner)
        if pins == "small":
            return pin_small(counts, capacity, owner)
        first = most_read(counts, capacity, owner) if pins == "shared" else set()
        if first:
            capacity -= sum(counts[step] for step in first)
            costs = [still if owner[step] in first else cost for step, (cost, still) in enumerate(zip(costs, kept, strict=True))]
            counts = [0 if owner[step] in first else count for step, count in enumerate(counts)]
        seconds = [problem.layers[step.layer].seconds * step.count / problem.layers[step.layer].blocks for step in steps]
        limit = [room[step.layer] // PAGE for step in steps]
        return first | pin_evenly(counts, seconds, limit, capacity, problem.storage.bandwidth / PAGE, costs, kept, owner)


def least_seconds(problem: Problem, steps: Sequence[Step], streamed: Sequence[Piece], kept: Collection[int]) -> float:
    """A lower bound in seconds for plans of these steps that stream these pieces, whatever the placement.

    The pieces of steps in `kept` are only prepared.
    """
    storage = problem.storage.in_cache  # a bound: as if all loads stayed in the caches
    reading = computing = 0.0
    for piece in streamed:
        if piece.step in kept:
            reading += piece.nbytes * problem.storage.prepare_s(problem.layers[steps[piece.step].layer].weights)
        else:
            reading += storage.overhead_s + piece.nbytes * problem.load_cost_of(steps, piece.step) / storage.bandwidth
    for step in steps:
        layer = problem.layers[step.layer]
        computing += layer.seconds * step.count / layer.blocks + (layer.slice_s if step.first else 0.0)
    return storage.least_seconds(reading, computing) * (1 - 1e-9)


def merge_pinned(
    steps: tuple[Step, ...], pinned: set[int], kept: dict[int, int]
) -> tuple[tuple[Step, ...], set[int], dict[int, int]]:
    """Neighbouring pinned slices of one layer become one step: pinned layers need no cutting."""
    merged: list[Step] = []
    still: set[int] = set()
    stored: dict[int, int] = {}
    for index, step in enumerate(steps):
        if index in pinned and index - 1 in pinned and merged[-1].layer == step.layer:
            merged[-1] = merged[-1]._replace(count=merged[-1].count + step.count)
            continue
        if index in pinned:
            still.add(len(merged))
        elif index in kept:
            stored[len(merged)] = kept[index]
        merged.append(step)
    return tuple(merged), still, stored
