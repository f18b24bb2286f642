"""The last act of every strategy: places become a Plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..problem import PAGE, Plan, Problem, Segment, Step
from .pages import pages
from .pieces import Piece


@dataclass(frozen=True)
class Place:
    """Where a piece goes, and when its load may start."""

    after: int  # computed steps
    first: int  # page of the arena
    ahead: bool = False  # `after` counts the steps of the previous inference
    again: int = -1  # an earlier piece whose load serves this one, too; -1: a load of its own


def assemble(
    problem: Problem,
    strategy: str,
    budget: int,
    steps: Sequence[Step],
    buffer_at: Sequence[int],
    scratch_at: Sequence[int],
    pieces: Sequence[Piece],
    places: Sequence[Place],
    pinned: Collection[int] = (),
    kept: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> Plan:
    """The plan with these places, one per piece; addresses in bytes, `scratch_at` per step.

    Loads run in the order of the pieces, which is the order of the steps. `pinned` are steps whose pieces stay, `kept` steps
    whose stored weights stay, with their pages (first, count). Both may lie anywhere: `ranges.py` moves them later.
    """
    segments = []
    need = [0] * len(steps)
    again: list[tuple[int, int]] = []
    loads: list[int] = []  # by piece
    top = max((at + buffer.nbytes for at, buffer in zip(buffer_at, problem.buffers, strict=True)), default=0)
    for step, at in zip(steps, scratch_at, strict=True):
        top = max(top, at + problem.layers[step.layer].scratch)
    for piece, place in zip(pieces, places, strict=True):
        address = place.first * PAGE
        stays = piece.step in pinned
        count = piece.end - piece.step
        loads.append(loads[place.again] if place.again >= 0 else len(segments))
        if place.again < 0:
            segments.append(
                Segment(
                    piece.step, piece.source, piece.nbytes, address, place.after, stays, count, place.ahead,
                    kept[piece.step][0] * PAGE if piece.step in kept else -1, piece.form,
                )
            )  # fmt: skip
        for step in range(piece.step, piece.end):
            if problem.layers[steps[step].layer].weights is not None:
                need[step] = loads[-1] + 1
                again += [(step, loads[-1])] if place.again >= 0 else []
        top = max(top, address + piece.nbytes, sum(kept.get(piece.step, ())) * PAGE)
    return Plan(
        strategy,
        budget,
        pages(top) * PAGE,
        pages(top) * PAGE,
        tuple(steps),
        tuple(buffer_at),
        tuple(scratch_at),
        tuple(segments),
        tuple(need),
        tuple(again),
    )
