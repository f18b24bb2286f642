"""Convolution as a matrix product with a flattened input, of which a slice is in memory at a time.

FlexNN (MobiCom 2024, section 3.2, input slicing): the image is flattened to a matrix of output pixels × products, in
the order kernel row, kernel column, input channel; flattened channels are cut into slices, one of which is in memory at
a time. Scratch falls in proportion to the number of slices. This kernel is for comparison with the direct one,
which needs no such matrix.

The difference: FlexNN flattens a slice of the whole image before the next slice. Then every slice reads and writes the
partial sums of the whole output again, which on large images come from memory. Here a stretch of output pixels passes
through all slices before the next stretch begins, so long that its partial sums stay in the second-level cache.
A slice has the same products either way, and scratch is pixels of a stretch × products of a slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..direct_work import weight_work
from ..tiles.memory import USUAL, Memory
from ..tiles.panel import Panel, panel_of
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit, choose
from ..tiles.widening import WIDENED_NBYTES, widens

# Products added up in a register before the sum moves to the output, as in the direct convolution.
_PARTIAL_TERMS = 512
_LINE = 16  # floats of a cache line
# Pixels of a tile this many bytes apart would share a few sets of an 8-way 32 KiB cache.
_ALIAS_NBYTES = 1024
# Bytes of a stretch's partial sums that should stay in the second-level cache from one slice to the next.
_SUMS_NBYTES = 512 * 1024
# Bytes of the flattened slice that should stay in the second-level cache while all blocks pass over it.
_BAND_NBYTES = 256 * 1024
# Tasks of a stretch with as many tiles: enough for several threads to get equal shares.
_LEAST_TASKS = 8
# Products of a slice below which a layer is not cut any further; FlexNN's own choice (section 5.3).
FINEST_SLICE = 32
# The predicted time, in operations of a direct convolution: per float of the flattened input that is written and read,
# and per float of partial sums that is.
_FLATTEN_FLOPS = 16.0
_PARTIAL_FLOPS = 24.0


def eligible(spec: ConvSpec) -> bool:
    """Whether the family is of use: a pointwise convolution's input is flat already, and all channels have all taps."""
    return not spec.depthwise and not spec.pointwise and spec.first_taps is None


@dataclass(frozen=True)
class Im2col:
    """A way to compute a layer: a register tile, how many slices the flattened input is cut into, and the stretches."""

    spec: ConvSpec
    tile: Tile
    slices: int
    stretch: int  # output pixels that pass through all slices together, up to a tile more
    slots: int = 0  # rooms for widened weights, one per thread; 0: weights are read without widening
    memory: Memory = USUAL  # of the prediction `work`

    @property
    def panel(self) -> Panel:
        return panel_of(self.spec, self.tile.channels)

    @property
    def pixels(self) -> int:
        """Output pixels of one image: rows of the flattened input."""
        return self.spec.out_height * self.spec.out_width

    @property
    def tiles(self) -> int:
        """Register tiles of one image: the first `pixels % tiles` have a pixel more than the others."""
        return math.ceil(self.pixels / self.tile.rows)

    @property
    def stretches(self) -> int:
        """Into how many parts the tiles of an image are cut: the first `tiles % stretches` have a tile more."""
        return min(self.tiles, math.ceil(self.pixels / self.stretch))

    @property
    def reads(self) -> int:
        """How often all weights are read: bands read those of a slice one after the other, which may stay cached."""
        of_slice = self.panel.blocks * self.panel.block_nbytes / self.count
        return self.spec.batch * self.stretches * (self.bands if of_slice > self.memory.second_nbytes else 1)

    @property
    def band(self) -> int:
        """Register tiles of a stretch that all blocks pass over together."""
        tiles = math.ceil(self.tiles / self.stretches)
        cached = max(1, _BAND_NBYTES // (4 * self.row * self.tile.rows))
        fewest = min(tiles, math.ceil(_LEAST_TASKS / self.panel.blocks_per_group))
        return math.ceil(tiles / max(fewest, math.ceil(tiles / cached)))

    @property
    def bands(self) -> int:
        """How many of these a stretch has."""
        return math.ceil(math.ceil(self.tiles / self.stretches) / self.band)

    @property
    def flattened_pixels(self) -> int:
        """Pixels of the first stretch, which no other has more than."""
        tiles = math.ceil(self.tiles / self.stretches)
        small, larger = divmod(self.pixels, self.tiles)
        return tiles * small + min(tiles, larger)

    @property
    def step(self) -> int:
        """Products that a slice is a multiple of: a cache line of them, where there are enough of those."""
        return _LINE if math.ceil(self.spec.taps / self.slices) >= _LINE else 1

    @property
    def steps(self) -> int:
        """Steps of all products, the last of which may be incomplete."""
        return math.ceil(self.spec.taps / self.step)

    @property
    def count(self) -> int:
        """Slices that there are, the fewest of that length: the first `steps % count` have a step more than the others."""
        return math.ceil(self.steps / math.ceil(self.steps / self.slices))

    @property
    def slice(self) -> int:
        """Products of the first slice, which no other has more than."""
        return min(math.ceil(self.steps / self.count) * self.step, self.spec.taps)

    @property
    def row(self) -> int:
        """Floats between pixels in the flattened slice."""
        floats = math.ceil(self.slice / _LINE) * _LINE if self.slice >= _LINE else self.slice
        return floats + _LINE if floats * 4 % _ALIAS_NBYTES == 0 else floats

    @property
    def parts(self) -> int:
        """Into how many parts the products of a slice are cut that are added up in registers."""
        most = min(_PARTIAL_TERMS, WIDENED_NBYTES // (4 * self.tile.channels)) if self.slots else _PARTIAL_TERMS
        return math.ceil(self.slice / most)

    @property
    def terms(self) -> int:
        """Products of the first part, which no other has more than."""
        return math.ceil(self.slice / self.parts)

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the flattened slice and of widened weights, float32."""
        flattened = (self.flattened_pixels, self.row)
        return (flattened, (self.slots, self.terms * self.tile.channels)) if self.slots else (flattened,)

    @property
    def scratch_nbytes(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self.scratch)

    @property
    def work(self) -> float:
        """Predicted time, in operations of a direct convolution that takes as long."""
        spec = self.spec
        flattened = spec.batch * spec.groups * self.pixels * spec.taps
        partial = (self.count - 1) * spec.batch * self.pixels * spec.out_channels
        tiles = spec.batch * self.tiles
        reading = weight_work(spec, self.memory, self.reads, spec.flops, tiles)
        return spec.flops + _FLATTEN_FLOPS * flattened + _PARTIAL_FLOPS * partial + reading

    def __str__(self) -> str:
        slices = f"{self.count} slices" if self.count > 1 else "1 slice"
        return f"{slices} of {self.flattened_pixels} pixels" if self.stretches > 1 else slices


def ways(spec: ConvSpec, unit: VectorUnit) -> list[Im2col]:
    """One slice, two, four and so on, down to slices of FINEST_SLICE products; none if the family is of no use."""
    if not eligible(spec):
        return []
    found: dict[str, Im2col] = {}
    slices = 1
    while slices == 1 or slices * FINEST_SLICE <= spec.taps:
        way = in_slices(spec, unit, slices)
        found.setdefault(str(way), way)
        slices *= 2
    finest = in_slices(spec, unit, max(1, spec.taps // FINEST_SLICE))
    found.setdefault(str(finest), finest)
    return list(found.values())


def in_slices(spec: ConvSpec, unit: VectorUnit, slices: int) -> Im2col:
    """The way with the best register tile, about so many slices, and stretches whose partial sums stay cached."""
    pixels = spec.out_height * spec.out_width
    tile = choose(pixels, spec.group_out, unit)
    slots = unit.threads if widens(spec, unit.by_lane, pixels) else 0
    return Im2col(spec, tile, slices, max(1, _SUMS_NBYTES // (4 * spec.group_out)), slots, unit.memory)
