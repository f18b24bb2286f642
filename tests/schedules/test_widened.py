"""Narrow weights widened into scratch for many tiles, against NumPy: in whole blocks and in parts, over random layers."""

from dataclasses import replace

import numpy as np
import pytest
import tvm

from flexcomp.schedules import widened
from flexcomp.schedules.im2col import ways as im2col
from flexcomp.schedules.im2col.family import candidate as im2col_candidate
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles import taps
from flexcomp.schedules.tiles.narrow_panel import rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .convolutions import EPILOGUES, RELU, RESIDUAL, specs
from .kernels import library
from .reference import conv2d, in_two_slices, pack
from .shapes_conv import Guarded, written_channels

UNIT = VectorUnit(4, 32, by_lane=True)
DTYPES = ("float16", "bfloat16", "int8", SCALED_BFLOAT16)
# Whole blocks of few taps; channels in parts that do not come out even, with borders, strides, groups and threads.
LAYERS = [
    ConvSpec(1, 20, 23, 3, 24, (7, 7), (2, 2), (3, 3, 3, 3), epilogue=RELU),
    ConvSpec(1, 14, 15, 130, 40, (3, 3), (1, 1), (1, 1, 1, 1), epilogue=RESIDUAL),
    ConvSpec(2, 9, 31, 150, 56, (5, 3), (2, 1), (3, 0, 1, 2), dilation=(1, 2)),
    ConvSpec(1, 13, 13, 2 * 400, 2 * 24, (1, 1), groups=2, epilogue=RELU),
    ConvSpec(1, 1, 197, 1029, 72, epilogue=("silu", ("acc",))),
    ConvSpec(3, 11, 9, 700, 33, stride=(2, 2), epilogue=("prelu", ("acc",), ("channel", 0))),
]


def widened_of(spec: ConvSpec, unit: VectorUnit = UNIT):
    return next((c for c in candidates(spec, unit) if c.variant == "widened"), None)


@pytest.mark.parametrize("threads", [1, 3])
def test_widened_weights_are_those_that_the_type_has(threads):
    """Every slice writes its channels and nothing else, reads no weights outside itself, and stays inside of its scratch."""
    unit = replace(UNIT, threads=threads)
    drawn = [spec for spec in specs("conv", 30) if widened.eligible(replace(spec, weights="int8"), UNIT_TILE)]
    # Each number of threads has all of LAYERS, with another type, and half of the random layers.
    chosen = [*LAYERS, *drawn[threads > 1 :: 2]]
    layers = [replace(spec, weights=DTYPES[(i + threads - 1) % len(DTYPES)]) for i, spec in enumerate(chosen)]
    cases = [(spec, candidate) for spec in layers if (candidate := widened_of(spec, unit))]
    assert len(cases) > 6 and {len(candidate.scratch) for _, candidate in cases} == {1, 2}
    assert {spec.weights for spec, _ in cases} == set(DTYPES)
    compiled = library({f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)})
    for i, (spec, candidate) in enumerate(cases):
        check(spec, candidate, compiled[f"kernel_{i}"], np.random.default_rng(i))


def test_of_long_kernels(monkeypatch):
    """Taps are widened and multiplied in loops."""
    monkeypatch.setattr(taps, "MOST_UNROLLED", 0)
    long = ConvSpec(1, 1, 120, 130, 40, (1, 48), padding=(0, 24, 0, 23), epilogue=RELU)
    cases = [(spec, widened_of(spec)) for spec in (replace(spec, weights="int8") for spec in (*LAYERS[:3], long))]
    assert {len(candidate.scratch) for _, candidate in cases} == {1, 2}
    compiled = library({f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)})
    for i, (spec, candidate) in enumerate(cases):
        check(spec, candidate, compiled[f"kernel_{i}"], np.random.default_rng(i))


UNIT_TILE = candidates(ConvSpec(1, 20, 20, 64, 64), UNIT)[0].tile


def check(spec: ConvSpec, candidate, kernel, rng: np.random.Generator) -> None:
    draw = lambda *shape: rng.standard_normal(shape).astype("f4")  # noqa: E731
    x = draw(spec.batch, spec.height, spec.width, spec.in_channels)
    w, bias = draw(spec.out_channels, *spec.kernel, spec.group_in), draw(spec.out_channels)
    slope, tensor = draw(spec.out_channels), draw(*spec.out_shape)
    expected = EPILOGUES[spec.epilogue](conv2d(spec, x, rounded(w, spec.weights), bias), tensor, slope)
    panel = candidate.panel
    packed = pack(panel, w, bias, [slope] * spec.channel_vectors)
    y, result = np.full(expected.shape, np.nan, "f4"), tvm.runtime.tensor(np.full(expected.shape, np.nan, "f4"))
    cut = int(rng.integers(0, panel.blocks))
    for first, count, given in in_two_slices(packed, cut, -77 if spec.weights == "int8" else np.nan):
        scratch = [Guarded(shape) for shape in candidate.scratch]
        operands = [x, *[tensor] * spec.tensors, given]
        kernel(*map(tvm.runtime.tensor, operands), first, count, result, *(one.inside for one in scratch))
        written = written_channels(candidate, first, count)
        y[..., written] = expected[..., written]
        np.testing.assert_array_equal(np.isnan(result.numpy()), np.isnan(y), err_msg=f"{spec} {candidate}")
        assert all(one.is_untouched_outside() for one in scratch), f"scratch of {candidate} is too small for {spec}"
    accuracy = 3e-5 * max(1, abs(expected).max())
    np.testing.assert_allclose(result.numpy(), expected, atol=accuracy, err_msg=f"{spec} {candidate}")


def test_only_where_there_is_something_to_widen_for():
    """Wide vectors, float32, a row alone and depthwise layers widen in registers, or not at all."""
    layer = ConvSpec(1, 14, 14, 256, 64, (3, 3), padding=(1, 1, 1, 1), weights="float16")
    assert widened_of(layer) is not None
    assert widened_of(layer, VectorUnit(8, 16)) is None
    assert widened_of(replace(layer, weights="float32")) is None
    assert widened_of(replace(layer, groups=256, out_channels=256)) is None
    assert widened_of(ConvSpec(1, 1, 1, 4096, 1000, weights="int8")) is None


def test_scratch_is_a_few_kibibytes_however_deep_the_layer():
    for channels in (64, 512, 4096):
        for dtype in DTYPES:
            candidate = widened_of(ConvSpec(1, 14, 14, channels, 512, (3, 3), padding=(1, 1, 1, 1), weights=dtype))
            assert candidate.scratch_nbytes <= 32 * 1024


@pytest.mark.parametrize("threads", [1, 3])
def test_slices_of_a_flattened_input(threads):
    """im2col with narrow weights, by lane: its parts are widened once for all tiles of a band."""
    unit = replace(UNIT, threads=threads)
    layers = [replace(spec, weights=DTYPES[i % len(DTYPES)]) for i, spec in enumerate([*LAYERS[:4], *LAYERS[1:3]])]
    cases = []
    for i, spec in enumerate(layer for layer in layers if im2col.eligible(layer)):
        way = im2col.in_slices(spec, unit, (1, 3, 5)[i % 3])
        cases.append((spec, im2col_candidate(replace(way, stretch=(way.stretch, 40)[i % 2]), unit)))
    assert len(cases) > 4 and all(len(candidate.scratch) == 2 for _, candidate in cases)
    compiled = library({f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)})
    for i, (spec, candidate) in enumerate(cases):
        check(spec, candidate, compiled[f"kernel_{i}"], np.random.default_rng(i))


@pytest.mark.parametrize("unit", [UNIT, VectorUnit(4, 32), VectorUnit(16, 32)])
@pytest.mark.parametrize("spec", [
    ConvSpec(1, 20, 20, 24, 24, (3, 3), padding=(1, 1, 1, 1), groups=24),
    ConvSpec(1, 20, 20, 24, 24, (7, 7), padding=(3, 3, 3, 3), groups=24),
    ConvSpec(1, 20, 20, 24, 24, (3, 3), padding=(1, 1, 1, 1), groups=12),
], ids=["depthwise", "depthwise 7×7", "grouped"])  # fmt: skip
def test_a_channel_s_few_weights_are_widened_once_for_all_tiles(spec, unit):
    """Onto the stack, where vectors are short: nothing is asked of the runtime, and no tile widens."""
    kernel = candidates(replace(spec, weights="int8"), unit)[0].build()
    conversions = str(kernel).count("T.Cast(\"float32x")
    library({"kernel": kernel})
    assert (conversions == 2) if unit.width == 4 else (conversions > 2)
