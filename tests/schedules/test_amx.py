"""Kernels of AMX against NumPy, by a model of the tile instructions on any processor; and the instructions that there are."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tvm

from flexcomp.device import resolve_target, with_arithmetic
from flexcomp.schedules.amx import family
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.row_bands import Rows
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .convolutions import EPILOGUES, RELU, RESIDUAL
from .kernels import TARGET, call
from .modelled import instructions, library
from .reference import conv2d, in_two_slices, pack
from .test_half import half

UNIT = VectorUnit(16, 32, half="bfloat16", tiles=True)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SAPPHIRE = "llvm -mcpu=sapphirerapids"

# Tiles of one row and of two, of pixels that divide evenly and do not, steps of 16 to 32 channels, blocks of 16 and of 32.
DENSE = [
    ConvSpec(1, 1, 2, 64, 32), ConvSpec(1, 1, 16, 32, 16, epilogue=RELU), ConvSpec(1, 1, 17, 48, 80, epilogue=RESIDUAL),
    ConvSpec(1, 1, 49, 96, 40), ConvSpec(1, 7, 7, 144, 24, epilogue=RESIDUAL), ConvSpec(2, 5, 9, 40, 100),
]  # fmt: skip
NEIGHBOURS = [
    ConvSpec(1, 7, 7, 32, 32, (3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL),
    ConvSpec(1, 8, 14, 48, 40, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(2, 5, 19, 16, 48, (3, 3), padding=(1, 0, 2, 1)),
    ConvSpec(1, 9, 37, 32, 16, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=RELU), ConvSpec(1, 9, 11, 64, 64, (1, 1), (2, 2)),
    ConvSpec(1, 8, 8, 32, 32, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)), ConvSpec(1, 6, 20, 32, 20, (2, 5)),
    ConvSpec(1, 1, 40, 64, 32, (1, 3), padding=(0, 1, 0, 1)), ConvSpec(1, 11, 3, 32, 32, (5, 1), padding=(2, 0, 2, 0)),
]  # fmt: skip


def operands(spec: ConvSpec, seed: int = 1) -> tuple:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(spec.x_shape).astype(BFLOAT16)
    w = rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in)) / spec.taps**0.5
    bias = rng.standard_normal(spec.out_channels).astype("f4")
    return x, w.astype(BFLOAT16).astype("f4"), bias, [rng.standard_normal(spec.out_shape).astype(BFLOAT16)] * spec.tensors


def check(drawn: list[ConvSpec], unit: VectorUnit = UNIT) -> None:
    """All kernels of the family agree with NumPy, in two slices each, and leave no tiles in use."""
    cases = [(spec, candidate) for spec in map(bfloat, drawn) for candidate in family.FAMILY.candidates(spec, unit)]
    assert {spec for spec, _ in cases} == {*map(bfloat, drawn)}
    compiled, model = library({f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)}, TARGET)
    for i, (spec, candidate) in enumerate(cases):
        x, w, bias, tensors = operands(spec)
        sums = conv2d(spec, x.astype("f4"), w, bias)
        wanted = EPILOGUES[spec.epilogue](sums, tensors[0].astype("f4") if tensors else 0, None)
        packed = pack(candidate.panel, w, bias)
        found = np.full(spec.out_shape, np.nan, "f4")
        for first, count, given in in_two_slices(packed, len(packed) // 2, np.nan):
            # Scratch follows the result.
            result = run(compiled[f"kernel_{i}"], candidate, spec, x, tensors, given, first, count)
            found = np.where(np.isnan(found), result, found)
        np.testing.assert_allclose(found, wanted, atol=5e-3 * abs(sums).max(), err_msg=f"{spec} {candidate}")
    assert model.amx_model_products() > 0 and not model.amx_model_configured()


def run(kernel, candidate, spec, x, tensors, given, first, count) -> np.ndarray:
    """The result, NaN where nothing is written. Scratch, which follows the result, begins as NaN."""
    scratch = [np.full(shape, np.nan, "f4") for shape in candidate.scratch]
    function = lambda *all_: kernel(*all_[:-2], all_[-1], all_[-2])  # noqa: E731
    result = call(function, x, *tensors, given, first, count, *scratch, out=spec.y_shape, dtype="bfloat16").astype("f4")
    return np.where(result == -77, np.nan, result)


def bfloat(spec: ConvSpec) -> ConvSpec:
    return half(spec, "bfloat16")


@pytest.mark.parametrize("drawn", [DENSE, NEIGHBOURS], ids=["dense", "neighbours"])
def test_against_numpy(drawn):
    check(drawn)


def test_threads_have_tiles_of_their_own():
    """Shares of the tasks begin in the middle of a part."""
    layers = [ConvSpec(1, 7, 30, 32, 160, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(1, 1, 300, 64, 96)]
    unit = replace(UNIT, threads=3)
    assert all(one.scratch[0][0] == 3 for spec in layers for one in family.FAMILY.candidates(bfloat(spec), unit))
    check(layers, unit)


def test_bands_of_rows_are_parts_of_the_whole():
    """To the last bit: sums have the same products in the same order."""
    spec = bfloat(NEIGHBOURS[0])
    _, candidate = family.FAMILY.candidates(spec, UNIT)
    x, w, bias, tensors = operands(spec)
    packed = pack(candidate.panel, w, bias)
    parts = [Rows(0, 3), Rows(3, 4), Rows(4, 7)]
    kernels = {f"band_{rows.start}": candidate.rows.band(rows) for rows in parts} | {"whole": candidate.rows}
    compiled, _ = library({name: kernel.build() for name, kernel in kernels.items()}, TARGET)
    whole = run(compiled["whole"], candidate, spec, x, tensors, packed, 0, len(packed))
    for rows in parts:
        kernel, needed = kernels[f"band_{rows.start}"], candidate.rows.needed(rows, 0)
        beside = [tensor[:, rows.start : rows.stop] for tensor in tensors]
        given = x[:, needed.start : needed.stop]
        found = run(compiled[f"band_{rows.start}"], kernel, kernel.spec, given, beside, packed, 0, len(packed))
        np.testing.assert_array_equal(found, whole[:, rows.start : rows.stop])


def test_a_residual_may_be_overwritten():
    """Tiles overlap, and what is stored twice would be added twice."""
    spec = bfloat(ConvSpec(1, 9, 35, 32, 64, (3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL))
    candidate = family.FAMILY.candidates(spec, UNIT)[0]
    assert candidate.in_place
    x, w, bias, (tensor,) = operands(spec)
    packed = pack(candidate.panel, w, bias)
    compiled, _ = library({"kernel": candidate.build()}, TARGET)
    apart = run(compiled["kernel"], candidate, spec, x, [tensor], packed, 0, len(packed))
    both = tvm.runtime.tensor(tensor.copy())
    scratch = tvm.runtime.tensor(np.zeros(candidate.scratch[0], "f4"))
    compiled["kernel"](tvm.runtime.tensor(x), both, tvm.runtime.tensor(packed), 0, len(packed), both, scratch)
    np.testing.assert_array_equal(both.numpy().astype("f4"), apart)


def test_subnormal_sums_become_zero():
    spec = bfloat(ConvSpec(1, 1, 16, 32, 16))
    (candidate,) = family.FAMILY.candidates(spec, UNIT)
    compiled, _ = library({"kernel": candidate.build()}, TARGET)
    x = np.full(spec.x_shape, 1e-20, BFLOAT16)
    for weight, least in ((1e-20, 0), (1e-17, 1e-37)):
        packed = pack(candidate.panel, np.full((16, 1, 1, 32), weight, "f4"), np.zeros(16, "f4"))
        found = run(compiled["kernel"], candidate, spec, x, [], packed, 0, len(packed))
        assert (found == 0).all() if not least else (found > least).all()


@pytest.mark.parametrize(
    "spec", [ConvSpec(1, 14, 14, 256, 1024), ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL)]
)
def test_inner_loops_load_and_multiply_tiles(spec):
    """Four products for four loads; no tile is stored but sums, and none is moved."""
    target = with_arithmetic(resolve_target(SAPPHIRE), "bfloat16")
    text = instructions(family.FAMILY.candidates(bfloat(spec), target.vector_unit)[0].build(), target)
    count = {name: len(re.findall(rf"\b{name}\b", text)) for name in ("tdpbf16ps", "tileloadd", "tilestored", "tilezero")}
    assert count["tdpbf16ps"] == count["tileloadd"] > 0 and count["tdpbf16ps"] % 4 == 0
    assert count["tilestored"] == count["tilezero"] == 4
    assert len(re.findall(r"\bldtilecfg\b", text)) == len(re.findall(r"\btilerelease\b", text)) == 1
    assert not re.search(r"tile(loadd|stored).*%rsp", text)
    assert "vcvtneps2bf16" in text and "vdpbf16ps" not in text


def test_only_where_a_processor_has_them():
    """And where the network is computed in bfloat16: no other library needs AMX."""
    spec = bfloat(ConvSpec(1, 14, 14, 256, 256))
    for text, has in ((SAPPHIRE, True), ("llvm -mcpu=znver4", False), ("llvm -mcpu=znver4 -mattr=+amx-tile,+amx-bf16", True)):
        plain = resolve_target(text)
        target = with_arithmetic(plain, "bfloat16")
        assert not {"amx_tile", "amx_bf16"} & {*plain.features}
        assert ({"amx_tile", "amx_bf16"} <= {*target.features}) == target.vector_unit.tiles == has
        assert ("amx" in {one.family for one in candidates(spec, target.vector_unit)}) == has


def test_channels_that_no_step_divides_stay_with_other_kernels():
    for channels, taken in ((3, False), (17, False), (36, True), (34, False), (144, True)):
        families = {one.family for one in candidates(bfloat(ConvSpec(1, 14, 14, channels, 64)), UNIT)}
        assert families == ({"direct", "amx"} if taken else {"direct"})
