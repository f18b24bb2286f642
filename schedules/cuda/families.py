"""The families of kernels for GPUs, each with the best candidate, and with one that is faster by scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tvm import tirx

from ..family import OTHER, PRODUCTS, READING, Candidate, Family
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec, MatmulSpec
from ..tiles.tile import Tile
from . import channelwise, conv, gemv, matmul
from .block_tile import MOST_PARTS, BlockTile, choose, rates, work
from .emit import LANES
from .image import one_by_one
from .unit import Gpu

# Cost of a product that loads its own operands, compared with one of a tile.
_ALONE = 4.0


def _matmul(spec: MatmulSpec, gpu: Gpu) -> Iterator[Candidate]:
    singly = spec.k % LANES > 0
    given = spec.m, spec.n, spec.batch, spec.k, gpu.architecture
    tile = choose(*given, one_by_one=singly)
    flops = 2 * spec.k * work(tile, *given, one_by_one=singly)
    yield Candidate("matmul", tile, None, 0, flops, lambda: matmul.kernel(spec, tile, gpu.architecture))


def _gemv(spec: ConvSpec, gpu: Gpu) -> Iterator[Candidate]:
    if gemv.eligible(spec):
        tile = Tile(1, gemv.COLUMNS)
        yield _with_panel("gemv", spec, gemv.COLUMNS, tile, _ALONE * spec.flops, lambda: gemv.kernel(spec))


def _channelwise(name: str, depthwise: bool, group: str = "") -> Family:
    def candidates(spec: ConvSpec, gpu: Gpu) -> Iterator[Candidate]:
        if channelwise.eligible(spec) and spec.depthwise == depthwise and not gemv.eligible(spec):
            tile = Tile(1, channelwise.COLUMNS)
            yield _with_panel(name, spec, channelwise.COLUMNS, tile, _ALONE * spec.flops, lambda: channelwise.kernel(spec))

    return Family(name, ConvSpec, candidates, machine=Gpu, group=group)


def _direct(spec: ConvSpec, gpu: Gpu) -> Iterator[Candidate]:
    if gemv.eligible(spec) or channelwise.eligible(spec):
        return
    architecture, pixels = gpu.architecture, spec.batch * spec.out_height * spec.out_width
    singly = one_by_one(spec)
    given = pixels, spec.group_out, spec.groups, spec.taps, architecture
    tile = choose(*given, one_by_one=singly)
    if spec.groups > 1 and tile.columns > spec.group_out:  # blocks of a panel that hold channels of several groups are others'
        offered = rates(architecture)
        tile = max((t for t in offered if t.columns <= spec.group_out), key=offered.get)
    # Both read the same panel, since nothing prepares weights for a GPU.
    shared = choose(*given, one_by_one=singly, columns=tile.columns, most_parts=MOST_PARTS)
    for one in dict.fromkeys((tile, shared)):
        flops, scratch = 2 * spec.taps * work(one, *given, one_by_one=singly), conv.scratch_of(spec, one)
        built = partial(conv.kernel, spec, one, architecture)
        candidate = _with_panel("direct", spec, one.columns, one, flops, built)
        yield replace(candidate, scratch=scratch, scratch_nbytes=4 * sum(map(math.prod, scratch)))


def _with_panel(
    family: str, spec: ConvSpec, block: int, tile: BlockTile | Tile, work: float, build: Callable[[], tirx.PrimFunc]
) -> Candidate:
    panel = panel_of(spec, block)
    # Blocks that overlap compute some results twice.
    disjoint = panel.group_channels % panel.block == 0 or panel.blocks_per_group == 1
    return Candidate(family, tile, panel, 0, work, build, in_place=disjoint)


FAMILIES = (
    Family("matmul", MatmulSpec, _matmul, machine=Gpu, group=PRODUCTS),
    Family("gemv", ConvSpec, _gemv, machine=Gpu, bound_by=READING),
    _channelwise("depthwise", True),
    _channelwise("grouped", False, OTHER),
    Family("direct", ConvSpec, _direct, machine=Gpu, group=PRODUCTS),
)
