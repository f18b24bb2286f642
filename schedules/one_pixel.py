"""Tiles of layers of one pixel, as fully connected ones are: every weight is read once, so bytes count.

Elsewhere the work of multiply-adds chooses the tile. One pixel waits for weights, and where the last block overlaps its
predecessor by much, as 200 channels in blocks of 64 do, much is stored and read twice.
"""

from __future__ import annotations

import math

from .tiles.emit import PARALLEL_FLOPS
from .tiles.panel import panel_of
from .tiles.spec import ConvSpec
from .tiles.tile import MOST_VECTORS, Tile, VectorUnit, fitting, pieces, step_cost

# Bytes of a panel, over those of the smallest one, that a faster tile may take.
_MOST_BYTES = 1.125
# Work of a tile with fewer bytes, over that of the fastest one.
_MOST_WORK = 1.5


def with_less_padding(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Tile:
    """The tile with the least work whose panel has few bytes; `tile`, the fastest one, if its panel has few, or no other does."""
    if unit.by_lane or spec.groups > 1:
        return tile
    offered = list(fitting(1, spec.group_out, unit))
    if spec.group_out <= MOST_VECTORS * unit.width:
        offered.append(Tile(1, spec.group_out))
    tasks = min(unit.threads, _blocks(spec, tile)) if spec.flops >= PARALLEL_FLOPS else 1
    most_work = _MOST_WORK * _work(spec, tile, unit)
    offered = [one for one in offered if _blocks(spec, one) >= tasks and _work(spec, one, unit) <= most_work]
    most_nbytes = _MOST_BYTES * min(_nbytes(spec, one) for one in (tile, *offered))
    if _nbytes(spec, tile) <= most_nbytes:
        return tile
    offered = [one for one in offered if _nbytes(spec, one) <= most_nbytes]
    return min(offered, key=lambda one: (_work(spec, one, unit), -one.channels))


def _blocks(spec: ConvSpec, tile: Tile) -> int:
    return panel_of(spec, tile.channels).blocks


def _nbytes(spec: ConvSpec, tile: Tile) -> int:
    panel = panel_of(spec, tile.channels)
    return panel.blocks * panel.block_nbytes


def _work(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> float:
    return math.ceil(spec.group_out / tile.channels) * step_cost(1, len(pieces(tile.channels, unit.width)), unit)
