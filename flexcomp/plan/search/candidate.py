"""One point of the search becomes a plan: acts 2 to 5 of `best.py`, and what the simulator says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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


@dataclass(frozen=True)
class Point:
    """What a candidate is made of. Different choices of the search may come to the same."""

    layout: int  # index into the layouts
    core: int  # pages of the arena that belong to the layout, not to pinned segments
    in_flight: int
    pins: str  # one of PINS
    joined: int  # bytes up to which segments are joined, in what the storage reads in the time a load costs anyhow; 0: none
    chooser: str  # one of CHOOSERS
    within: int  # pages that are preferred; 0: none


@dataclass(frozen=True)
class Tried:
    """What a candidate came to."""

    latency: float  # seconds, in the steady state
    nbytes: int  # to load for every inference but the first
    arena: int  # bytes
    effort: int  # steps before neighbouring pinned ones were merged


def joined_nbytes(storage: Storage, joined: int) -> int:
    """Bytes up to which segments are joined, by a point's `joined`."""
    return int(joined * storage.single_s * storage.bandwidth)


class Candidates(Protocol):
    """The candidates of a problem, for one budget and in some layouts, which fit."""

    def attempt(self, point: Point) -> Tried | None:
        """None if something finds no place, which happens only where segments are joined."""

    def plan(self, point: Point) -> Plan:
        """The plan of a point that is one."""


def candidates_of(problem: Problem, budget: int, layouts: Sequence[Layout]) -> Candidates:
    """Made in C++, or in Python within `readable`."""
    return (Readable if in_python() else Native)(problem, budget, layouts)


class Native:
    """The candidates made in C++."""

    def __init__(self, problem: Problem, budget: int, layouts: Sequence[Layout]) -> None:
        self.problem, self.budget, self.layouts, self.loops = problem, budget, layouts, native_problem(problem)
        for layout in layouts:
            of_tensors = [at + tensor.nbytes for at, tensor in zip(layout.tensor_at, problem.tensors, strict=True)]
            of_scratch = [at + layer.scratch for at, layer in zip(layout.scratch_at, problem.layers, strict=True)]
            self.loops.add_layout(layout.occupied, max((*of_tensors, *of_scratch), default=0))

    def attempt(self, point: Point) -> Tried | None:
        """As Candidates says."""
        made = self.loops.attempt(point.layout, **self._numbers(point))
        return Tried(made.latency, made.nbytes, made.arena, made.effort) if made else None

    def plan(self, point: Point) -> Plan:
        """As Candidates says."""
        made, steps, segments, need = self.loops.plan(point.layout, **self._numbers(point))
        layout = self.layouts[point.layout]
        scratch_at = tuple(layout.scratch_at[step.layer] for step in steps)
        return Plan("best", self.budget, made.arena, steps, layout.tensor_at, scratch_at, segments, need)

    def _numbers(self, point: Point) -> dict[str, int]:
        return {
            "arena": self.budget // PAGE,
            "core": point.core,
            "in_flight": point.in_flight,
            "pins": PINS.index(point.pins),
            "joined": joined_nbytes(self.problem.storage, point.joined),
            "chooser": list(CHOOSERS).index(point.chooser),
            "within": point.within,
        }


@dataclass(frozen=True)
class _Sliced:
    """What acts 2 and 3 make of a point, and which steps act 4 pins."""

    limits: list[int]  # bytes of a segment, per layer
    steps: tuple[Step, ...]
    pinned: set[int]  # steps
    pieces: list[Piece]  # before joining
    effort: int  # steps before neighbouring pinned ones were merged


class Readable:
    """The candidates made in Python."""

    def __init__(self, problem: Problem, budget: int, layouts: Sequence[Layout]) -> None:
        self.problem, self.budget, self.layouts = problem, budget, layouts

    def attempt(self, point: Point) -> Tried | None:
        """As Candidates says."""
        sliced = self._sliced(point)
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
        if point.joined:
            most = joined_nbytes(problem.storage, point.joined)
            pieces = join(pieces, [sliced.limits[step.layer] for step in steps], most, pinned)

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
        """The slices and the pins of a point."""
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
        return _Sliced(limits, steps, pinned, pieces_of(problem, steps), effort)

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
        return pin_evenly(counts, seconds, limit, capacity, bandwidth, problem.storage.overhead_s * bandwidth)


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
