"""Pieces: units of loading, the weights of a step or of several small steps in a row.

Every load costs the storage's overhead, whatever its size. Steps that follow each other and whose weights
follow each other in the file can share a load, if there is room for the weights of all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..problem import PAGE, Problem, Step
from .slicing import file_range


@dataclass(frozen=True)
class Piece:
    """A segment without a place yet, for steps [step, end)."""

    step: int
    end: int
    source: int  # bytes in the data section, or in the weights' own form; multiple of 4096
    nbytes: int  # multiple of 4096
    form: int  # of the weights

    @property
    def key(self) -> tuple[int, int, int]:
        """Of its bytes."""
        return self.form, self.source, self.nbytes

    @property
    def pages(self) -> int:
        """Its size."""
        return self.nbytes // PAGE


def pieces_of(problem: Problem, steps: Sequence[Step]) -> list[Piece]:
    """One piece for every step that has weights."""
    pieces = []
    for index, step in enumerate(steps):
        weights = problem.layers[step.layer].weights
        if weights is not None:
            pieces.append(Piece(index, index + 1, *file_range(weights, step.first, step.count), weights.form))
    return pieces


def first_alike(pieces: Sequence[Piece], apart: Collection[int] = ()) -> list[int]:
    """Per piece the position of the first piece with the same pages; the steps in `apart` are compared only with each other."""
    first: dict[tuple[bool, tuple[int, int, int]], int] = {}
    return [first.setdefault((piece.step in apart, piece.key), at) for at, piece in enumerate(pieces)]


def join(pieces: Sequence[Piece], limit: Sequence[int], most: int, apart: Collection[int] = ()) -> list[Piece]:
    """Neighbouring pieces in one, while the result has at most `most` bytes and fits in `limit[step]` of all its steps.

    `limit` is in bytes per step. The pieces of the steps in `apart` are not joined.
    """
    joined: list[Piece] = []
    for piece in pieces:
        if joined and piece.step not in apart and joined[-1].step not in apart:
            last = joined[-1]
            behind = last.source + last.nbytes - piece.source  # 0 or a page that both need
            nbytes = piece.source + piece.nbytes - last.source
            if piece.form == last.form and behind in (0, PAGE) and nbytes <= most and nbytes <= min(limit[last.step : piece.end]):
                joined[-1] = Piece(last.step, piece.end, last.source, nbytes, last.form)
                continue
        joined.append(piece)
    return joined
