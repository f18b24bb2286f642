"""How a layer is computed in integer arithmetic: the tile, and the parts for which the input is packed.

Targets: layers whose weights are kept as int8 and whose input holds integers in float32, on CPUs that add up several
products of integers at a time (schedules/tiles/dot.py).

The input is packed to 8 or 16 bits, part by part: x - offset, where the offset is the least input (128 more where
factors are signed). Sums of its products with the weights lack offset · Σ w, so accumulators start from that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ..tiles.dot import DOTS, LEAST_LANES, Dots
from ..tiles.emit import PARALLEL_FLOPS
from ..tiles.packed_rows import with_padding
from ..tiles.panel import Panel
from ..tiles.parts import choose_parts
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit, choose

# Bytes of packed input that should stay in the second-level cache while all blocks pass over it.
_BAND_NBYTES = 128 * 1024
# Sums of so many products of 8 bits fit 32 bits.
_MOST_TAPS = 2**31 // (255 * 128) - 1
# The predicted time, in operations of a direct convolution, besides that of products: per float that is packed, per byte of the
# result and of the tensors that the epilogue reads, per byte of weights, which wait in memory, and for each further read.
# Fitted as DOTS: most layers are within 5 %.
_PACK_FLOPS = 6.6
_RESULT_FLOPS = 2.05
_TENSOR_FLOPS = 2.6
_WEIGHT_FLOPS = 2.1
_AGAIN_FLOPS = 0.1


def eligible(spec: ConvSpec, unit: VectorUnit) -> bool:
    """Whether the family can compute a layer."""
    known = unit.dots != "" and spec.integers and spec.weights == "int8"
    return known and spec.groups == 1 and spec.out_channels >= max(LEAST_LANES, unit.width // 2) and spec.taps <= _MOST_TAPS


def ways(spec: ConvSpec, unit: VectorUnit) -> list[Integer]:
    """One that packs little at a time, and one that packs as much as stays in the cache; none if the family is of no use."""
    if not eligible(spec, unit):
        return []
    seen = _seen(spec)
    row_nbytes = DOTS[unit.dots].itemsize * spec.in_channels * seen.stride[1]
    fewer = replace(unit, registers=unit.registers - DOTS[unit.dots].registers)
    tile = choose(seen.out_width, spec.out_channels, fewer, row_nbytes=row_nbytes)
    return list(dict.fromkeys([of_tile(spec, unit, tile, least=True), of_tile(spec, unit, tile)]))


def of_tile(spec: ConvSpec, unit: VectorUnit, tile: Tile, *, least: bool = False) -> Integer:
    """The way with a register tile, and parts as large as the cache, or as small as can be."""
    slots = unit.threads if spec.flops >= PARALLEL_FLOPS else 1
    way = Integer(spec, tile, 1, slots, unit.dots, unit.dot_cost)
    if least:
        return replace(way, parts=way.units)
    seen, panel = way.seen, way.panel
    fewest = math.ceil(seen.batch * way.part_nbytes / _BAND_NBYTES)
    return replace(way, parts=choose_parts(way.units, panel.blocks * seen.batch, fewest, slots, keeps_rows=True))


@dataclass(frozen=True)
class Integer:
    """A way to compute a layer."""

    spec: ConvSpec
    tile: Tile
    parts: int  # of the rows of an image, or of the tiles of the only row, for which the input is packed
    slots: int  # rooms for packed input, one per thread
    instruction: str  # one of DOTS
    cost: float = 1  # multiply-adds that take as long

    @cached_property
    def seen(self) -> ConvSpec:
        """The convolution of the packed input, which has its padding, and no pixels that nothing reads."""
        return _seen(self.spec)

    @property
    def dots(self) -> Dots:
        return DOTS[self.instruction]

    @property
    def is_flat(self) -> bool:
        """Whether the packed input is a row of pixels, one for each of the result."""
        return _is_flat(self.spec)

    @property
    def tells_rows(self) -> bool:
        """Whether a kernel can be told how many pixels are valid."""
        return self.is_flat

    @property
    def runs(self) -> int:
        """Parts of a reduction that lie together in the packed input: kernel rows, or taps where these lie apart."""
        return runs_of(self.spec, self.dots.together)[0]

    @property
    def run(self) -> int:
        """Products of each, and of zeros after them."""
        return runs_of(self.spec, self.dots.together)[1]

    @property
    def panel(self) -> Panel:
        spec, dots, taps = self.spec, self.dots, self.runs * self.run
        return Panel(1, spec.out_channels, self.tile.channels, taps, spec.channel_vectors, "int8", dots.together, dots.lowest)

    @property
    def units(self) -> int:
        """Rows of an image, or tiles of the only row."""
        return math.ceil(self.seen.out_width / self.tile.rows) if self.seen.pointwise else self.seen.out_height

    @property
    def part_nbytes(self) -> int:
        """Bytes of the packed input of the largest part."""
        return self.dots.itemsize * self.part

    @property
    def part(self) -> int:
        """Numbers of the packed input of the largest part."""
        units, seen = math.ceil(self.units / self.parts), self.seen
        if self.is_flat:
            return min(units * math.ceil(seen.out_width / self.units), seen.out_width) * seen.in_channels
        rows = (units - 1) * seen.stride[0] + (seen.kernel[0] - 1) * seen.dilation[0] + 1
        return rows * seen.width * seen.in_channels

    @property
    def room(self) -> int:
        """Bytes of a slot: whole cache lines, and the bytes that the last run reads after its products."""
        return math.ceil(self.dots.itemsize * (self.part + self.dots.together - 1) / 64) * 64

    @property
    def reads(self) -> int:
        """How often all weights are read."""
        return self.seen.batch * self.parts

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """The shape of the slots, in floats."""
        return ((self.slots, self.room // 4),)

    @property
    def scratch_nbytes(self) -> int:
        return self.slots * self.room

    @property
    def work(self) -> float:
        """Predicted time, in operations of a direct convolution that takes as long."""
        spec, seen = self.spec, self.seen
        products = seen.batch * seen.out_height * seen.out_width * spec.out_channels * self.panel.taps
        results = 4 * math.prod(spec.out_shape) * (_RESULT_FLOPS + _TENSOR_FLOPS * spec.tensors)
        packed = seen.batch * self.parts * self.part
        weights = spec.out_channels * spec.taps * (_WEIGHT_FLOPS + _AGAIN_FLOPS * (self.reads - 1))
        return self.cost * self.dots.flops * products + _PACK_FLOPS * packed + results + weights

    def __str__(self) -> str:
        return f"{self.parts} parts" if self.parts > 1 else "1 part"


def runs_of(spec: ConvSpec, together: int) -> tuple[int, int]:
    """How many runs of products a layer has, and their length with the zeros that follow."""
    rows, columns = spec.kernel
    runs = rows if spec.dilation[1] == 1 or columns == 1 else rows * columns
    return runs, math.ceil(spec.taps // runs / together) * together


def _is_flat(spec: ConvSpec) -> bool:
    return spec.kernel == (1, 1) and not any(spec.padding)


def _seen(spec: ConvSpec) -> ConvSpec:
    if not _is_flat(spec):
        return with_padding(spec)
    pixels = spec.batch * spec.out_height * spec.out_width
    return replace(spec, batch=1, height=1, width=pixels, stride=(1, 1), dilation=(1, 1))
