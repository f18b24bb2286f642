"""The family of kernels in tiles of AMX."""

from __future__ import annotations

import math
from dataclasses import replace

from ..family import Candidate, Family, of_way
from ..row_bands import Bands, row_kernel
from ..tiles.memory import Memory
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit
from . import kernel
from .ways import Amx, ways


def candidate(way: Amx, unit: VectorUnit) -> Candidate:
    """The candidate that computes a layer in that way."""
    each = math.ceil(way.units / way.parts) * (1 if way.is_flat else way.lines)
    rows = row_kernel(_BANDS, way.spec, unit.width, way.tile, (each, way.slots, str(way.memory)))
    return of_way("amx", kernel, way, unit, rows=rows, in_place=way.spec.out_channels % way.block == 0)


def _candidates(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    return [candidate(way, unit) for way in ways(spec, unit)]


def _of_rows(spec: ConvSpec, tile: Tile, each: int, slots: int, memory: str) -> Amx:
    """The way that takes `each` rows at a time, or as many tiles of the only row."""
    way = Amx(spec, tile.channels, 1, slots, Memory.decoded(memory))
    units = each if way.is_flat else math.ceil(each / way.lines)
    return replace(way, parts=math.ceil(way.units / units))


_BANDS = Bands(ConvSpec, kernel.kernel, "amx", _of_rows)
FAMILY = Family("amx", ConvSpec, _candidates, dtypes=("bfloat16",), bands=_BANDS, preparing_flops=2.0)
