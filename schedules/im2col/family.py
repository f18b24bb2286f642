"""The family of products with a flattened input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..family import Candidate, Family, of_way
from ..tiles.spec import ConvSpec
from ..tiles.tile import VectorUnit
from ..tiles.trials import tallest
from . import kernel
from .ways import Im2col, ways

_TRIED_VECTORS = (2, 4)


def candidate(way: Im2col, unit: VectorUnit) -> Candidate:
    """The candidate that computes a layer in that way."""
    return of_way("im2col_gemm", kernel, way, unit)


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    for way in ways(spec, unit):
        for vectors in _TRIED_VECTORS:
            for tile in tallest(way.pixels, vectors, unit) if vectors * unit.width <= spec.group_out else ():
                yield candidate(replace(way, tile=tile), unit)


FAMILY = Family(
    "im2col_gemm",
    ConvSpec,
    lambda spec, unit: (candidate(way, unit) for way in ways(spec, unit)),
    _trials,
    preparing_flops=30.0,  # 130 to 500 us for a megabyte of input
    preferred=lambda one: one.size,  # as in FlexNN, whose input slicing takes the finest slices
)
