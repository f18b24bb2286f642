"""Register tiles: how an output of pixels × channels is cut, for a given vector unit."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .memory import USUAL, Memory
from .spec import ARITHMETIC

# Steps whose right vectors LLVM loads early where factors are lanes: of float16, which come from the first 16 registers only,
# three, or accumulators would be on the stack (benchmarks/lab/arm/mca.py).
_EARLY_STEPS_OF_HALF = 3
_MOST_ROWS_IN_HALF = 8
# Where an instruction multiplies two rows, their factors are in one register: 12 × 8, 8 × 12 and 6 × 16 fit in 32.
_MOST_ROWS_OF_MATRICES = 12


@dataclass(frozen=True)
class VectorUnit:
    """The vector unit that tile shapes depend on, and how many such units share a layer."""

    width: int  # float32 lanes of one register: AVX-512 16, AVX2 8, NEON 4
    registers: int
    by_lane: bool = False  # a multiply-add can take a factor from a lane of a register (AArch64)
    independent_fmas: int = 8  # sums that keep the unit busy: latency of a multiply-add in cycles, times those issued in a cycle
    threads: int = 1
    spare_loads: bool = False  # every multiply-add can load its broadcast factor itself and delays no other load
    dots: str = ""  # the instruction that adds products of integers to each lane: one of DOTS in schedules/tiles/dot.py
    dot_cost: float = 1  # multiply-adds that take as long as that instruction
    matrix_dots: bool = False  # smmla adds products of two rows and two channels of 8 bits
    looks_up: bool = False  # a look-up in a register (vpermps of AVX-512, tbl) takes no longer than a multiply-add
    early_steps: int = 0  # whose right vectors are loaded before they are needed, if multiplied by lane
    half: str = ""  # the type of 16 bits that kernels may compute in: float16, bfloat16, or none
    pair_cost: float = 1  # multiply-adds of float32 that take as long as one of pairs of bfloat16
    tiles: bool = False  # AMX multiplies tiles of bfloat16
    two_rows: bool = False  # an instruction multiplies two rows, or one in the same time
    most_rows: int = 64  # of a tile
    memory: Memory = USUAL  # that weights come from
    slowness: tuple[tuple[str, float], ...] = ()  # by family: times of its work over that of direct kernels
    padded: tuple[tuple[int, int], ...] = ()  # (all, fewest) pixels of layers of padded inputs: their work is the mean of lengths

    def of(self, dtype: str) -> VectorUnit:
        """The unit for kernels with sums of an element type, or of float32 where those of bfloat16 are."""
        if dtype == "bfloat16" and self.by_lane:
            return replace(self, by_lane=False, two_rows=True, most_rows=_MOST_ROWS_OF_MATRICES)
        if dtype != "float16":
            return self
        width = self.width * 4 // ARITHMETIC[dtype]
        return replace(self, width=width, early_steps=_EARLY_STEPS_OF_HALF, most_rows=_MOST_ROWS_IN_HALF)


@dataclass(frozen=True)
class Tile:
    """`rows` pixels × `channels` output channels held in registers."""

    rows: int
    channels: int
    depth: int = 1  # steps of the reduction taken at a time, their left factors in one vector (schedules/tiles/lane.py)

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


def runs(parts: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Equal neighbours of a cut as (start, size, count)."""
    result: list[tuple[int, int, int]] = []
    for start, size in parts:
        if result and result[-1][1] == size:
            first, _, count = result[-1]
            result[-1] = (first, size, count + 1)
        else:
            result.append((start, size, 1))
    return result


# Cost of loading an operand compared with an FMA: loads run in parallel, but take issue slots and cache bandwidth.
# A weight vector streams from the second-level cache, a pixel's scalar stays in the first.
_VECTOR_LOAD = 0.2
_SCALAR_LOAD = 0.1
# Lanes from which on narrow weights are widened in parallel with FMAs: a vector of them costs its bytes, so that blocks
# are wide and rows few. 6 × 64 instead of 8 × 48 for 64 rows: 0.84 of the time with 16 bits and 0.97 with 8.
_WIDENED_FREELY = 16
# Wider blocks make slices coarser and gain nothing more.
MOST_VECTORS = 4
# Rows of pixels that lie a multiple of this apart fall into the same set of an 8-way 32 KiB cache; more than
# seven of them and a weight line evict each other: 90 instead of 117 GFLOP/s for 1024 channels at 14×14.
_ALIAS_NBYTES = 4096
_ALIAS_ROWS = 7
# Cores that multiply by lane have sets 16 KiB apart, in a 32 KiB cache of two ways or a 64 KiB cache of four.
_ALIAS_ROWS_BY_LANE = 4
# Vectors of a row that is alone: more would be no tile, but with fewer their sums wait for each other.
_MOST_VECTORS_OF_ONE_ROW = 8
_CHANNELS_BY_LANE = 8


def most_rows(vectors: int, unit: VectorUnit, row_nbytes: int) -> int:
    """Rows of a tile of `vectors` vectors that registers allow, for rows that lie `row_nbytes` apart."""
    rows = max(1, _most_rows(vectors, unit))
    return min(rows, _alias_rows(unit)) if row_nbytes % _ALIAS_NBYTES == 0 else rows


@functools.cache
def choose(
    width: int,
    channels: int,
    unit: VectorUnit,
    row_nbytes: int = 0,
    most_vectors: int = MOST_VECTORS,
    weight_nbytes: int = 4,
) -> Tile:
    """The tile with the least predicted work for rows of `width` pixels and `channels` channels (per group).

    `row_nbytes` is the distance of neighbouring pixels of a tile in the input, `weight_nbytes` those of a weight. Counted
    per step of the reduction: a tile costs its FMAs, or the latency of its accumulators if few, plus its operand
    loads; narrow last tiles and overlapping last channel blocks count as they run. A block has at most `most_vectors` vectors.
    """
    aliasing = bool(row_nbytes) and row_nbytes % _ALIAS_NBYTES == 0
    bound = _alias_rows(unit) if aliasing else width
    if unit.by_lane and width == 1:
        most_vectors = _MOST_VECTORS_OF_ONE_ROW
    vector_load = _VECTOR_LOAD * (weight_nbytes / 4 if unit.width >= _WIDENED_FREELY else 1)
    best: tuple[tuple[float, int], Tile] | None = None
    for block in _blocks(channels, unit, most_vectors):
        if block > channels:
            break
        vectors = len(pieces(block, unit.width))
        for rows in range(1, min(_most_rows(vectors, unit), width, bound) + 1):
            parts = math.ceil(width / rows)  # as `split_evenly` cuts; there may be millions
            size, larger = divmod(width, parts)
            cost = (parts - larger) * step_cost(size, vectors, unit, vector_load)
            cost += larger * step_cost(size + 1, vectors, unit, vector_load)
            cost *= math.ceil(channels / block)
            key = (round(cost, 3), -block)
            if best is None or key < best[0]:
                best = (key, Tile(rows, block, unit.width if unit.by_lane else 1))
    assert best is not None
    return best[1]


def fitting(width: int, channels: int, unit: VectorUnit, most_vectors: int = MOST_VECTORS) -> Iterator[Tile]:
    """Every tile whose accumulators and operands fit the registers, for rows of `width` pixels."""
    for block in _blocks(channels, unit, most_vectors):
        if block <= channels:
            for rows in range(1, max(min(_most_rows(len(pieces(block, unit.width)), unit), width), 1) + 1):
                yield Tile(rows, block, unit.width if unit.by_lane else 1)


def _blocks(channels: int, unit: VectorUnit, most_vectors: int) -> Sequence[int]:
    """Block sizes to consider; by lane whole vectors, so many that slices are multiples of eight channels."""
    step = max(unit.width, _CHANNELS_BY_LANE) if unit.by_lane else max(unit.width // 2, 1)
    if unit.by_lane and channels < step:
        step = unit.width
    return range(step, max(step, most_vectors * unit.width) + 1, step) if channels >= step else [channels]


def _alias_rows(unit: VectorUnit) -> int:
    return _ALIAS_ROWS_BY_LANE if unit.by_lane else _ALIAS_ROWS


def _most_rows(vectors: int, unit: VectorUnit) -> int:
    """Rows whose accumulators fit the registers, with the operands of a step: their scalars, or one right vector.

    For a known core LLVM takes two steps of a broadcasting reduction at a time, and the right vectors of both. A tile
    that leaves no room for these has all its accumulators stored and loaded in every turn of the loop: 9 × 48 in 32
    registers took 1.7 times as long as 8 × 48.
    """
    if unit.by_lane:
        rows, early = ((unit.registers - operands) // (vectors + 1) for operands in (1, unit.early_steps * vectors or 1))
        return min(unit.most_rows, max(early, min(rows, 1)))  # a row that is alone has one factor
    return min(unit.most_rows, (unit.registers - 2 * vectors) // vectors)


def step_cost(rows: int, vectors: int, unit: VectorUnit, vector_load: float = _VECTOR_LOAD) -> float:
    """The cost of a step of a tile's reduction, in vector multiply-adds."""
    rows += rows % 2 if unit.two_rows else 0
    left = _VECTOR_LOAD * rows / unit.width if unit.by_lane else _SCALAR_LOAD * rows
    return max(rows * vectors, unit.independent_fmas) + left + vector_load * vectors
