"""Kernels of float16 and of bfloat16 against NumPy: random shapes, slices and epilogues, and the rounding of long sums.

Those of float16 are compiled for x86-64, which widens each operand and rounds each product and each sum, where AArch64 rounds
once for both. Those of bfloat16 run where the processor has AVX512_BF16, and with a model of AArch64's instruction, "matrices".
"""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from benchmarks.lab.arm.assembly import loops
from flexcomp.compiler.machine_code import compile_module
from flexcomp.device import resolve_target, with_arithmetic
from flexcomp.schedules import conv
from flexcomp.schedules.registry import candidates, space
from flexcomp.schedules.tiles import taps as kernel_taps
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from . import modelled
from .convolutions import EPILOGUES, specs
from .kernels import TARGET, UNOPTIMISED, call, library
from .reference import conv2d, in_two_slices, pack

HERE = resolve_target("native")
UNITS = {
    "float16": VectorUnit(4, 32, by_lane=True, half="float16"),
    "bfloat16": VectorUnit(16, 32, half="bfloat16"),
    "matrices": VectorUnit(4, 32, by_lane=True, half="bfloat16"),
}
UNIT = UNITS["float16"]
TARGETS = {"float16": UNOPTIMISED, "bfloat16": HERE, "matrices": UNOPTIMISED}
TYPES = {"float16": np.dtype("f2"), "bfloat16": np.dtype(ml_dtypes.bfloat16), "matrices": np.dtype(ml_dtypes.bfloat16)}
# Of the largest sum: sums of 128 products, and results, have 11 bits, others 8.
ERROR = {"float16": 5e-3, "bfloat16": 8e-3, "matrices": 8e-3}
KINDS = [
    "float16",
    "matrices",
    pytest.param("bfloat16", marks=pytest.mark.skipif("avx512_bf16" not in HERE.features, reason="needs AVX512_BF16")),
]


def half(spec: ConvSpec, kind: str = "float16") -> ConvSpec:
    kind = str(TYPES[kind])
    return replace(spec, dtype=kind, weights=kind)


def check(drawn: list[ConvSpec], kind: str = "float16", error: float | None = None) -> set[str]:
    """The families whose kernels agree with NumPy, in two slices each."""
    of, error = TYPES[kind], error or ERROR[kind]
    cases = [(spec, candidate) for spec in (half(one, kind) for one in drawn) for candidate in candidates(spec, UNITS[kind])]
    functions = {f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)}
    compiled = modelled.library(functions, UNOPTIMISED)[0] if kind == "matrices" else library(functions, TARGETS[kind])
    rng = np.random.default_rng(1)
    for i, (spec, candidate) in enumerate(cases):
        x = rng.standard_normal((spec.batch, spec.height, spec.width, spec.in_channels)).astype(of)
        w = (rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in)) / spec.taps**0.5).astype(of).astype("f4")
        bias, vector = (rng.standard_normal(spec.out_channels).astype("f4") for _ in range(2))
        tensors = [rng.standard_normal(spec.out_shape).astype(of) for _ in range(spec.tensors)]
        tensor = tensors[0].astype("f4") if tensors else 0
        sums = conv2d(spec, x.astype("f4"), w, bias)
        wanted = EPILOGUES[spec.epilogue](sums, tensor, vector)
        packed = pack(candidate.panel, w, bias, [vector] * spec.channel_vectors)
        found = np.full(spec.out_shape, np.nan, "f4")
        for first, count, given in in_two_slices(packed, len(packed) // 2, np.nan):
            result = call(compiled[f"kernel_{i}"], x, *tensors, given, first, count, out=spec.out_shape, dtype=spec.dtype)
            result = np.where(result == -77, np.nan, result.astype("f4"))
            found = np.where(np.isnan(found), result, found)
        np.testing.assert_allclose(found, wanted, atol=error * abs(sums).max(), err_msg=f"{spec} {candidate}")
    return {candidate.family for _, candidate in cases}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", ["conv", "dense"])
def test_random_shapes_and_slices(layer, kind):
    check_layers(layer, kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "matrices"])
@pytest.mark.parametrize("layer", ["depthwise", "grouped"])
def test_random_shapes_that_are_no_matrix_products(layer, kind):
    check_layers(layer, kind)


def check_layers(layer: str, kind: str) -> None:
    families = {"conv": {"direct"}, "depthwise": {"depthwise"}, "grouped": {"grouped"}, "dense": {"direct"}}
    assert families[layer] <= check(specs(layer, 8), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_taps_in_loops(kind, monkeypatch):
    monkeypatch.setattr(kernel_taps, "MOST_UNROLLED", 0)
    check(specs("conv", 6), kind)


# Sums of a row of taps, of a tap in parts, of several rows together, and of one pixel.
LONG = [
    ConvSpec(1, 5, 9, 40, 24, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(1, 4, 7, 300, 16, (3, 3), padding=(1, 1, 1, 1)),
    ConvSpec(1, 11, 11, 3, 24, (7, 7), (2, 2), (3, 3, 3, 3)), ConvSpec(1, 1, 7, 2304, 24), ConvSpec(1, 1, 1, 2304, 24),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_long_sums(kind):
    assert check(LONG, kind, {"float16": 2e-3}.get(kind, 5e-3)) == {"direct", "gemv"}


@pytest.mark.skipif("avx512_bf16" not in HERE.features, reason="needs AVX512_BF16")
def test_an_odd_channel_is_multiplied_alone():
    """What lies behind it, as the next pixel or after the tensor, is not."""
    spec = half(ConvSpec(1, 1, 5, 1031, 24), "bfloat16")
    candidate = candidates(spec, UNITS["bfloat16"])[0]
    x = np.zeros((1, 1, 5, 1031), ml_dtypes.bfloat16)
    x[0, 0, ::2] = np.inf
    packed = pack(candidate.panel, np.ones((24, 1, 1, 1031), "f4"), np.zeros(24, "f4"))
    kernel = library({"kernel": candidate.build()}, HERE)["kernel"]
    found = call(kernel, x, packed, 0, len(packed), out=spec.out_shape, dtype="bfloat16").astype("f4")
    np.testing.assert_array_equal(found[0, 0, 1::2], 0)


@pytest.mark.parametrize("spec", [ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(1, 28, 28, 128, 512)])
def test_an_instruction_adds_two_products_and_nothing_is_spilled(spec):
    """In inner loops, which have an instruction for each vector of the tile and pair of channels."""
    target = resolve_target("llvm -mcpu=znver4")
    candidate = candidates(half(spec, "bfloat16"), UNITS["bfloat16"])[0]
    text = compile_module({"kernel": candidate.build()}, target).inspect_source("asm")
    loops = re.findall(r"^(\.L\w+):((?:(?!^\.L).)*?)\tj\w+\t\1$", text, re.MULTILINE | re.DOTALL)
    inner = [code for _, code in loops if "vdpbf16ps" in code]
    assert inner and not any(re.search(r"\(%rsp\).*%zmm|%zmm.*\(%rsp\)", code) for code in inner)
    assert all(code.count("vdpbf16ps") % (candidate.tile.channels // 16) == 0 for code in inner)
    assert not any("vfmadd" in code for code in inner)


def test_totals_are_float32(monkeypatch):
    """Without them the errors of the same sums are larger than allowed."""
    monkeypatch.setitem(conv.PARTIAL_TERMS, "float16", 1 << 20)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(LONG[3:], error=2e-3)


def test_no_family_adds_up_many_products_without_totals():
    """Depthwise layers of large kernels, and phases that lack taps, have no kernel in float16."""
    assert not candidates(half(ConvSpec(1, 40, 40, 16, 16, (13, 13), groups=16)), UNIT)
    assert candidates(ConvSpec(1, 40, 40, 16, 16, (13, 13), groups=16), UNIT)


def test_registers_have_twice_as_many():
    spec = ConvSpec(1, 28, 28, 64, 128)
    wide, narrow = (min(candidates(one, UNIT), key=lambda c: c.work) for one in (spec, half(spec)))
    assert narrow.work < 0.6 * wide.work and narrow.tile.depth == 2 * wide.tile.depth
    assert {candidate.family for candidate in space(half(spec), UNIT)} == {"direct"}
    assert all(candidate.tile.rows <= 9 for candidate in space(half(spec), UNIT))


@pytest.mark.parametrize("spec", [ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(1, 28, 28, 128, 512)])
def test_an_instruction_multiplies_matrices_and_nothing_is_spilled(spec):
    """On AArch64, in inner loops: one for two rows and two channels."""
    target = with_arithmetic(resolve_target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1"), "bfloat16")
    (candidate,) = candidates(half(spec, "bfloat16"), target.vector_unit)
    text = compile_module({"kernel": candidate.build()}, target).inspect_source("asm")
    loops = re.findall(r"^(\.L\w+):((?:(?!^\.L).)*?)\tb\.\w+\t\1$", text, re.MULTILINE | re.DOTALL)
    inner = [code for _, code in loops if "bfmmla" in code]
    products = {-(-rows // 2) * candidate.tile.channels // 2 for rows in range(1, candidate.tile.rows + 1)}
    assert inner and {code.count("bfmmla") for code in inner} <= products
    assert not any("[sp" in code or "fmla\t" in code for code in inner)


def test_a_pixel_without_a_neighbour_is_multiplied_alone():
    """Infinite pixels next to it, and after the tensor, are not."""
    spec = half(ConvSpec(1, 1, 5, 1031, 24), "matrices")
    candidate = candidates(spec, UNITS["matrices"])[0]
    x = np.zeros((1, 1, 5, 1031), ml_dtypes.bfloat16)
    x[0, 0, ::2] = np.inf
    packed = pack(candidate.panel, np.ones((24, 1, 1, 1031), "f4"), np.zeros(24, "f4"))
    kernel = modelled.library({"kernel": candidate.build()}, TARGET)[0]["kernel"]
    found = call(kernel, x, packed, 0, len(packed), out=spec.out_shape, dtype="bfloat16").astype("f4")
    np.testing.assert_array_equal(found[0, 0, 1::2], 0)


@pytest.mark.parametrize("core", ["cortex-a55", "cortex-a76", "cortex-x1"])
def test_inner_loops_keep_all_in_registers(core):
    """Factors by lane are in the first 16. LLVM gives these to accumulators first, and unrolls loops until too much is live."""
    target = with_arithmetic(resolve_target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={core}"), "float16")
    same = (1, 1, 1, 1)
    for spec in (ConvSpec(1, 7, 7, 256, 256, (3, 3), padding=same), ConvSpec(1, 28, 28, 64, 128, (3, 3), padding=same)):
        kernel = candidates(half(spec), target.vector_unit)[0]
        with target.tvm_target:
            text = compile_module({"kernel": kernel.build()}, target).inspect_source("s")
        found = [loop for loop in loops(text) if loop.fmas and not loop.stores]
        assert found and not sum(loop.spills for loop in found), f"{kernel} for {core}"


@pytest.mark.parametrize("core", ["cortex-a55", "cortex-a76", "cortex-x1"])
def test_unrolled_loops_of_few_inputs_keep_full_tiles_in_registers(core):
    """LLVM unrolls the loops over two groups of inputs and three columns, and loads of the next ones come early."""
    target = with_arithmetic(resolve_target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={core}"), "float16")
    kernel = candidates(half(ConvSpec(1, 55, 55, 16, 64, (3, 3), padding=(1, 1, 1, 1))), target.vector_unit)[0]
    with target.tvm_target:
        text = compile_module({"kernel": kernel.build()}, target).inspect_source("s")
    full = max((loop for loop in loops(text) if not loop.stores), key=lambda loop: loop.fmas)
    assert full.fmas and not full.spills
