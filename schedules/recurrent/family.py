"""The family of kernels for all steps of a recurrent layer; the one that is best by prediction is the candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..family import OTHER, Candidate, Family
from ..tiles.tile import Tile, VectorUnit
from . import kernel
from .spec import RecurrentSpec
from .ways import Recurrent, candidates


def candidate(way: Recurrent, unit: VectorUnit) -> Candidate:
    """The candidate that computes a layer in that way; its tile is that of the first phase."""
    first = way.phases[0]
    return Candidate(
        "recurrent",
        Tile(first.rows, len(first.gates) * first.units),
        None,
        4 * sum(map(math.prod, way.scratch)),
        way.work,
        lambda: kernel.kernel(way, unit.width),
        variant=str(way).removeprefix("recurrent "),
        scratch=way.scratch,
        panels=tuple(phase.panel for phase in way.phases),
    )


def _all(spec: RecurrentSpec, unit: VectorUnit) -> Iterator[Candidate]:
    return (candidate(way, unit) for way in candidates(spec, replace(unit, threads=1)))


FAMILY = Family("recurrent", RecurrentSpec, lambda spec, unit: (next(_all(spec, unit)),), _all, group=OTHER)
