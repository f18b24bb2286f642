"""Convolutions and fully connected layers against NumPy, over random shapes, slices and epilogues."""

from dataclasses import replace

import numpy as np
import pytest
import tvm

from flexcomp.schedules.registry import conv_candidates
from flexcomp.schedules.tiles import taps as kernel_taps
from flexcomp.schedules.tiles.narrow_panel import rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .convolutions import EPILOGUES, RESIDUAL, specs
from .kernels import library
from .reference import conv2d, in_two_slices, pack

UNITS = [VectorUnit(8, 16), VectorUnit(4, 32), VectorUnit(4, 32, by_lane=True)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", SCALED_BFLOAT16])
@pytest.mark.parametrize("kind", ["conv", "depthwise", "grouped", "dense"])
def test_random_shapes_and_slices(kind, dtype):
    """Every slice of blocks writes its channels and nothing else, and reads no weights outside itself.

    Weights of 16 and 8 bits give what the numbers they are rounded to give: nothing else is rounded.
    """
    drawn = [replace(spec, weights=dtype) for spec in specs(kind, 27)]
    check_in_slices(drawn if dtype == "float32" else drawn[::3], dtype)


def test_every_row_of_a_pointwise_convolution_is_computed():
    """In groups and by channel, too, of several images: all pixels are one row then."""
    drawn = [
        ConvSpec(batch, 3, 5, channels, channels, groups=groups)
        for batch in (1, 2) for channels, groups in ((6, 1), (6, 3), (16, 8), (6, 6), (33, 33))
    ]  # fmt: skip
    check_in_slices(drawn, "float32")


# Image, kernel, padding left and right, stride and dilation of a row: more taps than pixels, and fewer pixels than a tile.
LONG = [(40, 33, 16, 16, 1, 1), (9, 64, 60, 7, 1, 1), (70, 70, 0, 90, 3, 1), (50, 35, 40, 40, 1, 2), (3, 5, 9, 9, 1, 3)]


@pytest.mark.parametrize("kind", ["conv", "depthwise", "grouped"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_taps_in_loops(kind, dtype, monkeypatch):
    """The form that long kernels have, of kernels of all lengths: what it computes is what unrolled taps do."""
    monkeypatch.setattr(kernel_taps, "MOST_UNROLLED", 0)
    drawn = [
        replace(spec, width=width, kernel=(spec.kernel[0], count), padding=(1, left, 1, right), stride=(1, stride),
                dilation=(1, dilation), weights=dtype)
        for spec, (width, count, left, right, stride, dilation) in zip(specs(kind, len(LONG)), LONG, strict=True)
    ]  # fmt: skip
    check_in_slices(drawn, dtype)


def check_in_slices(drawn: list[ConvSpec], dtype: str) -> None:
    """Fail unless the first kernel of every layer gives what NumPy does, in two slices."""
    cases = [(spec, conv_candidates(spec, UNITS[i % 3])[0]) for i, spec in enumerate(drawn)]
    functions = {f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)}
    compiled = library(functions)
    rng = np.random.default_rng(1)
    for i, (spec, candidate) in enumerate(cases):
        draw = lambda *shape: rng.standard_normal(shape).astype("f4")  # noqa: E731
        x = draw(spec.batch, spec.height, spec.width, spec.in_channels)
        w, bias = draw(spec.out_channels, *spec.kernel, spec.group_in), draw(spec.out_channels)
        slope, tensor = draw(spec.out_channels), draw(spec.batch, spec.out_height, spec.out_width, spec.out_channels)
        kept = w if dtype == "float32" else rounded(w, dtype)
        expected = EPILOGUES[spec.epilogue](conv2d(spec, x, kept, bias), tensor, slope)
        panel = candidate.panel
        assert panel.kept == dtype
        packed = pack(panel, w, bias, [slope] * spec.channel_vectors)
        y = np.full(expected.shape, np.nan, "f4")
        result = tvm.runtime.tensor(y)
        cut = int(rng.integers(0, panel.blocks))
        for first, count, given in in_two_slices(packed, cut, -77 if dtype == "int8" else np.nan):
            operands = [x, *[tensor] * spec.tensors, given]
            compiled[f"kernel_{i}"](*map(tvm.runtime.tensor, operands), first, count, result)
            written = np.unique(panel.channels()[first : first + count])
            y[..., written] = expected[..., written]
            np.testing.assert_array_equal(np.isnan(result.numpy()), np.isnan(y), err_msg=f"{spec} {candidate}")
        np.testing.assert_allclose(
            result.numpy(), expected, atol=3e-5 * max(1, abs(expected).max()), err_msg=f"{spec} {candidate}"
        )


def test_sums_in_place():
    """The result over a tensor of the epilogue: the same numbers, from code that is not told that they are distinct."""
    spec = ConvSpec(1, 13, 11, 20, 64, (3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL)
    candidate = conv_candidates(spec, VectorUnit(8, 16))[0]
    plain = conv_candidates(ConvSpec(1, 13, 11, 20, 64), VectorUnit(8, 16))[0].build()
    function = candidate.build()
    assert candidate.in_place and "tirx.noalias" not in function.attrs and plain.attrs["tirx.noalias"]
    kernel = library({"sum": function})["sum"]
    rng = np.random.default_rng(2)
    x, panel, residual = (
        tvm.runtime.tensor(rng.standard_normal(shape).astype("f4"))
        for shape in ((1, 13, 11, 20), candidate.panel.shape, spec.out_shape)
    )
    apart = tvm.runtime.tensor(np.full(spec.out_shape, np.nan, "f4"))
    for result in (apart, residual):
        kernel(x, residual, panel, 0, candidate.panel.blocks, result)
    np.testing.assert_array_equal(residual.numpy(), apart.numpy())


def test_no_memory_besides_the_operands():
    spec = ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL)
    small = ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1), groups=64)
    library({
        f"kernel_{i}": conv_candidates(one, VectorUnit(16, 32))[0].build() for i, one in enumerate((spec, small))
    })  # fmt: skip


def test_blocks_are_aligned_ranges():
    """Any slice starts at a multiple of 64 bytes, whatever the block."""
    for channels in range(1, 70):
        for taps in (1, 9, 10):
            panel = conv_candidates(ConvSpec(1, 4, 4, taps, channels), VectorUnit(16, 32))[0].panel
            assert panel.blocks == 1 or panel.block_nbytes % 64 == 0
            assert set(panel.channels().reshape(-1)) == set(range(channels))


def test_a_single_output_channel_has_a_kernel():
    """Of a wide layer, as segmentation networks end in."""
    assert conv_candidates(ConvSpec(1, 20, 20, 512, 1), VectorUnit(16, 32))[0].family == "direct"
