"""All kernels that can compute a layer, for a tuner to measure: the candidates, and many more tiles.

The families' candidates are the best by a model of a processor. The best on a given processor depends on caches,
latencies and prefetchers that the model does not describe. So the space holds every register tile that fits,
Winograd's and Strassen's algorithms with tiles, blocks and slots of many sizes, and im2col with other tiles: tens to
a few hundred candidates per layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from . import conv, grouped
from .im2col import ways as im2col
from .integer import ways as integer
from .recurrent.spec import RecurrentSpec
from .registry import (
    WINOGRAD_KINDS,
    Candidate,
    candidates,
    direct_candidate,
    grouped_tile,
    im2col_candidate,
    integer_candidate,
    integer_candidates,
    matmul_candidate,
    recurrent_candidates,
    strassen_candidate,
    tile_width,
    widened_candidates,
    winograd_candidate,
)
from .strassen import ways as strassen
from .tiles.spec import ConvSpec, MatmulSpec
from .tiles.tile import Tile, VectorUnit, fitting, pieces
from .winograd import ways as winograd

# With fewer accumulators the latency of an addition shows; smaller tiles are tried only where no larger one fits.
_FEWEST_ACCUMULATORS = 6
_MOST_VECTORS = 4
_SHORT_ROW = 120  # pixels
_MOST_GEMV_VECTORS = 8
_MOST_DEPTHWISE_ROWS = 14
_MOST_GROUPED_ROWS = 9
_WINOGRAD_VECTORS = (1, 2, 3)
_WINOGRAD_HEIGHTS = 3  # of the register tile, the highest first
# Register tiles of Winograd tiles in a block, if threads share blocks, and if each has its own.
_SHARED_GROUPS = (1, 2, 4, 8)
_OWN_GROUPS = (1, 2)
_CHUNKS = (1, 4)
_MOST_SCRATCH_NBYTES = 8 << 20
_STRASSEN_VECTORS = (1, 2)
_STRASSEN_LEVELS = (1, 2)
_LEAST_STRASSEN_DEPTH = 32  # input channels of a part: with fewer there is more to move than to multiply
_IM2COL_VECTORS = (2, 4)


def space(spec: ConvSpec | MatmulSpec | RecurrentSpec, unit: VectorUnit) -> list[Candidate]:
    """Every candidate worth measuring, the untuned candidates first; their names are unique."""
    if isinstance(spec, RecurrentSpec):
        return recurrent_candidates(spec, unit)
    found = {str(candidate): candidate for candidate in candidates(spec, unit)}
    for candidate in _more(spec, unit):
        found.setdefault(str(candidate), candidate)
    return list(found.values())


def named(spec: ConvSpec | MatmulSpec | RecurrentSpec, unit: VectorUnit, name: str) -> Candidate | None:
    """The candidate of that name; None if the space has none."""
    if isinstance(spec, RecurrentSpec):
        return next((candidate for candidate in recurrent_candidates(spec, unit) if str(candidate) == name), None)
    offers = (candidate for some in (candidates, _more) for candidate in some(spec, unit))
    return next((candidate for candidate in offers if str(candidate) == name), None)


def _more(spec: ConvSpec | MatmulSpec, unit: VectorUnit) -> Iterator[Candidate]:
    if isinstance(spec, MatmulSpec):
        for tile in _tiles(spec.m, spec.n, unit, _MOST_VECTORS):
            yield matmul_candidate(spec, tile, unit)
        return
    if integer_candidates(spec, unit):
        yield from _more_integer(spec, unit)
        return
    if grouped.eligible(spec, unit):
        default = grouped_tile(spec, unit)
        tiles = [replace(default, rows=rows) for rows in range(1, min(_MOST_GROUPED_ROWS, spec.out_width) + 1)]
    elif spec.depthwise:
        tiles = _tiles(min(spec.out_width, _MOST_DEPTHWISE_ROWS), spec.out_channels, unit, _MOST_VECTORS)
        tiles = [replace(tile, depth=1) for tile in tiles]
    else:
        vectors = _MOST_GEMV_VECTORS if tile_width(spec) == 1 else _MOST_VECTORS
        tiles = _tiles(tile_width(spec), spec.group_out, conv.unit_for(spec, unit), vectors)
    for tile in tiles:
        yield direct_candidate(spec, tile, unit)
        yield from widened_candidates(spec, tile, unit)
    offered = set(winograd.ways(spec, unit))
    for way in _winograd_ways(spec, unit):
        if way not in offered:
            candidate = winograd_candidate(way, unit)
            yield replace(candidate, variant=f"{candidate.variant} by {way.chunk}")
    for way in _strassen_ways(spec, unit):
        yield strassen_candidate(way, unit)
    for way in _im2col_ways(spec, unit):
        yield im2col_candidate(way, unit)


def _more_integer(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    (offered, *_) = integer.ways(spec, unit)
    for tile in _tiles(offered.seen.out_width, spec.out_channels, unit, _MOST_VECTORS):
        for way in dict.fromkeys(integer.of_tile(spec, unit, tile, least=least) for least in (False, True)):
            yield integer_candidate(way, unit)


def _tiles(width: int, channels: int, unit: VectorUnit, most_vectors: int) -> list[Tile]:
    """Register tiles for rows of `width` pixels; of tiles that cut a row into equally many parts, the smallest."""
    found: dict[tuple[int, int], Tile] = {}
    for tile in fitting(width, channels, unit, most_vectors):
        # Long rows are cut evenly by any height: all heights stay.
        parts = math.ceil(width / tile.rows) if width <= _SHORT_ROW else tile.rows
        found.setdefault((tile.channels, parts), tile)
    accumulators = {tile: tile.rows * len(pieces(tile.channels, unit.width)) for tile in found.values()}
    enough = min(_FEWEST_ACCUMULATORS, max(accumulators.values()))
    return [tile for tile, count in accumulators.items() if count >= enough]


def _winograd_ways(spec: ConvSpec, unit: VectorUnit) -> Iterator[winograd.Winograd]:
    if not winograd.ways(spec, unit):
        return
    offered = {*winograd.kinds(spec)} if winograd.is_line(spec) else {*WINOGRAD_KINDS} & {*winograd.kinds(spec)}
    for m in sorted(offered):
        tiles = winograd.Winograd(spec, m, Tile(1, 1), 1).tiles
        for vectors in _WINOGRAD_VECTORS:
            channels = vectors * unit.width
            if channels > spec.out_channels:
                continue
            tallest = [t for t in fitting(tiles, channels, unit, vectors) if t.channels == channels]
            for tile in _heights(tiles, tallest):
                for slots in sorted({1, unit.threads}):
                    for groups in _SHARED_GROUPS if slots == 1 else _OWN_GROUPS:
                        for chunk in _CHUNKS:
                            way = winograd.Winograd(spec, m, tile, groups, chunk, slots, unit.threads)
                            blocks = math.ceil(spec.out_channels / channels)
                            if _sensible(way, blocks):
                                yield way


def _heights(tiles: int, offers: list[Tile]) -> list[Tile]:
    """The highest register tiles that cut all Winograd tiles into different numbers of parts."""
    by_parts = {math.ceil(tiles / tile.rows): tile for tile in sorted(offers, key=lambda tile: -tile.rows)}
    return sorted(by_parts.values(), key=lambda tile: -tile.rows)[:_WINOGRAD_HEIGHTS]


def _sensible(way: winograd.Winograd, blocks: int) -> bool:
    """Sizes that the layer can fill, in scratch that some device has."""
    fills = way.groups <= way.all_groups and way.chunk <= blocks and way.tile_blocks >= way.slots
    return fills and way.scratch_nbytes <= _MOST_SCRATCH_NBYTES


def _strassen_ways(spec: ConvSpec, unit: VectorUnit) -> Iterator[strassen.Strassen]:
    for levels in _STRASSEN_LEVELS:
        parts = 2**levels
        if not strassen.eligible(spec, levels) or spec.in_channels < parts * _LEAST_STRASSEN_DEPTH:
            continue
        units = strassen.Strassen(spec, Tile(1, unit.width), 1, levels=levels).units
        for vectors in _STRASSEN_VECTORS if units > 1 else ():
            channels = vectors * unit.width
            if parts * channels > spec.out_channels:
                continue
            tallest = [t for t in fitting(units, channels, unit, vectors) if t.channels == channels]
            for tile in _heights(units, tallest):
                for slots in sorted({1, unit.threads}):
                    for groups in _SHARED_GROUPS if levels == 1 else (1,):
                        way = strassen.Strassen(spec, tile, groups, slots, levels)
                        way = replace(way, tile=replace(tile, rows=way.rows))
                        if groups <= way.tiles and way.bands >= slots and way.scratch_nbytes <= _MOST_SCRATCH_NBYTES:
                            yield way


def _im2col_ways(spec: ConvSpec, unit: VectorUnit) -> Iterator[im2col.Im2col]:
    for way in im2col.ways(spec, unit):
        for vectors in _IM2COL_VECTORS:
            channels = vectors * unit.width
            if channels <= spec.group_out:
                tallest = [t for t in fitting(way.pixels, channels, unit, vectors) if t.channels == channels]
                for tile in _heights(way.pixels, tallest):
                    yield replace(way, tile=tile)
