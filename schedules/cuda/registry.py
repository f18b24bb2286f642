"""Which kernels for a GPU can compute a layer, as candidates of the kind that CPUs have: the best is the first."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import tirx

from ..registry import Candidate
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec, MatmulSpec
from ..tiles.tile import Tile
from . import channelwise, conv, gemv, matmul
from .architecture import Architecture
from .block_tile import BlockTile, choose, rates, work
from .emit import LANES
from .image import one_by_one

# Cost of a product that loads its own operands, compared with one of a tile.
_ALONE = 4.0


@functools.lru_cache(maxsize=1024)
def candidates(spec: ConvSpec | MatmulSpec, architecture: Architecture) -> tuple[Candidate, ...]:
    """Every kernel that can compute a layer."""
    if isinstance(spec, MatmulSpec):
        singly = spec.k % LANES > 0
        tile = choose(spec.m, spec.n, spec.batch, architecture, one_by_one=singly)
        flops = 2 * spec.k * work(tile, spec.m, spec.n, spec.batch, architecture, one_by_one=singly)
        return (Candidate("matmul", tile, None, 0, flops, lambda: matmul.kernel(spec, tile, architecture)),)
    if gemv.eligible(spec):
        return (_with_panel("gemv", spec, gemv.COLUMNS, Tile(1, gemv.COLUMNS), _ALONE * spec.flops, lambda: gemv.kernel(spec)),)
    if channelwise.eligible(spec):
        family = "depthwise" if spec.depthwise else "grouped"
        build = lambda: channelwise.kernel(spec)  # noqa: E731
        return (_with_panel(family, spec, channelwise.COLUMNS, Tile(1, channelwise.COLUMNS), _ALONE * spec.flops, build),)
    pixels = spec.batch * spec.out_height * spec.out_width
    singly = one_by_one(spec)
    tile = choose(pixels, spec.group_out, spec.groups, architecture, one_by_one=singly)
    if spec.groups > 1 and tile.columns > spec.group_out:  # blocks of a panel that hold channels of several groups are others'
        offered = rates(architecture)
        tile = max((t for t in offered if t.columns <= spec.group_out), key=offered.get)
    flops = 2 * spec.taps * work(tile, pixels, spec.group_out, spec.groups, architecture, one_by_one=singly)
    return (_with_panel("direct", spec, tile.columns, tile, flops, lambda: conv.kernel(spec, tile, architecture)),)


def _with_panel(
    family: str, spec: ConvSpec, block: int, tile: BlockTile | Tile, work: float, build: Callable[[], tirx.PrimFunc]
) -> Candidate:
    panel = panel_of(spec, block)
    # Blocks that overlap compute some results twice.
    disjoint = panel.group_channels % panel.block == 0 or panel.blocks_per_group == 1
    return Candidate(family, tile, panel, 0, work, build, in_place=disjoint)
