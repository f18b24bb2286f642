"""Kernels of float16 against NumPy: random shapes, slices and epilogues, and the rounding of long sums.

Compiled for x86-64, which widens each operand and rounds each product and each sum, where AArch64 rounds once for both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flexcomp.schedules import conv
from flexcomp.schedules.registry import candidates, space
from flexcomp.schedules.tiles import taps as kernel_taps
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .convolutions import EPILOGUES, specs
from .kernels import call, library
from .reference import conv2d, in_two_slices, pack

UNIT = VectorUnit(4, 32, by_lane=True, computes_half=True)
ERROR = 5e-3  # of the largest sum: sums of 128 products, and results, have 11 bits


def half(spec: ConvSpec) -> ConvSpec:
    return replace(spec, dtype="float16", weights="float16")


def check(drawn: list[ConvSpec], error: float = ERROR) -> set[str]:
    """The families whose kernels agree with NumPy, in two slices each."""
    cases = [(spec, candidate) for spec in drawn for candidate in candidates(spec, UNIT)]
    compiled = library({f"kernel_{i}": candidate.build() for i, (_, candidate) in enumerate(cases)})
    rng = np.random.default_rng(1)
    for i, (spec, candidate) in enumerate(cases):
        x = rng.standard_normal((spec.batch, spec.height, spec.width, spec.in_channels)).astype("f2")
        w = (rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in)) / spec.taps**0.5).astype("f2").astype("f4")
        bias, vector = (rng.standard_normal(spec.out_channels).astype("f4") for _ in range(2))
        tensors = [rng.standard_normal(spec.out_shape).astype("f2") for _ in range(spec.tensors)]
        tensor = tensors[0].astype("f4") if tensors else 0
        sums = conv2d(spec, x, w, bias)
        wanted = EPILOGUES[spec.epilogue](sums, tensor, vector)
        packed = pack(candidate.panel, w, bias, [vector] * spec.channel_vectors)
        found = np.full(spec.out_shape, np.nan, "f2")
        for first, count, given in in_two_slices(packed, len(packed) // 2, np.nan):
            result = call(compiled[f"kernel_{i}"], x, *tensors, given, first, count, out=spec.out_shape, dtype="float16")
            found = np.where(np.isnan(found), result, found)
        np.testing.assert_allclose(found, wanted, atol=error * abs(sums).max(), err_msg=f"{spec} {candidate}")
    return {candidate.family for _, candidate in cases}


@pytest.mark.parametrize("kind", ["conv", "depthwise", "grouped", "dense"])
def test_random_shapes_and_slices(kind):
    families = {"conv": {"direct"}, "depthwise": {"depthwise"}, "grouped": {"grouped"}, "dense": {"direct"}}
    assert families[kind] <= check(list(map(half, specs(kind, 8))))


def test_taps_in_loops(monkeypatch):
    monkeypatch.setattr(kernel_taps, "MOST_UNROLLED", 0)
    check([half(spec) for spec in specs("conv", 6)])


# Sums of a row of taps, of a tap in parts, of several rows together, and of one pixel.
LONG = [
    ConvSpec(1, 5, 9, 40, 24, (3, 3), padding=(1, 1, 1, 1)), ConvSpec(1, 4, 7, 300, 16, (3, 3), padding=(1, 1, 1, 1)),
    ConvSpec(1, 11, 11, 3, 24, (7, 7), (2, 2), (3, 3, 3, 3)), ConvSpec(1, 1, 7, 2304, 24), ConvSpec(1, 1, 1, 2304, 24),
]  # fmt: skip


def test_long_sums():
    assert check(list(map(half, LONG)), error=2e-3) == {"direct", "gemv"}


def test_totals_are_float32(monkeypatch):
    """Without them the errors of the same sums are larger than allowed."""
    monkeypatch.setitem(conv.PARTIAL_TERMS, "float16", 1 << 20)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(list(map(half, LONG[3:])), error=2e-3)


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
