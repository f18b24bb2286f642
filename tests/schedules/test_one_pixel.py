"""Tiles of layers of one pixel: few bytes are padding, and where they are few anyway nothing changes."""

from dataclasses import replace

import pytest

from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit, choose

UNITS = {"avx512": VectorUnit(16, 32), "avx2": VectorUnit(8, 16), "neon": VectorUnit(4, 32, by_lane=True)}


def tile_of(spec: ConvSpec, unit: VectorUnit):
    candidate = candidates(spec, unit)[0]
    assert candidate.family == "gemv"
    return candidate.tile, candidate.panel.blocks * candidate.panel.block_nbytes


@pytest.mark.parametrize("inputs, outputs", [(88, 22), (40, 10), (104, 26), (200, 50), (50, 200), (48, 12), (300, 91)])
@pytest.mark.parametrize("unit", ["avx512", "avx2"])
def test_few_bytes_are_padding(unit, inputs, outputs):
    _, nbytes = tile_of(ConvSpec(1, 1, 1, inputs, outputs), UNITS[unit])
    exact = 4 * (inputs + 1) * outputs
    assert nbytes <= 1.2 * exact  # 1.125 of a panel with at most 7 rows of zeros


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("outputs", [8, 64, 512, 1000, 4096, 32000])
def test_tiles_that_pad_little_are_the_fastest(unit, outputs):
    tile, _ = tile_of(ConvSpec(1, 1, 1, 256, outputs), UNITS[unit])
    assert tile == choose(1, outputs, UNITS[unit], row_nbytes=1024)


def test_threads_keep_their_tasks():
    """50 channels are two blocks of 32 or one of 50: with two threads one would be idle."""
    spec = ConvSpec(1, 1, 1, 25_088, 50)
    assert tile_of(spec, UNITS["avx512"])[0].channels == 50
    assert tile_of(spec, replace(UNITS["avx512"], threads=2))[0].channels < 50
