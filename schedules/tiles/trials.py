"""Register tiles that a tuner may try, besides those that are best by the model of a vector unit."""

from __future__ import annotations

import math

from .tile import Tile, VectorUnit, fitting, pieces

MOST_VECTORS = 4
MOST_SCRATCH_NBYTES = 8 << 20
SHARED_GROUPS = (1, 2, 4, 8)  # register tiles in a block that threads share
# With fewer accumulators the latency of an addition shows; smaller tiles are tried only where no larger one fits.
_FEWEST_ACCUMULATORS = 6
_SHORT_ROW = 120  # pixels
_HEIGHTS = 3


def tiles(width: int, channels: int, unit: VectorUnit, most_vectors: int = MOST_VECTORS) -> list[Tile]:
    """Register tiles for rows of `width` pixels; of tiles that cut a row into equally many parts, the smallest."""
    found: dict[tuple[int, int], Tile] = {}
    for tile in fitting(width, channels, unit, most_vectors):
        # Long rows are cut evenly by any height: all heights stay.
        parts = math.ceil(width / tile.rows) if width <= _SHORT_ROW else tile.rows
        found.setdefault((tile.channels, parts), tile)
    accumulators = {tile: tile.rows * len(pieces(tile.channels, unit.width)) for tile in found.values()}
    enough = min(_FEWEST_ACCUMULATORS, max(accumulators.values()))
    return [tile for tile, count in accumulators.items() if count >= enough]


def tallest(rows: int, vectors: int, unit: VectorUnit) -> list[Tile]:
    """The highest register tiles of so many vectors that cut `rows` into different numbers of parts, the highest first."""
    channels = vectors * unit.width
    fit = (tile for tile in fitting(rows, channels, unit, vectors) if tile.channels == channels)
    by_parts = {math.ceil(rows / tile.rows): tile for tile in sorted(fit, key=lambda tile: -tile.rows)}
    return sorted(by_parts.values(), key=lambda tile: -tile.rows)[:_HEIGHTS]
