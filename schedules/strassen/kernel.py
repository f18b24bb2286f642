"""The code of a fast matrix product; schedules/strassen/ways.py says what it computes, in which order, on which scratch."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import maybe_serial
from ..tiles.layer_function import Operands, layer_function
from .levels import OneLevel, TwoLevels
from .ways import Strassen, eligible

# Pixels of a tile, over those that may be missing for it to be computed all the same: the eighth product saved pays for them.
_NEARLY = 8


def kernel(way: Strassen, vector_width: int, told: bool = False) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, [valid,] v, copies).

    x is float32[batch, height, width, in_channels], y and the tensors float32[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks of combined weights, the first of which is block `first` of the layer;
    v and copies are scratch of the shapes `way.scratch`. On one level a kernel may be `told` how many pixels are valid.
    """
    assert not told or way.tells_rows
    assert eligible(way.spec, way.levels), f"no fast product for {way.spec}"
    level = OneLevel if way.levels == 1 else TwoLevels

    def emit(given: Operands) -> None:
        if told:
            _valid_bands(way, vector_width, given)
            return

        def band(number, slot) -> None:
            first_tile = T.bind(number * way.groups) if way.bands > 1 else 0
            level(way, vector_width, given, slot).band(first_tile)

        _bands(way, band)

    return layer_function(way.spec, way.panel, emit, way.scratch, told=told)


def _valid_bands(way: Strassen, vector_width: int, given: Operands) -> None:
    """The bands of tiles of valid pixels; with the last one those that fill no tile."""

    def bands_of(slot) -> None:
        # In memory, so that no analyzer of TVM writes these numbers out wherever they count: that takes minutes.
        numbers = T.alloc_buffer((3,), "int32", scope="global")
        for place, value in enumerate(_tiles_and_others(way, given.valid)):
            T.buffer_store(numbers, value, [place])
        tiles, start, left = (T.bind(numbers[place]) for place in range(3))
        bands = T.bind(tirx.max((tiles + (way.groups - 1)) // way.groups, 1))
        each = T.bind((bands + (way.slots - 1)) // way.slots)
        with T.serial(tirx.max(tirx.min(each, bands - slot * each), 0)) as number:
            band = T.bind(slot * each + number)
            first_tile = T.bind(band * way.groups)
            here = T.bind(tirx.min(way.groups, tiles - first_tile))
            others = T.bind(tirx.Select(band == bands - 1, left, 0))
            OneLevel(way, vector_width, given, slot).valid_band(first_tile, here, start, others)

    if way.slots == 1:
        bands_of(0)
    else:
        with T.parallel(way.slots) as slot:
            bands_of(slot)


def _tiles_and_others(way: Strassen, valid) -> tuple:
    """How many tiles valid pixels fill, or nearly; the first pixel after these, and the number of valid ones from there on."""
    parts, (small, larger) = way.parts, divmod(way.units, way.tiles)
    long = larger * (small + 1) * parts  # the pixels of tiles that have a unit more
    reached = T.bind(valid + parts * small // _NEARLY)
    tiles = larger + (reached - long) // (small * parts)
    if larger:
        tiles = tirx.Select(reached < long, reached // ((small + 1) * parts), tiles)
    if way.units * parts > way.pixels:  # the last tile is complete with all pixels only
        tiles = tirx.min(tiles, tirx.Select(valid < way.pixels, way.tiles - 1, way.tiles))
    tiles = T.bind(tirx.max(tirx.min(tiles, way.tiles), 0))
    start = T.bind((tiles * small + tirx.min(tiles, larger)) * parts)
    return tiles, start, tirx.max(valid - start, 0)


def _bands(way: Strassen, emit) -> None:
    """`emit(band, slot)` for all bands, which threads share."""
    if way.slots == 1:
        with maybe_serial(0, way.bands) as band:
            emit(band, 0)
        return
    each = math.ceil(way.bands / way.slots)
    with T.parallel(way.slots) as slot:
        with T.serial(tirx.max(tirx.min(each, way.bands - slot * each), 0)) as band:
            emit(slot * each + band, slot)
