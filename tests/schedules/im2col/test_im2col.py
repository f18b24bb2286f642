"""The flattened input in slices: what it takes, and that every number of slices computes the same."""

import numpy as np
import pytest
import tvm

from flexcomp.schedules.im2col.kernel import kernel
from flexcomp.schedules.im2col.ways import FINEST_SLICE, Im2col, eligible, ways
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import Tile, VectorUnit
from tests.schedules.convolutions import RESIDUAL
from tests.schedules.kernels import library, require_no_memory
from tests.schedules.reference import conv2d, pack

UNIT = VectorUnit(16, 32)
SAME = (1, 1, 1, 1)


@pytest.mark.parametrize("channels", [32, 64, 256])
def test_scratch_falls_in_proportion(channels):
    """Up to the line that keeps pixels apart in the cache."""
    spec = ConvSpec(1, 28, 28, channels, 64, (3, 3), padding=SAME)
    whole, *sliced = ways(spec, UNIT)
    assert str(whole) == "1 slice" and whole.scratch_nbytes >= 4 * 28 * 28 * 9 * channels
    assert sliced
    for way in sliced:
        assert way.scratch_nbytes < (whole.slice / way.slices + 32) * 4 * 28 * 28
        assert way.slice >= FINEST_SLICE


@pytest.mark.parametrize(("image", "channels"), [(224, 64), (112, 128), (28, 512)])
def test_stretches_of_large_images_are_the_same_for_every_number_of_slices(image, channels):
    """Scratch falls in proportion there too, and partial sums of a stretch fit the second-level cache."""
    spec = ConvSpec(1, image, image, channels, channels, (3, 3), padding=SAME)
    whole, *sliced = ways(spec, UNIT)
    assert whole.stretches > 1 and str(whole) == f"1 slice of {whole.flattened_pixels} pixels"
    for way in sliced:
        assert way.flattened_pixels == whole.flattened_pixels < image * image
        assert way.scratch_nbytes < (whole.slice / way.slices + 32) * 4 * way.flattened_pixels
        assert way.flattened_pixels < way.stretch + way.tile.rows


def test_the_finest_slices_are_on_offer():
    spec = ConvSpec(1, 28, 28, 64, 64, (3, 3), padding=SAME)
    assert min(way.slice for way in ways(spec, UNIT)) == FINEST_SLICE


def test_who_has_nothing_to_flatten():
    assert not eligible(ConvSpec(1, 7, 7, 64, 64))
    assert not eligible(ConvSpec(1, 7, 7, 64, 64, (3, 3), groups=64))
    assert eligible(ConvSpec(1, 7, 7, 64, 64, stride=(2, 2)))


def test_weights_are_those_of_the_direct_kernel_for_the_same_tile():
    spec = ConvSpec(1, 28, 28, 64, 64, (3, 3), padding=SAME)
    direct = candidates(spec, UNIT)[0]
    assert Im2col(spec, direct.tile, 3, 100).panel == direct.panel


@pytest.mark.parametrize("groups", [1, 2])
def test_every_number_of_slices_computes_the_same(groups):
    """Also where slices end within a tap, where the last block shares channels with the one before, and in stretches."""
    spec = ConvSpec(2, 9, 7, 20 * groups, 20 * groups, (3, 3), padding=SAME, groups=groups, epilogue=RESIDUAL)
    cuts = {1: 63, 2: 63, 5: 20, 11: 1, 180: 30} if groups == 1 else {2: 63, 5: 20}  # slices: pixels of a stretch
    found = {count: Im2col(spec, Tile(5, 16), count, stretch) for count, stretch in cuts.items()}
    assert [way.stretches for way in found.values()] == ([1, 1, 4, 13, 3] if groups == 1 else [1, 4])
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        compiled = library({f"kernel_{count}": kernel(way, 8) for count, way in found.items()})
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(s).astype("f4") for s in ((2, 9, 7, 20 * groups), (20 * groups, 3, 3, 20), 20 * groups))
    tensor = rng.standard_normal((2, 9, 7, 20 * groups)).astype("f4")
    expected = np.maximum(conv2d(spec, x, w, bias) + tensor, 0)
    for count, way in found.items():
        y, scratch = (tvm.runtime.tensor(np.full(s, np.nan, "f4")) for s in (expected.shape, way.scratch[0]))
        packed = pack(way.panel, w, bias)
        compiled[f"kernel_{count}"](*map(tvm.runtime.tensor, (x, tensor, packed)), 0, way.panel.blocks, y, scratch)
        np.testing.assert_allclose(y.numpy(), expected, atol=2e-5, err_msg=str(way))


def test_no_memory_besides_the_operands():
    spec = ConvSpec(1, 14, 14, 64, 40, (3, 3), padding=SAME, epilogue=RESIDUAL)
    require_no_memory({f"kernel_{count}": kernel(Im2col(spec, Tile(5, 16), count, 90), 8) for count in (1, 6)})
