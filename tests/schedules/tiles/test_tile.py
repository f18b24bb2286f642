"""Which register tiles are chosen."""

import pytest

from flexcomp.schedules.tiles.tile import VectorUnit, choose, pieces

NARROW = VectorUnit(4, 32, by_lane=True, independent_fmas=7)
WIDE = VectorUnit(4, 32, by_lane=True, independent_fmas=16)


@pytest.mark.parametrize("unit", [NARROW, WIDE])
@pytest.mark.parametrize("width", [1, 3, 7, 14, 49, 197, 784])
@pytest.mark.parametrize("channels", [8, 24, 40, 64, 1000])
def test_tiles_by_lane_fit_the_registers(unit, width, channels):
    """Accumulators, one left vector per row and one right vector; whole pairs of vectors, for slices of eight channels."""
    tile = choose(width, channels, unit)
    vectors = len(pieces(tile.channels, 4))
    assert tile.rows * vectors + tile.rows + 1 <= 32
    assert tile.channels % 8 == 0
    assert tile.depth == 4


def test_a_core_with_long_latency_gets_enough_accumulators():
    for width in (4, 8, 14, 28, 196):
        tile = choose(width, 256, WIDE)
        assert tile.rows * tile.channels // 4 >= 16


def test_rows_that_would_share_a_cache_set_are_few():
    assert choose(196, 256, NARROW, row_nbytes=4096).rows <= 4
    assert choose(196, 256, NARROW, row_nbytes=4096 - 64).rows > 4


def test_wide_vectors_broadcast():
    assert choose(196, 256, VectorUnit(16, 32)).depth == 1


@pytest.mark.parametrize("width", [14, 16, 64])
def test_weights_of_fewer_bytes_make_wide_blocks_where_vectors_are_wide(width):
    """Every vector of them is read for fewer rows, which costs less than to read more rows for every vector."""
    tiles = {nbytes: choose(width, 768, VectorUnit(16, 32), weight_nbytes=nbytes) for nbytes in (4, 2, 1)}
    assert tiles[2].channels == tiles[1].channels == 64 > tiles[4].channels
    assert tiles[2].rows < tiles[4].rows
    for unit in (VectorUnit(8, 16), NARROW):
        assert choose(width, 768, unit, weight_nbytes=1) == choose(width, 768, unit)
