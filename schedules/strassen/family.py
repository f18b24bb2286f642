"""The family of fast matrix products, and the ways that a tuner may try besides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..family import Candidate, Family, of_way
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit
from ..tiles.trials import MOST_SCRATCH_NBYTES, SHARED_GROUPS, tallest
from . import kernel
from .ways import Strassen, eligible, ways
from .weights import HalvesTransform

_PROBED = ConvSpec(1, 14, 14, 768, 768)  # enough blocks that the wait for the first one counts little
_TRIED_VECTORS = (1, 2)
_LEVELS = (1, 2)
_KINDS = {1: "", 2: "on two levels"}
_LEAST_TRIED_DEPTH = 32  # input channels of a part: with fewer there is more to move than to multiply


def candidate(way: Strassen, unit: VectorUnit) -> Candidate:
    """The candidate that computes a layer in that way."""
    told = (lambda: kernel.kernel(way, unit.width, told=True)) if way.tells_rows else None
    kind, made = _KINDS[way.levels], HalvesTransform(way.levels)
    return of_way("strassen", kernel, way, unit, transform=made, told=told, together=way.together, kind=kind)


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    for levels in _LEVELS:
        parts = 2**levels
        if not eligible(spec, levels) or spec.in_channels < parts * _LEAST_TRIED_DEPTH:
            continue
        units = Strassen(spec, Tile(1, unit.width), 1, levels=levels).units
        for vectors in _TRIED_VECTORS if units > 1 else ():
            if parts * vectors * unit.width > spec.out_channels:
                continue
            for tile in tallest(units, vectors, unit):
                for slots in sorted({1, unit.threads}):
                    for groups in SHARED_GROUPS if levels == 1 else (1,):
                        way = Strassen(spec, tile, groups, slots, levels, unit.memory)
                        way = replace(way, tile=replace(tile, rows=way.rows))
                        if groups <= way.tiles and way.bands >= slots and way.scratch_nbytes <= MOST_SCRATCH_NBYTES:
                            yield candidate(way, unit)


def _probe(unit: VectorUnit) -> Iterator[tuple[ConvSpec, Candidate]]:
    """The best kernels of one and of two levels: the latter move more than they multiply, and cores differ in that."""
    for levels in _LEVELS:
        if offered := [candidate(way, unit) for way in ways(_PROBED, unit) if way.levels == levels]:
            yield _PROBED, min(offered, key=lambda one: one.work)


FAMILY = Family(
    "strassen",
    ConvSpec,
    lambda spec, unit: (candidate(way, unit) for way in ways(spec, unit)),
    _trials,
    anew=True,
    transform=HalvesTransform,
    worth_weights=0.98,  # two levels have 7/4 of the weights of one
    preparing_flops=5.0,  # 30 to 80 us for a megabyte of input
    probe=_probe,
)
