"""The family of Winograd convolutions: which of the ways are candidates, and what a tuner may try besides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..family import DEEP, Candidate, Family, of_way
from ..row_bands import Bands, row_kernel
from ..tiles.memory import Memory
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit
from ..tiles.trials import MOST_SCRATCH_NBYTES, SHARED_GROUPS, tallest
from . import kernel
from .ways import Winograd, is_line, kinds, ways
from .weights import WeightTransform

# F(6,3) is not a candidate: its error is 1e-5 of the largest output where that of F(4,3) is 2e-6, and over the sixteen
# convolutions of VGG-19 that adds up to more than 1e-4. F(5,3) has 6e-6, and must need less than this part of the work.
_KINDS = (2, 4, 5)
_LESS_ACCURATE_KIND = 5
_WORTH_ITS_ERRORS = 0.85
_TRIED_VECTORS = (1, 2, 3)
_OWN_GROUPS = (1, 2)  # register tiles of Winograd tiles in a block, if each thread has its own
_TRIED_CHUNKS = (1, 4)


def candidate(way: Winograd, unit: VectorUnit) -> Candidate:
    """The candidate that computes a layer in that way."""
    rows = None
    if way.stride == 1:  # pairs of pixels are cut from the first row on
        blocking = (way.m, way.groups, way.chunk, way.slots, way.threads, str(way.memory))
        rows = row_kernel(_BANDS, way.spec, unit.width, way.tile, blocking)
    return of_way("winograd", kernel, way, unit, transform=way.weight_transform, rows=rows)


def _candidates(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    return (candidate(way, unit) for way in _accurate(spec, ways(spec, unit)))


def _accurate(spec: ConvSpec, offered: list[Winograd]) -> list[Winograd]:
    if is_line(spec):
        return offered  # transformed once, not twice: errors are small
    accurate = [way for way in offered if way.m in _KINDS and way.m != _LESS_ACCURATE_KIND]
    limit = _WORTH_ITS_ERRORS * min((way.work for way in accurate), default=0.0)
    return accurate + [way for way in offered if way.m == _LESS_ACCURATE_KIND and way.work < limit]


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    if offered := set(ways(spec, unit)):
        for way in _more(spec, unit):
            if way not in offered:
                one = candidate(way, unit)
                yield replace(one, variant=f"{one.variant} by {way.chunk}")


def _more(spec: ConvSpec, unit: VectorUnit) -> Iterator[Winograd]:
    for m in sorted({*kinds(spec)} if is_line(spec) else {*_KINDS} & {*kinds(spec)}):
        tiles = Winograd(spec, m, Tile(1, 1), 1).tiles
        for vectors in _TRIED_VECTORS:
            if vectors * unit.width > spec.out_channels:
                continue
            blocks = math.ceil(spec.out_channels / (vectors * unit.width))
            for tile in tallest(tiles, vectors, unit):
                for slots in sorted({1, unit.threads}):
                    for groups in SHARED_GROUPS if slots == 1 else _OWN_GROUPS:
                        for chunk in _TRIED_CHUNKS:
                            way = Winograd(spec, m, tile, groups, chunk, slots, unit.threads, unit.memory)
                            if _sensible(way, blocks):
                                yield way


def _sensible(way: Winograd, blocks: int) -> bool:
    """Sizes that the layer can fill, in scratch that some device has."""
    fills = way.groups <= way.all_groups and way.chunk <= blocks and way.tile_blocks >= way.slots
    return fills and way.scratch_nbytes <= MOST_SCRATCH_NBYTES


def _shrunk(spec: ConvSpec, tile: Tile, m: int, groups: int, chunk: int, slots: int, threads: int, memory: str) -> Winograd:
    """A way whose register tiles, blocks and slots are no more than there is work for."""
    way = Winograd(spec, m, tile, groups, chunk, slots, threads, Memory.decoded(memory))
    way = replace(way, tile=replace(tile, rows=min(tile.rows, way.tiles)))
    way = replace(way, groups=min(way.groups, math.ceil(way.all_groups / way.slots)))
    return replace(way, slots=min(way.slots, way.tile_blocks))


def _probe(unit: VectorUnit) -> list[tuple[ConvSpec, Candidate]]:
    """A small kernel, which is compiled soon."""
    offered = (candidate(way, unit) for way in ways(DEEP, unit) if way.m == 2)
    return [(DEEP, min(offered, key=lambda one: one.work))]


_BANDS = Bands(ConvSpec, kernel.kernel, "winograd", _shrunk, large=True)
FAMILY = Family(
    "winograd",
    ConvSpec,
    _candidates,
    _trials,
    bands=_BANDS,
    transform=WeightTransform,
    preparing_flops=20.0,  # 80 to 340 us for a megabyte of input
    preferred=lambda one: one.work,
    probe=_probe,
)
