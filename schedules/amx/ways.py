"""How a layer is computed with AMX: the shapes of tiles, and the parts for which the input is packed.

Targets: layers in bfloat16 with bfloat16 weights, of one group, on processors with AMX.

Sums are two tiles of pixels × two tiles of channels. A step multiplies as many input channels as a tile of pixels holds, or
fewer, so that steps divide a tap's channels evenly: no step needs a mask or zeros. Channels that have no such divisor stay with
other kernels. Blocks have 32 channels, or 16 where that wastes fewer, in the panels of pairs that `vdpbf16ps` reads, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ..conv import PAIR, as_row
from ..direct_work import result_work, weight_work
from ..tiles.amx import CONFIG_WORDS, ROWS
from ..tiles.emit import PARALLEL_FLOPS
from ..tiles.memory import USUAL, Memory
from ..tiles.packed_rows import with_padding
from ..tiles.panel import Panel, panel_of
from ..tiles.parts import choose_parts
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit

_TALL = 2  # tiles of pixels, and of channels, that sums have at most
_LEAST_CHANNELS = 16  # of a step
# Bytes of input that should stay in the second-level cache, of 2 MiB on every core with AMX, while all blocks pass over it.
_BAND_NBYTES = 512 * 1024
# Cycles: of a row of pixels with each tile of channels, for each 64 bytes of a tile that is loaded, and for each result that goes
# through the epilogue; and products of float32 that a core adds up in a cycle. Of 196 × 256 × 1024 products on one Intel core the
# first two are 0.97 of the time, of 3136 × 64 × 64 all three are 1.0.
_ROW_CYCLES, _LINE_CYCLES, _RESULT_CYCLES, _FLOAT32_FLOPS = 1.0, 2.0, 0.5, 64
_PACK_FLOPS = 2.0  # for each byte that is packed


def eligible(spec: ConvSpec, unit: VectorUnit) -> bool:
    """Whether the family can compute a layer."""
    known = unit.tiles and spec.dtype == spec.weights == "bfloat16" and spec.first_taps is None
    enough = spec.out_channels >= ROWS and _step(spec.in_channels) >= _LEAST_CHANNELS
    return known and spec.groups == 1 and enough and spec.batch * spec.out_height * spec.out_width > 1


def ways(spec: ConvSpec, unit: VectorUnit) -> list[Amx]:
    """One that packs little at a time, and one that packs as much as stays in the cache; one where nothing is packed."""
    if not eligible(spec, unit):
        return []
    blocks = (_TALL * ROWS, ROWS) if spec.out_channels >= _TALL * ROWS else (ROWS,)
    way = min((Amx(spec, block, 1, 1, unit.memory) for block in blocks), key=lambda way: way.work)
    way = replace(way, slots=unit.threads if spec.flops >= PARALLEL_FLOPS else 1)
    blocks = way.panel.blocks * way.seen.batch
    fewest = math.ceil(way.seen.read_nbytes / _BAND_NBYTES)
    cached = replace(way, parts=choose_parts(way.units, blocks, fewest, way.slots, keeps_rows=True))
    return list(dict.fromkeys([replace(way, parts=way.units), cached])) if way.packs else [cached]


@dataclass(frozen=True)
class Amx:
    """A way to compute a layer."""

    spec: ConvSpec
    block: int  # output channels: one tile of them, or two
    parts: int  # of the units of an image, for which the input is packed
    slots: int  # rooms for sums and packed input, one per thread
    memory: Memory = USUAL  # of the prediction `work`

    @property
    def packs(self) -> bool:
        """Whether the input is packed, with its padding; else tiles are loaded from where it lies."""
        return any(self.spec.padding)

    @cached_property
    def seen(self) -> ConvSpec:
        """The convolution that tiles see: of the packed input, or of a row of pixels where neighbours do not matter."""
        return with_padding(self.spec) if self.packs else as_row(self.spec)

    @property
    def panel(self) -> Panel:
        return panel_of(self.spec, self.block, PAIR)

    @property
    def step(self) -> int:
        """Input channels that an instruction multiplies."""
        return _step(self.spec.in_channels)

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Pixels of the tiles in which sums are."""
        width, height = self.seen.out_width, self.seen.out_height
        if width <= ROWS:
            return (width,) * min(_TALL, height)
        size = math.ceil(width / math.ceil(width / (_TALL * ROWS)))
        return (math.ceil(size / 2), size // 2) if size > ROWS else (size,)

    @property
    def lines(self) -> int:
        """Rows of the image that these tiles are in."""
        return len(self.heights) if self.seen.out_width <= ROWS else 1

    @property
    def pixels(self) -> int:
        return sum(self.heights)

    @property
    def columns(self) -> int:
        """Pixels of a row that are computed together."""
        return self.pixels // self.lines

    @property
    def across(self) -> int:
        """How many times as many a row has; the last may overlap the ones before."""
        return math.ceil(self.seen.out_width / self.columns)

    @property
    def is_flat(self) -> bool:
        """Whether an image is one row, whose units are pixels that are computed together; else units are rows of the image."""
        return self.seen.out_height == 1

    @property
    def units(self) -> int:
        return self.across if self.is_flat else math.ceil(self.seen.out_height / self.lines)

    @property
    def tile(self) -> Tile:
        return Tile(self.pixels, self.block)

    @property
    def packed(self) -> int:
        """Numbers of the packed input of the largest part."""
        if not self.packs:
            return 0
        seen, rows = self.seen, 1 if self.is_flat else math.ceil(self.units / self.parts) * self.lines
        rows = (min(rows, seen.out_height) - 1) * seen.stride[0] + (seen.kernel[0] - 1) * seen.dilation[0] + 1
        return rows * seen.width * seen.in_channels

    @property
    def room(self) -> int:
        """Words of 32 bits of a slot: the description of tiles, sums, and packed input, each whole cache lines."""
        return CONFIG_WORDS + self.pixels * self.block + math.ceil(self.packed / PAIR / 16) * 16

    @property
    def reads(self) -> int:
        """How often all weights are read."""
        return self.seen.batch * self.parts

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        return ((self.slots, self.room),)

    @property
    def scratch_nbytes(self) -> int:
        return 4 * self.slots * self.room

    @property
    def work(self) -> float:
        """Predicted time, in operations of float32 at a core's peak."""
        units = self.seen.batch * self.units * (1 if self.is_flat else self.across)
        steps = self.panel.blocks * self.panel.taps / self.step
        lines = self.pixels + math.ceil(self.block / ROWS) * self.step / PAIR
        cycles = steps * (_ROW_CYCLES * self.pixels * math.ceil(self.block / ROWS) + _LINE_CYCLES * lines)
        cycles += self.panel.blocks * _RESULT_CYCLES * self.pixels * self.block
        packed = PAIR * self.seen.batch * self.parts * self.packed
        computed, tiles = _FLOAT32_FLOPS * units * cycles, math.ceil(units / self.seen.batch)
        reading = weight_work(self.spec, self.memory, self.reads, computed, tiles)
        return computed + _PACK_FLOPS * packed + result_work(self.spec) + reading

    def __str__(self) -> str:
        return f"{self.parts} parts" if self.parts > 1 else "1 part"


def _step(channels: int) -> int:
    """The most channels, an even number up to the 32 of a tile, that divide these evenly; 0: none."""
    return max((size for size in range(PAIR, PAIR * ROWS + 1, PAIR) if channels % size == 0), default=0)
