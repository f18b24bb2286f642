"""The families of direct convolutions, and of those of one pixel: the register tiles on offer.

Narrow weights are widened for every tile, or once for many (`schedules/widened.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import conv, grouped, one_pixel, widened
from .direct_work import direct_work
from .family import DEEP, PRODUCTS, READING, Candidate, Family
from .row_bands import Bands, row_kernel
from .tiles.asking import share
from .tiles.panel import WEIGHT_DTYPES, Panel, element_type, panel_of
from .tiles.spec import ARITHMETIC, ConvSpec
from .tiles.tile import MOST_VECTORS as LARGEST_BLOCK
from .tiles.tile import Tile, VectorUnit, choose
from .tiles.trials import MOST_VECTORS, tiles

# Instructions that widen a vector of 128 bits, as multiply-adds that could run instead (benchmarks/lab/arm/mca.py); wider vectors
# are widened in parallel with the multiply-adds.
_WIDENING = {"float16": 2.0, "bfloat16": 1.5, "int8": 3.5}
_MOST_VECTORS_OF_A_PIXEL = 8
# Bytes of a block that stay in the second-level cache: of a larger one every tile reads all anew.
_BLOCK_NBYTES = 768 * 1024
_READ = ConvSpec(1, 1, 1, 4096, 4096)  # 64 MiB of weights: more than caches hold


def tile_width(spec: ConvSpec) -> int:
    """Pixels of a row that tiles are cut from."""
    return spec.batch * spec.height * spec.width if spec.pointwise else spec.out_width


def candidate(spec: ConvSpec, tile: Tile, unit: VectorUnit, one_pass: bool = False) -> Candidate:
    """The kernel with a given register tile, whose weights stay in the cache rather than the input if read in `one_pass`."""
    panel = panel_of(spec, tile.channels, conv.together(spec, unit.width))
    reads = 1 if one_pass else _parts(spec, tile, unit, panel)
    asks = _asks(spec, tile, unit, panel, reads, one_pass)
    work = direct_work(spec, tile, unit, reads, panel.blocks_per_group if one_pass else 1, asks)
    if tile.depth > 1 and spec.widens and element_type(spec.weights) in _WIDENING:
        work *= 1 + _WIDENING[element_type(spec.weights)] / tile.rows
    # Blocks that overlap compute some results twice.
    disjoint = panel.group_channels % panel.block == 0
    rows, name = row_kernel(_BANDS, spec, unit.width, tile), ("direct", "gemv")[_is_pixel(spec)]
    code = lambda: conv.kernel(spec, tile, unit.width, unit.threads, one_pass, asks)  # noqa: E731
    variant = "in one pass" if one_pass else ""
    return Candidate(name, tile, panel, 0, work, code, variant, rows=rows, reads=reads, in_place=disjoint)


def _asks(spec: ConvSpec, tile: Tile, unit: VectorUnit, panel: Panel, parts: int, one_pass: bool) -> bool:
    """Whether tiles ask for weights of the next block: a core's own cache holds two, and a part of the input that meets them."""
    if not unit.memory.is_slow or tile.depth > 1 or panel.narrow or panel.blocks == 1:
        return False
    if spec.dtype != "float32" or spec.group_in <= conv.UNROLL_CHANNELS:
        return False
    part_nbytes = 0 if one_pass else spec.batch * spec.read_nbytes // parts
    seen = conv.as_row(spec)
    tiles = conv.passing(seen, tile, conv.parts_of(seen, tile, panel, unit.threads, one_pass), one_pass)
    return share(panel.block, tiles) > 0 and 2 * panel.block_nbytes + part_nbytes <= unit.memory.second_nbytes


def _parts(spec: ConvSpec, tile: Tile, unit: VectorUnit, panel: Panel) -> int:
    """Parts of all images that pass over the weights one after the other."""
    seen = conv.as_row(spec)
    return seen.batch * conv.parts_of(seen, tile, panel, unit.threads)


def _may_read_once(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> bool:
    """Whether several parts would each read weights that no core has in a cache of its own."""
    panel = panel_of(spec, tile.channels, conv.together(spec, unit.width))
    if panel.blocks * panel.block_nbytes <= unit.memory.second_nbytes or _parts(spec, tile, unit, panel) == 1:
        return False
    return unit.threads == 1 or not conv.keeps_rows(conv.as_row(spec), panel)


def _is_pixel(spec: ConvSpec) -> bool:
    return spec.batch * spec.height * spec.width == 1


def _eligible(spec: ConvSpec, unit: VectorUnit) -> bool:
    """Whether vectors of one group's channels meet each pixel; phases that lack taps are told apart in float32."""
    return not spec.depthwise and not grouped.eligible(spec, unit) and (spec.dtype == "float32" or spec.first_taps is None)


def _candidates(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    row_nbytes = spec.itemsize * spec.in_channels * spec.stride[1]
    tile = choose(
        tile_width(spec), spec.group_out, conv.unit_for(spec, unit), row_nbytes=row_nbytes,
        most_vectors=_most_vectors(spec, unit),
        weight_nbytes=4 if spec.dtype == "bfloat16" else WEIGHT_DTYPES[element_type(spec.weights)],  # of pairs
    )  # fmt: skip
    if spec.pointwise and tile_width(spec) == 1:
        tile = one_pixel.with_less_padding(spec, tile, unit)
    return _with_tile(spec, tile, unit)


def _most_vectors(spec: ConvSpec, unit: VectorUnit) -> int:
    """Vectors of a block that several tiles read."""
    if spec.pointwise and tile_width(spec) == 1:
        return LARGEST_BLOCK
    vector_nbytes = spec.taps * unit.width * WEIGHT_DTYPES[element_type(spec.weights)]
    return min(LARGEST_BLOCK, max(1, _BLOCK_NBYTES // vector_nbytes))


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    most = _MOST_VECTORS_OF_A_PIXEL if tile_width(spec) == 1 else MOST_VECTORS
    for tile in tiles(tile_width(spec), spec.group_out, conv.unit_for(spec, unit), most):
        yield from _with_tile(spec, tile, unit)


def _with_tile(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Iterator[Candidate]:
    """The kernel, and the ones with weights read or widened once for many tiles, the latter in scratch, where that may gain."""
    direct = candidate(spec, tile, unit)
    if _may_read_once(spec, tile, unit):
        yield candidate(spec, tile, unit, one_pass=True)
    yield direct
    if spec.first_taps is None and widened.eligible(spec, tile):
        way = widened.Widened(spec, tile, unit.threads)
        widening = _WIDENING[element_type(spec.weights)] / widened.TILES_OF_A_GROUP / tile.rows
        yield replace(
            direct,
            scratch_nbytes=way.scratch_nbytes,
            work=direct_work(spec, tile, unit) * (1 + widening),
            build=lambda: widened.kernel(way, unit.width),
            variant="widened",
            scratch=way.scratch,
            rows=None,
            reads=None,
        )


def _family(name: str, probed: ConvSpec, **more: object) -> Family:
    """One of the two, with its part of the layers."""

    def of(offer):
        known = lambda spec, unit: _is_pixel(spec) == (name == "gemv") and _eligible(spec, unit)  # noqa: E731
        return lambda spec, unit: offer(spec, unit) if known(spec, unit) else ()

    probe = lambda unit: [(probed, next(_candidates(probed, unit)))]  # noqa: E731
    return Family(name, ConvSpec, of(_candidates), of(_trials), dtypes=tuple(ARITHMETIC), probe=probe, **more)


_BANDS = Bands(ConvSpec, conv.kernel, "direct")
FAMILY = _family("direct", DEEP, bands=_BANDS, group=PRODUCTS)
ONE_PIXEL = _family("gemv", _READ, bound_by=READING)
