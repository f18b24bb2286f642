"""Fast matrix product for 1×1 convolutions: seven products of halves instead of eight, weights combined at build time.

Targets: convolutions and fully connected layers without neighbours (any stride) and with enough channels.
Pixels, input channels and the channels of a block are cut into parts, on one level halves, A = [A11 A12; A21 A22]:

    S1 = A21 + A22    S2 = S1 - A11     S3 = A11 - A21    S4 = A12 - S2         of the input, once per band
    T1 = B12 - B11    T2 = B22 - T1     T3 = B22 - B12    T4 = T2 - B21         of the weights, at build time
    P1 = A11 B11      U2 = P1 + S2 T2   U3 = U2 + S3 T3   P5 = S1 T1
    C11 = P1 + A12 B21    C12 = U2 + P5 + S4 B22    C21 = U3 - A22 T4    C22 = U3 + P5

Source: Winograd's variant of Strassen's algorithm (Strassen, Gaussian elimination is not optimal, 1969; the schedule
after Boyer, Dumas, Pernet & Zhou, Memory efficient scheduling of Strassen-Winograd's matrix multiplication
algorithm, 2009). The sums over products never leave a register tile and three copies of it.

For each band of pixel tiles (2r neighbouring pixels, the first r of which are the upper half):

1. V[row][operand][channel]: the seven left operands, side by side in the order of their use.
2. For each block of output channels, each pixel tile: seven products one after the other; accumulators start as the
   sum before, and pass through the epilogue where a quarter of the output is complete.

On two levels each of the seven products is computed the same way: parts are quarters, a pixel tile has 4r pixels. A
band is one tile, and for each few blocks of output channels, each outer product P:

1. V[row][operand][channel]: the seven inner left operands, made from the image.
2. For each of the blocks: P from seven inner products, its four quarters being kept.

Then, for each of the blocks, sums of the outer products pass through the epilogue:

    C11 = P1 + P2    C21 = P1 + P3 + P4 + P5    C22 = P1 + P3 + P4 + P6    C12 = P1 + P3 + P6 + P7
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..tiles.asking import share
from ..tiles.memory import USUAL, Memory
from ..tiles.panel import Panel
from ..tiles.spec import ConvSpec
from ..tiles.tile import Tile, VectorUnit, choose
from .weights import PRODUCTS

_CHUNK_CHANNELS = 512  # between two times that operands are made: their outer products stay in the second-level cache
FEW_PIXELS = 4  # of the smallest tile, where fewer are valid than a whole one has
COPIES = 3  # of a register tile: P1 and, once that is not needed, U2 + P5; U2; U3
_LINE = 16  # floats of a cache line
_ALIAS_NBYTES = 1024  # operands of one row this many bytes apart would share a few sets of the first-level cache
_BAND = 25 / 64  # of the second-level cache are for V, which stays there together with the weights of a block, or two
_CACHED_NBYTES = 512 * 1024  # of weights, which stay in the second-level cache
_LEAST_CHANNELS = {1: 64, 2: 256}  # by levels; below, moving register tiles costs as much as the eighth product
# By levels. With 16 registers tiles have six rows, and a band of two levels, which is one tile, reads 49/16 of the weights
# for 24 pixels: 0.99 to 1.52 times the time of one level, on nine layers and one Zen 3 core (docs/measurements/kernels.md).
_LEAST_REGISTERS = {1: 0, 2: 32}
_LEAST_ROWS = 12  # of a register tile, if vectors are as wide: fewer use a weight too seldom
_VECTORS = (2, 1)  # of a register tile at most: one, where tall tiles read large weights fewer times
# The predicted time, in operations at a core's peak. Fitted to the 1×1 layers of ResNet-50 on one Zen 4 core (118
# GFLOP/s), 64 to 2048 input channels, weights from memory: within 3 % of all measurements.
_PRODUCT_FLOPS = {1: 1.06, 2: 1.04}  # per operation of the products, by levels
_VALUE_FLOPS = 8.0  # per value of V: a sum, a store, a load
_MOVE_FLOPS = {1: 7.0, 2: 53.0}  # per output, by levels: register tiles stored and loaded again between products
_LATE = 1 / 12  # of the time of reading weights, which are asked for ahead


@dataclass(frozen=True)
class Strassen:
    """A way to compute a layer."""

    spec: ConvSpec
    tile: Tile  # register tile: pixels of one part × channels of one part
    groups: int  # pixel tiles in a band; one on two levels
    slots: int = 1  # bands that may be computed at the same time
    levels: int = 1
    memory: Memory = USUAL  # of the prediction `work`

    @property
    def parts(self) -> int:
        """Into how many parts pixels and channels are cut."""
        return 2**self.levels

    @property
    def products(self) -> int:
        return PRODUCTS**self.levels

    @property
    def depth(self) -> int:
        """Input channels of a part."""
        return self.spec.in_channels // self.parts

    @property
    def panel(self) -> Panel:
        taps = self.products * self.depth // self.parts  # a row of a whole block holds a row of every part
        block = self.parts * self.tile.channels
        return Panel(1, self.spec.out_channels, block, taps, self.spec.channel_vectors)

    @property
    def pixels(self) -> int:
        return self.spec.batch * self.spec.out_height * self.spec.out_width

    @property
    def units(self) -> int:
        """Pixels, one of each part, that are taken together."""
        return math.ceil(self.pixels / self.parts)

    @property
    def tiles(self) -> int:
        """Pixel tiles of the whole output."""
        return math.ceil(self.units / self.tile.rows)

    @property
    def bands(self) -> int:
        return math.ceil(self.tiles / self.groups)

    @property
    def reads(self) -> int:
        """How often all weights are read; on two levels, where operands are made anew for a few blocks, they are read no more."""
        return self.bands

    @property
    def rows(self) -> int:
        """Pixels of the largest part."""
        return math.ceil(self.units / self.tiles)

    @property
    def v_operand(self) -> int:
        """Floats between operands of a row in V."""
        return self.depth + _LINE if self.depth * 4 % _ALIAS_NBYTES == 0 else self.depth

    @property
    def v_row(self) -> int:
        """Floats between rows in V, the operands of one level.

        An odd number of cache lines, so that rows fall into different cache sets.
        """
        lines = math.ceil(PRODUCTS * self.v_operand / _LINE)
        return (lines + 1 - lines % 2) * _LINE

    @property
    def chunk(self) -> int:
        """Blocks of output channels between two times that the operands of two levels are made."""
        return max(1, min(_CHUNK_CHANNELS // self.panel.block, self.panel.blocks))

    @property
    def copies(self) -> int:
        """Register tiles in scratch: those of a level, and on two levels the four of each outer product."""
        return COPIES + (4 * PRODUCTS * self.chunk if self.levels > 1 else 0)

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of V and of the copies, float32."""
        return (
            (self.slots, self.groups * self.rows, self.v_row),
            (self.slots, self.copies, self.rows * self.tile.channels),
        )

    @property
    def scratch_nbytes(self) -> int:
        return sum(4 * math.prod(shape) for shape in self.scratch)

    @property
    def asked(self) -> int:
        """Floats of the next block that a step of a register tile asks for; on two levels one tile passes over the weights."""
        nbytes = 2 * self.panel.block_nbytes + self.scratch_nbytes // self.slots
        asks = self.memory.is_slow and self.levels == 1 and self.panel.blocks > 1 and self.tile.depth == 1
        return share(self.tile.channels, self.groups) if asks and nbytes <= self.memory.second_nbytes else 0

    @property
    def work(self) -> float:
        """Predicted time, in operations of direct convolutions that take all threads as long."""
        spec, panel = self.spec, self.panel
        outputs = self.parts * self.units * panel.blocks * panel.block
        weights = panel.blocks * panel.block_nbytes
        products = (PRODUCTS / 8) ** self.levels * 2.0 * outputs * spec.in_channels
        computed = _PRODUCT_FLOPS[self.levels] * products + _MOVE_FLOPS[self.levels] * outputs
        times = math.ceil(panel.blocks / self.chunk) if self.levels > 1 else 1
        computed += _VALUE_FLOPS * times * self.units * self.products * self.depth
        computed *= _share(self.tiles, self.groups, self.slots) * self.slots / self.tiles
        tiles = 1 if self.asked else self.groups
        return computed + self.memory.waiting(weights, math.ceil(self.bands / self.slots), computed, tiles, _LATE)

    @property
    def tells_rows(self) -> bool:
        """Whether a kernel can be told how many pixels are valid: pixels that fill no tile need a plain product."""
        return self.levels == 1

    @property
    def together(self) -> int:
        """Pixels that are computed together, however few of them are valid."""
        return FEW_PIXELS if self.tells_rows else self.parts * self.groups * self.rows

    def __str__(self) -> str:
        slots = f"{self.slots}×" if self.slots > 1 else ""
        return f"{slots}{self.groups * self.rows} {'pairs' if self.levels == 1 else 'quadruples'}"


def eligible(spec: ConvSpec, levels: int = 1) -> bool:
    """Whether the family can compute a layer on so many levels."""
    return spec.kernel == (1, 1) and not any(spec.padding) and spec.groups == 1 and spec.in_channels % 4**levels == 0


def ways(spec: ConvSpec, unit: VectorUnit) -> list[Strassen]:
    """The ways on offer for a layer: as many bands as threads can share evenly; none where that does not pay."""
    widths = _VECTORS[:1] if unit.by_lane else _VECTORS  # by lane blocks are whole pairs of vectors
    two = [way for vectors in widths for way in _on_levels(spec, unit, 2, vectors)]
    return _on_levels(spec, unit, 1, _VECTORS[0]) + two


def _on_levels(spec: ConvSpec, unit: VectorUnit, levels: int, vectors: int) -> list[Strassen]:
    pixels, parts = spec.batch * spec.out_height * spec.out_width, 2**levels
    if not eligible(spec, levels) or spec.in_channels < _LEAST_CHANNELS[levels] or unit.registers < _LEAST_REGISTERS[levels]:
        return []
    if pixels < parts * min(_LEAST_ROWS, unit.width) or spec.out_channels < parts * unit.width:
        return []
    best = choose(math.ceil(pixels / parts), spec.out_channels // parts, unit, most_vectors=vectors)
    if best.channels % unit.width or spec.out_channels < parts * best.channels:
        return []
    found: dict[Strassen, None] = {}
    for rows in range(best.rows, max(best.rows - 4, 0), -1):
        way = Strassen(spec, replace(best, rows=rows), 1, unit.threads, levels, unit.memory)
        way = replace(way, tile=replace(best, rows=way.rows))
        if levels > 1:
            found[way] = None
            continue
        many = way.panel.blocks * way.panel.block_nbytes > _CACHED_NBYTES
        if not many:
            found[way] = None  # tile by tile: weights stay cached, and results are written as whole pixels
        # Many weights are read once for each band; of few, larger bands only move more results at a time.
        room = _BAND * (unit.memory.second_nbytes if many else min(unit.memory.second_nbytes, USUAL.second_nbytes))
        most = max(1, int(room) // (4 * way.rows * way.v_row))
        bands = math.ceil(way.tiles / most)
        for count in {bands, math.ceil(bands / unit.threads) * unit.threads}:
            if count <= way.tiles:
                found[replace(way, groups=math.ceil(way.tiles / count))] = None
        if unit.threads > 1:
            shares = {groups: _share(way.tiles, groups, unit.threads) for groups in range(min(most, way.tiles), 0, -1)}
            found[replace(way, groups=min(shares, key=shares.__getitem__))] = None
    return list(found)


def _share(tiles: int, groups: int, slots: int) -> int:
    """Pixel tiles of the slot with the most to do, in bands of `groups` tiles of which the last may be smaller."""
    return min(tiles, math.ceil(math.ceil(tiles / groups) / slots) * groups)
