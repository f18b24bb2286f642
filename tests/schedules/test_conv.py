"""Convolutions and fully connected layers against NumPy, over random shapes, slices and epilogues."""

from dataclasses import replace

import numpy as np
import pytest
import tvm

from flexcomp.schedules import conv
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles import taps as kernel_taps
from flexcomp.schedules.tiles.first_taps import FirstTaps
from flexcomp.schedules.tiles.memory import Memory
from flexcomp.schedules.tiles.narrow_panel import rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .convolutions import EPILOGUES, RESIDUAL, specs
from .kernels import TARGET, UNOPTIMISED, call, library, require_no_memory
from .reference import conv2d, in_two_slices, pack

UNITS = [VectorUnit(8, 16), VectorUnit(4, 32), VectorUnit(4, 32, by_lane=True)]
DTYPES = ["float32", "float16", "bfloat16", "int8", SCALED_BFLOAT16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["conv", "depthwise", "grouped", "dense"])
def test_random_shapes_and_slices(kind, dtype):
    """Every slice of blocks writes its channels and nothing else, and reads no weights outside itself.

    Weights of 16 and 8 bits give what the numbers they are rounded to give: nothing else is rounded.
    """
    drawn = [replace(spec, weights=dtype) for spec in specs(kind, 18)]
    check_in_slices(drawn if dtype == "float32" else drawn[DTYPES.index(dtype) % 3 :: 3], dtype)


def test_every_row_of_a_pointwise_convolution_is_computed():
    """In groups and by channel, too, of several images: all pixels are one row then."""
    drawn = [
        ConvSpec(batch, 3, 5, channels, channels, groups=groups)
        for batch in (1, 2) for channels, groups in ((6, 1), (6, 3), (16, 8), (6, 6), (33, 33))
    ]  # fmt: skip
    check_in_slices(drawn, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_one_pixel_and_odd_numbers_of_channels(dtype):
    """Blocks are of all the channels there, or of a width that pads little."""
    drawn = [ConvSpec(1, 1, 1, 37, channels, weights=dtype) for channels in (2, 9, 22, 26, 50, 91, 104, 200)]
    check_in_slices(drawn, dtype, [VectorUnit(16, 32), VectorUnit(8, 16), VectorUnit(4, 32)])


def test_one_pass_over_the_weights(monkeypatch):
    """A block is computed for all parts of all images before the next one, in groups and shared by threads, too."""
    monkeypatch.setattr(conv, "_BAND_NBYTES", 1024)
    units = [VectorUnit(8, 16, threads=threads, memory=Memory(0.0, 0.0, 0, 0)) for threads in (1, 2)]
    drawn = [
        ConvSpec(2, 9, 7, 20, 40, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(1, 1, 22, 24, 40), ConvSpec(2, 5, 6, 16, 48, groups=2),
        ConvSpec(2, 9, 8, 20, 40, (3, 3), padding=(1, 1, 1, 1)),
    ]  # fmt: skip
    assert all("in one pass" in str(candidates(spec, units[i % 2])[0]) for i, spec in enumerate(drawn))
    check_in_slices(drawn, "float32", units)


KINDS = ["conv", "depthwise", "grouped"]
# Image, kernel, padding left and right, stride and dilation of a row: more taps than pixels, and fewer pixels than a tile.
LONG = [(40, 33, 16, 16, 1, 1), (9, 64, 60, 7, 1, 1), (70, 70, 0, 90, 3, 1), (50, 35, 40, 40, 1, 2), (3, 5, 9, 9, 1, 3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_taps_in_loops(kind, dtype, monkeypatch):
    """The form that long kernels have, of kernels of all lengths: what it computes is what unrolled taps do.

    Each row is of one type in a kind of layer, and of both among all kinds.
    """
    monkeypatch.setattr(kernel_taps, "MOST_UNROLLED", 0)
    drawn = [
        replace(spec, width=width, kernel=(spec.kernel[0], count), padding=(1, left, 1, right), stride=(1, stride),
                dilation=(1, dilation), weights=dtype)
        for spec, (width, count, left, right, stride, dilation) in zip(specs(kind, len(LONG)), LONG, strict=True)
    ]  # fmt: skip
    check_in_slices(drawn[(KINDS.index(kind) + (dtype == "int8")) % 2 :: 2], dtype)


def check_in_slices(drawn: list[ConvSpec], dtype: str, units: list[VectorUnit] = UNITS) -> None:
    """Fail unless the first kernel of every layer gives what NumPy does, in two slices."""
    cases = [(spec, candidates(spec, units[i % len(units)])[0]) for i, spec in enumerate(drawn)]
    functions = {f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)}
    compiled = library(functions, TARGET if dtype == "float32" else UNOPTIMISED)
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
    candidate = candidates(spec, VectorUnit(8, 16))[0]
    plain = candidates(ConvSpec(1, 13, 11, 20, 64), VectorUnit(8, 16))[0].build()
    function = candidate.build()
    assert candidate.in_place and "tirx.noalias" not in function.attrs and plain.attrs["tirx.noalias"]
    kernel = library({"sum": function}, TARGET)["sum"]
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
    require_no_memory({
        f"kernel_{i}": candidates(one, VectorUnit(16, 32))[0].build() for i, one in enumerate((spec, small))
    })  # fmt: skip


def test_blocks_are_aligned_ranges():
    """Any slice starts at a multiple of 64 bytes, whatever the block."""
    for channels in range(1, 70):
        for taps in (1, 9, 10):
            panel = candidates(ConvSpec(1, 4, 4, taps, channels), VectorUnit(16, 32))[0].panel
            assert panel.blocks == 1 or panel.block_nbytes % 64 == 0
            assert set(panel.channels().reshape(-1)) == set(range(channels))


def test_a_single_output_channel_has_a_kernel():
    """Of a wide layer, as segmentation networks end in."""
    assert candidates(ConvSpec(1, 20, 20, 512, 1), VectorUnit(16, 32))[0].family == "direct"


# Image, input channels of a group, phases of rows and columns (all, with the first tap), channels of a phase, groups, kernel.
PHASES = [
    (7, 5, (2, 1), (2, 1), 3, 1, (2, 2)),
    (8, 20, (2, 1), (2, 1), 16, 1, (3, 3)),
    (6, 60, (2, 1), (3, 2), 12, 1, (3, 3)),
    (6, 4, (2, 1), (2, 1), 1, 5, (2, 2)),
    (6, 2, (1, 1), (2, 1), 1, 16, (2, 3)),
    (5, 7, (3, 2), (1, 1), 2, 3, (1, 1)),
]


@pytest.mark.parametrize(("unit", "looped"), [(UNITS[0], False), (UNITS[1], True), (UNITS[2], False)], ids=str)
def test_channels_without_the_first_taps(unit, looped, monkeypatch):
    """Their sums are those of the other taps: 1e30 in the place of an infinite pixel would reach the same channels."""
    if looped:
        monkeypatch.setattr(kernel_taps, "MOST_UNROLLED", 0)
    cases = []
    for size, inputs, rows, columns, each, groups, kernel in PHASES:
        (row_phases, row_whole), (phases, whole) = rows, columns
        taps = FirstTaps(row_whole * phases * each, whole * each, phases * each, row_phases * phases * each)
        spec = ConvSpec(1, size, size + 2, inputs * groups, taps.channels * groups, kernel, padding=(1, 1, 0, 1), groups=groups,
                        first_taps=taps)  # fmt: skip
        if spec.pointwise or kernel == (1, 1):
            spec = replace(spec, padding=(0, 0, 0, 0))
        cases.append((spec, candidates(spec, unit)[0]))
    assert {candidate.family for _, candidate in cases} == {"direct", "grouped"}
    cases = cases if not looped else [(spec, candidate) for spec, candidate in cases if candidate.family == "direct"]
    compiled = library({f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)})
    rng = np.random.default_rng(3)
    for i, (spec, candidate) in enumerate(cases):
        x = rng.uniform(1, 2, (1, spec.height, spec.width, spec.in_channels)).astype("f4")
        w = rng.uniform(1, 2, (spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
        for row, column, channel in np.ndindex(*spec.kernel, spec.out_channels):
            if not spec.first_taps.has(channel % spec.group_out, row == 0, column == 0):
                w[channel, row, column] = 0
        bias = rng.uniform(1, 2, spec.out_channels).astype("f4")
        packed = pack(candidate.panel, w, bias)

        def computed(x, kernel=f"kernel_{i}", spec=spec, packed=packed):
            return call(compiled[kernel], x, packed, 0, len(packed), out=spec.out_shape)

        np.testing.assert_allclose(computed(x), conv2d(spec, x, w, bias), rtol=1e-5, err_msg=f"{spec} {candidate}")
        x[0, 3, 5, :], x[0, 0, 0, 0] = 1e30, 1e30
        wanted = np.where(conv2d(spec, x, w, bias) > 1e20, np.inf, 0)
        x[x > 1e20] = np.inf
        found = computed(x)
        np.testing.assert_array_equal(np.where(np.isfinite(found), 0, found), wanted, err_msg=f"{spec} {candidate}")
