"""Register tiles: how an output of pixels × channels is cut, for a given vector unit."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class VectorUnit:
    """What the tile shapes depend on."""

    width: int  # float32 lanes of one register: AVX-512 16, AVX2 8, NEON 4
    registers: int


@dataclass(frozen=True)
class Tile:
    """`rows` pixels × `channels` output channels held in registers."""

    rows: int
    channels: int

    def __str__(self) -> str:
        return f"{self.rows}×{self.channels}"


def pieces(channels: int, width: int) -> list[tuple[int, int]]:
    """Cut `channels` into vectors: (start, lanes) with lanes = `width`, then halving powers of two."""
    result, start = [], 0
    lanes = width
    while start < channels:
        while lanes > channels - start:
            lanes //= 2
        result.append((start, lanes))
        start += lanes
    return result


def split_evenly(extent: int, most: int) -> list[tuple[int, int]]:
    """Cut [0, extent) into the fewest parts of at most `most`, sizes differing by at most one: (start, size)."""
    parts = math.ceil(extent / most)
    base, larger = divmod(extent, parts)
    result, start = [], 0
    for i in range(parts):
        size = base + (1 if i < larger else 0)
        result.append((start, size))
        start += size
    return result


# Cycles an FMA's result takes to arrive, times FMAs issued in a cycle: with fewer accumulators the unit idles.
_IN_FLIGHT = 8
# What loading an operand costs next to an FMA: it goes in parallel, but takes issue slots and cache bandwidth.
# A weight vector streams from the second-level cache, a pixel's scalar stays in the first.
_VECTOR_LOAD = 0.2
_SCALAR_LOAD = 0.1
# Wider blocks make slices coarser and gain nothing more.
_MOST_VECTORS = 4
# Rows of pixels that lie a multiple of this apart fall into the same set of an 8-way 32 KiB cache; more than
# seven of them and a weight line evict each other: 90 instead of 117 GFLOP/s for 1024 channels at 14×14.
_ALIAS_NBYTES = 4096
_ALIAS_ROWS = 7


def _step_cost(rows: int, vectors: int) -> float:
    return max(rows * vectors, _IN_FLIGHT) + _SCALAR_LOAD * rows + _VECTOR_LOAD * vectors


def choose(width: int, channels: int, unit: VectorUnit, row_nbytes: int = 0, most_vectors: int = _MOST_VECTORS) -> Tile:
    """The tile with the least predicted work for rows of `width` pixels and `channels` channels (per group).

    `row_nbytes` is the distance of neighbouring pixels of a tile in the input. Counted per step of the reduction:
    a tile costs its FMAs, or the latency of its accumulators if they are few, plus its operand loads; narrow last
    tiles and overlapping last channel blocks count as they run. A block has at most `most_vectors` vectors.
    """
    bound = _ALIAS_ROWS if row_nbytes and row_nbytes % _ALIAS_NBYTES == 0 else width
    half = max(unit.width // 2, 1)
    blocks = range(half, most_vectors * unit.width + 1, half) if channels >= half else [channels]
    best: tuple[tuple[float, int], Tile] | None = None
    for block in blocks:
        if block > channels:
            break
        vectors = len(pieces(block, unit.width))
        most = (unit.registers - 1 - vectors) // vectors
        for rows in range(1, min(most, width, bound) + 1):
            cost = math.ceil(channels / block) * sum(_step_cost(size, vectors) for _, size in split_evenly(width, rows))
            key = (round(cost, 3), -block)
            if best is None or key < best[0]:
                best = (key, Tile(rows, block))
    assert best is not None
    return best[1]
