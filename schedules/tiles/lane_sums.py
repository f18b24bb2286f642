"""Sums of the lanes of many vectors at once: halves of pairs of vectors are added until one vector holds all sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from . import vector_math
from .emit import zero
from .tile import VectorUnit

_LANES_OF_SSE = 4  # x86 moves numbers within 128 bits faster than across


def shuffled(vectors: Sequence[ir.Expr], lanes: Sequence[int]) -> ir.Expr:
    """Those lanes of vectors in a row, also more than there are."""
    there = sum(map(vector_math.lanes, vectors))
    return tirx.Shuffle([*vectors] * math.ceil(len(lanes) / there), list(lanes))


def added_up(vectors: Sequence[ir.Expr | None], unit: VectorUnit) -> ir.Expr | None:
    """The sums of the lanes of as many vectors as each has lanes, in that order; None for one is zeros, and for all of zeros."""
    width, together = unit.width, 1
    while len(vectors) > 1:
        low, high = _halves(width, together, unit.by_lane)
        joined = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=True):
            if a is None and b is None:
                joined.append(None)
                continue
            pair = [zero(width) if one is None else one for one in (a, b)]
            joined.append(T.bind(tirx.Shuffle(pair, low) + tirx.Shuffle(pair, high)))
        vectors, together = joined, 2 * together
    return vectors[0]


def _halves(width: int, together: int, pairwise: bool) -> tuple[list[int], list[int]]:
    """Lanes of two vectors to be added to the others: neighbours, where an instruction adds these (faddp of AArch64).

    `together` lanes in a row are sums of as many vectors already; of two vectors of these, first lanes come first.
    """
    if pairwise or together >= _LANES_OF_SSE:
        neighbours, every = 1 if pairwise else _LANES_OF_SSE, range(2 * width)
        return [i for i in every if i // neighbours % 2 == 0], [i for i in every if i // neighbours % 2 == 1]
    low, high = [], []
    for part in range(0, width, _LANES_OF_SSE):
        if together == 1:
            low += [part, width + part, part + 1, width + part + 1]
            high += [part + 2, width + part + 2, part + 3, width + part + 3]
        else:
            low += [part, part + 1, width + part, width + part + 1]
            high += [part + 2, part + 3, width + part + 2, width + part + 3]
    return low, high
