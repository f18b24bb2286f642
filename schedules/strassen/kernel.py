"""The code of a fast matrix product; schedules/strassen/ways.py says what it computes, in which order, on which scratch."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import maybe_serial
from ..tiles.layer_function import Operands, layer_function
from .levels import OneLevel, TwoLevels
from .ways import Strassen, eligible


def kernel(way: Strassen, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, v, copies).

    x is float32[batch, height, width, in_channels], y and the tensors float32[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks of combined weights, the first of which is block `first` of the layer;
    v and copies are scratch of the shapes `way.scratch`.
    """
    assert eligible(way.spec, way.levels), f"no fast product for {way.spec}"
    level = OneLevel if way.levels == 1 else TwoLevels

    def emit(given: Operands) -> None:
        def band(number, slot) -> None:
            first_tile = T.bind(number * way.groups) if way.bands > 1 else 0
            level(way, vector_width, given, slot).band(first_tile)

        _bands(way, band)

    return layer_function(way.spec, way.panel, emit, way.scratch)


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
