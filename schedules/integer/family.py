"""The family of kernels in integer arithmetic: all take weights in one form, which kernels of float32 do not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..family import OTHER, Candidate, Family, of_way
from ..row_bands import Bands, row_kernel
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit
from ..tiles.trials import tiles
from . import kernel, valid
from .ways import Integer, of_tile, ways


def candidate(way: Integer, unit: VectorUnit) -> Candidate:
    """The candidate that computes a layer in that way."""
    each = math.ceil(way.units / way.parts)
    rows = row_kernel(_BANDS, way.spec, unit.width, way.tile, (each, way.slots, way.instruction))
    told = (lambda: valid.kernel(way, unit.width)) if way.tells_rows else None
    in_place = way.spec.out_channels % way.tile.channels == 0
    return of_way("integer", kernel, way, unit, rows=rows, in_place=in_place, told=told, together=1 if way.tells_rows else 0)


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    for offered in ways(spec, unit)[:1]:
        for tile in tiles(offered.seen.out_width, spec.out_channels, unit):
            for way in dict.fromkeys(of_tile(spec, unit, tile, least=least) for least in (False, True)):
                yield candidate(way, unit)


def _of_rows(spec: ConvSpec, tile: Tile, each: int, slots: int, instruction: str) -> Integer:
    """The way that packs `each` rows at a time, or as many tiles of the only row."""
    way = Integer(spec, tile, 1, slots, instruction)
    return replace(way, parts=math.ceil(way.units / each))


_BANDS = Bands(ConvSpec, kernel.kernel, "integer", _of_rows)
FAMILY = Family(
    "integer",
    ConvSpec,
    lambda spec, unit: (candidate(way, unit) for way in ways(spec, unit)),
    _trials,
    arithmetic="integer",
    anew=True,
    bands=_BANDS,
    group=OTHER,
    preparing_flops=2.0,
)
