"""Winograd convolution F(m × m, 3 × 3), m = 2, 4, 5, 6, over NHWC images: fewer products, for scratch and larger weights.

Targets: 3×3 kernels, stride 1, dilation 1, one group, padding of at most 2 (schedules/winograd/transforms.py
has the algebra and the source). Kernels of one row or one column of 3 to 7 taps, which are transformed along that axis
only: F(1 × m, 1 × r). And 7×7 kernels of stride 2 over images of few channels, as networks begin with: over pairs of
pixels, which have four times the channels, that is a 4×4 kernel of stride 1, F(4 × 4, 4 × 4).

The output is cut into Winograd tiles of m × m pixels, row-major over all images. With a = m + r - 1, r × r being the
kernel, for each block of Winograd tiles:

1. V[tile][a·a][in channel] = Bᵀ x B; along one axis there are a positions, not a·a. Rows and columns outside the image
   are known when code is emitted: each kind of border tile is emitted on its own, without them.
2. For each chunk of output channel blocks, each block, each of the a·a positions: M[tile][block][a·a][lane] = V U,
   a matrix product with a register tile of Winograd tiles × output channels. U streams from the panel in its order
   in memory, once per block of tiles.
3. For each chunk: y = epilogue(Aᵀ M A + bias), again with code of its own for tiles that overhang the output.

Threads either take the loops within every stage (`slots` = 1), where a launch per stage is small against the work
and V is shared, or blocks of tiles (`slots` > 1), each slot with its own part of V and M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..tiles.asking import share
from ..tiles.memory import USUAL, Memory
from ..tiles.panel import Panel
from ..tiles.spec import ConvSpec
from ..tiles.tile import MOST_VECTORS, Tile, VectorUnit, choose
from .transforms import EXTENTS, KERNEL, KINDS
from .weights import WeightTransform

_MOST_PADDING = KERNEL - 1
_STEM = 7
_MOST_STEM_CHANNELS = 4
_LINE = 16  # floats of a cache line
# Positions of one tile this many bytes apart would share a few sets of an 8-way 32 KiB cache.
_ALIAS_NBYTES = 1024
# Scratch of candidates: little; as much as stays in a core's second-level cache with the weights streaming past; and
# so much that weights which do not fit the last level are read fewer times.
_SCRATCH_NBYTES = (160 * 1024, 600 * 1024, 1200 * 1024, 4096 * 1024)
_MOST_CHUNK = 4
_FIRST_LEVEL_NBYTES = 32 * 1024
_SECOND_LEVEL_NBYTES = 512 * 1024  # weights up to here stay in a core's own cache
# Asking for weights ahead pays where a cache line of them meets this many rows of a register tile.
_PREFETCH_ROWS = 8
# The predicted time, in operations at the speed of a direct convolution. Measured on one Zen 4 core (118 GFLOP/s).
_TRANSFORM_FLOPS = {4: 8.0, 6: 8.0, 7: 9.5, 8: 11.0}  # by a, per value of V and M: transform, store, load
_PIXEL_FLOPS = 5.0  # per byte of input and output, which tiles touch in short pieces
_LATE = 1 / 12  # of the time of reading weights, which are asked for ahead
_STORE_STEPS = 3.0  # steps of a product that starting and storing a register tile costs
_TILE_OVERHEAD = 0.4  # rows of Winograd tiles that loading a row of weights costs
_WAIT = 1.07  # factor of products that wait for weights
_BUSY_ROWS = 12  # of a register tile, so many cycles with a line of weights, are enough not to wait for the next one
_LAUNCH_FLOPS = 200_000.0  # per loop that is handed to several threads, of each of them
# Wider register tiles gain nothing here, and make M larger; but a few rows of tiles need them to keep the units busy.
_MOST_VECTORS = 2
_FEW_ACCUMULATORS = 10
# Rows of V lie further apart than an AArch64 load's offset reaches, each needs an address of its own: with this many
# vector registers left free a tile has few enough rows.
_FAR_ROWS = 7


def eligible(spec: ConvSpec) -> bool:
    """Whether the family can compute a layer."""
    if spec.dilation != (1, 1) or spec.groups > 1:
        return False
    if in_pairs(spec):
        return spec.in_channels <= _MOST_STEM_CHANNELS and max(spec.padding) < _STEM and not _odd(spec)
    if is_line(spec):
        top, left, bottom, right = spec.padding
        reach = max(top, bottom) < spec.kernel[0] and max(left, right) < spec.kernel[1]
        return spec.stride == (1, 1) and reach and bool(kinds(spec))
    return spec.kernel == (KERNEL, KERNEL) and spec.stride == (1, 1) and max(spec.padding) <= _MOST_PADDING


def in_pairs(spec: ConvSpec) -> bool:
    """Whether pairs of pixels are taken together: kernels of stride 2."""
    return spec.kernel == (_STEM, _STEM) and spec.stride == (2, 2)


def is_line(spec: ConvSpec) -> bool:
    """Whether the kernel is one row or one column, and transformed along that axis only."""
    return min(spec.kernel) == 1 < max(spec.kernel)


def _odd(spec: ConvSpec) -> bool:
    return spec.height % 2 == 1 or spec.width % 2 == 1


def kinds(spec: ConvSpec) -> tuple[int, ...]:
    """Sizes of output tiles that there are matrices for."""
    if is_line(spec):
        taps = max(spec.kernel)
        sizes = tuple(a - taps + 1 for a in EXTENTS if a > taps) if taps >= KERNEL else ()
        # The largest errs by 3e-6 of the largest output, the others by half of that.
        return sizes[:-1] or sizes
    return (4,) if in_pairs(spec) else KINDS


@dataclass(frozen=True)
class Winograd:
    """A way to compute a layer: sizes of tiles, blocks and scratch."""

    spec: ConvSpec
    m: int  # F(m × m, r × r)
    tile: Tile  # register tile: Winograd tiles × output channels
    groups: int  # register tiles of Winograd tiles in a block
    chunk: int = 1  # blocks of output channels between two output transforms
    slots: int = 1  # blocks of tiles that may be computed at the same time
    threads: int = 1  # of the prediction `work`
    memory: Memory = USUAL  # the same

    @property
    def r(self) -> int:
        return (_STEM + 1) // 2 if in_pairs(self.spec) else max(self.spec.kernel)

    @property
    def axes(self) -> tuple[bool, bool]:
        """Which axes are transformed: rows, columns."""
        return (self.spec.kernel[0] > 1, self.spec.kernel[1] > 1)

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of a tile's outputs."""
        return tuple(self.m if transformed else 1 for transformed in self.axes)

    @property
    def inputs(self) -> tuple[int, int]:
        """Rows and columns of a tile's inputs, or positions."""
        return tuple(self.a if transformed else 1 for transformed in self.axes)

    @property
    def stride(self) -> int:
        """Pixels that are taken together in each direction."""
        return self.spec.stride[0]

    @property
    def depth(self) -> int:
        """Channels taken together: products summed for a position."""
        return self.spec.in_channels * self.stride**2

    @property
    def padding(self) -> tuple[int, int]:
        """Pixels, or pairs, before the first row and column."""
        return math.ceil(self.spec.padding[0] / self.stride), math.ceil(self.spec.padding[1] / self.stride)

    @property
    def weight_transform(self) -> WeightTransform:
        before = tuple(self.stride * p - q for p, q in zip(self.padding, self.spec.padding[:2], strict=True))
        return WeightTransform(self.m, self.r, self.stride, before, self.axes)

    @property
    def a(self) -> int:
        return self.m + self.r - 1

    @property
    def positions(self) -> int:
        return math.prod(self.inputs)

    @property
    def rows(self) -> int:
        """Rows of Winograd tiles in an image."""
        return math.ceil(self.spec.out_height / self.outputs[0])

    @property
    def columns(self) -> int:
        return math.ceil(self.spec.out_width / self.outputs[1])

    @property
    def tiles(self) -> int:
        """Winograd tiles of all images."""
        return self.spec.batch * self.rows * self.columns

    @property
    def panel(self) -> Panel:
        spec = self.spec
        return Panel(1, spec.out_channels, self.tile.channels, self.positions * self.depth, spec.channel_vectors)

    @property
    def all_groups(self) -> int:
        return math.ceil(self.tiles / self.tile.rows)

    @property
    def tile_blocks(self) -> int:
        return math.ceil(self.all_groups / self.groups)

    @property
    def reads(self) -> int:
        """How often all weights are read."""
        return self.tile_blocks

    @property
    def block_tiles(self) -> int:
        """Winograd tiles of the largest block."""
        return min(self.groups * math.ceil(self.tiles / self.all_groups), self.tiles)

    @property
    def v_position(self) -> int:
        """Floats between positions of a tile in V."""
        if in_pairs(self.spec):  # a row of each pair is stored on its own, rounded up to a vector
            return _LINE * math.ceil((self.depth + _MOST_STEM_CHANNELS) / _LINE)
        return self.depth + _LINE if self.depth * 4 % _ALIAS_NBYTES == 0 else self.depth

    @property
    def v_tile(self) -> int:
        """Floats between tiles in V: an odd number of cache lines, so that tiles fall into different cache sets."""
        return _odd_lines(self.positions * self.v_position)

    @property
    def m_tile(self) -> int:
        """Floats between tiles in M."""
        return _odd_lines(min(self.chunk, self.panel.blocks) * self.positions * self.tile.channels)

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of V and M, float32."""
        return ((self.slots, self.block_tiles, self.v_tile), (self.slots, self.block_tiles, self.m_tile))

    @property
    def scratch_nbytes(self) -> int:
        return sum(4 * math.prod(shape) for shape in self.scratch)

    @property
    def prefetches(self) -> bool:
        """Whether weights are asked for ahead: these come from beyond a core's caches, in whole lines."""
        nbytes = self.panel.blocks * self.panel.block_nbytes
        return nbytes > _SECOND_LEVEL_NBYTES and self.tile.channels % _LINE == 0 and self.tile.rows >= _PREFETCH_ROWS

    @property
    def asked(self) -> int:
        """Floats of the next position's weights that a step of a register tile asks for."""
        asks = self.memory.is_slow and self.prefetches and self.tile.depth == 1
        return share(self.tile.channels, min(self.groups, self.all_groups)) if asks else 0

    @property
    def prefetches_v(self) -> bool:
        """Whether the lines of V are asked for before writing: a store that misses holds up later ones."""
        return 4 * self.v_tile > _FIRST_LEVEL_NBYTES

    @property
    def waits(self) -> bool:
        """Whether a line of weights is wanted more often than one arrives, and neighbouring vectors delay more.

        With one vector a multiply-add takes its factor from memory. With several the factor is loaded once for all of
        them, into a register, and a core that runs out of those looks less far ahead.
        """
        return self.prefetches and self.tile.channels > _LINE and self.tile.rows < _BUSY_ROWS

    @property
    def work(self) -> float:
        """Predicted time, in operations of direct convolutions that take all threads as long."""
        spec, panel, threads = self.spec, self.panel, self.threads
        size, weights = panel.blocks * panel.block, panel.blocks * panel.block_nbytes
        overhead = (1 + _TILE_OVERHEAD * self.all_groups / self.tiles) * (_WAIT if self.waits else 1.0)
        products = 2.0 * self.tiles * self.positions * (self.depth + _STORE_STEPS) * size * overhead
        transforms = _TRANSFORM_FLOPS[self.a] * self.tiles * self.positions * (self.depth + size)
        pixels = _PIXEL_FLOPS * 4 * spec.batch * (
            spec.height * spec.width * spec.in_channels + spec.out_height * spec.out_width * spec.out_channels
        )  # fmt: skip
        computed = products + transforms + pixels
        if self.slots > 1:
            computed *= _imbalance(self.tile_blocks, self.slots) * max(1.0, threads / self.slots)
        elif threads > 1:
            tasks = min(self.chunk, panel.blocks) * self.positions
            launches = self.tile_blocks * (1 + 2 * math.ceil(panel.blocks / self.chunk))
            computed += products * (_imbalance(tasks, threads) - 1)
            computed += (transforms + pixels) * (_imbalance(self.block_tiles, threads) - 1)
            computed += _LAUNCH_FLOPS * threads * launches
        passes = math.ceil(self.tile_blocks / self.slots)
        computed += self.memory.near * self._far_scratch_nbytes
        return computed + self.memory.waiting(weights, passes, products, 1 if self.asked else self.groups, _LATE)

    @property
    def _far_scratch_nbytes(self) -> float:
        """Bytes of V and M written and read in the last-level cache, because a core's own has no room for them."""
        panel, room = self.panel, self.memory.second_nbytes
        beyond = min(1.0, max(0.0, self.scratch_nbytes / self.slots / max(1, room) - 1))
        v, m = self.depth, panel.blocks * panel.block
        return beyond * 4 * self.tiles * self.positions * (v * (1 + math.ceil(panel.blocks / self.chunk)) + 2 * m)

    def __str__(self) -> str:
        slots = f"{self.slots}×" if self.slots > 1 else ""
        return f"F({self.m}) {slots}{self.block_tiles} tiles"


def _imbalance(tasks: int, threads: int) -> float:
    """How much longer the thread with the most tasks takes than the average."""
    return math.ceil(tasks / threads) * threads / tasks


def _odd_lines(floats: int) -> int:
    lines = math.ceil(floats / _LINE)
    return (lines + 1 - lines % 2) * _LINE


def ways(spec: ConvSpec, unit: VectorUnit) -> list[Winograd]:
    """The ways on offer for a layer, of all kinds and several sizes of scratch; none if the family cannot compute the layer."""
    few = spec.out_channels if in_pairs(spec) else min(spec.in_channels, spec.out_channels)
    if not eligible(spec) or few < unit.width:
        return []
    found: dict[Winograd, None] = {}
    for m in kinds(spec):
        for limit in _SCRATCH_NBYTES:
            for slots in sorted({1, unit.threads}):
                found.update(dict.fromkeys(_fitting(spec, m, unit, limit, slots)))
    return list(found)


def _fitting(spec: ConvSpec, m: int, unit: VectorUnit, limit: int, slots: int) -> list[Winograd]:
    """The smallest and the largest block of tiles in at most `limit` bytes of scratch, of register tiles as high as fit."""
    tiles = Winograd(spec, m, Tile(1, 1), 1).tiles
    if unit.by_lane:
        unit = replace(unit, registers=unit.registers - _FAR_ROWS)
    few = tiles * _MOST_VECTORS < max(unit.independent_fmas, _FEW_ACCUMULATORS)  # then only wider tiles keep the unit busy
    best = choose(tiles, spec.out_channels, unit, most_vectors=MOST_VECTORS if few else _MOST_VECTORS)
    found = _of_height(spec, m, unit, best, limit, slots)
    if unit.spare_loads and Winograd(spec, m, best, 1).waits:
        found += _of_height(spec, m, unit, replace(best, channels=unit.width), limit, slots)
    return found


def _of_height(spec: ConvSpec, m: int, unit: VectorUnit, best: Tile, limit: int, slots: int) -> list[Winograd]:
    """`_fitting` for register tiles as high as `best` or less."""
    blocks = math.ceil(spec.out_channels / best.channels)
    # M is at most a quarter of V: less scratch stays cached.
    chunk = max(1, min(_MOST_CHUNK, blocks, Winograd(spec, m, best, 1).depth // (4 * best.channels)))
    for rows in range(best.rows, 0, -1):
        way = Winograd(spec, m, replace(best, rows=rows), 1, chunk, slots, unit.threads, unit.memory)
        if way.scratch_nbytes > limit:
            continue
        if slots > 1:
            return [way] if way.tile_blocks >= slots else []
        tile_blocks = math.ceil(way.all_groups / min(limit // way.scratch_nbytes, way.all_groups))
        return [way, replace(way, groups=math.ceil(way.all_groups / tile_blocks))]
    return []
