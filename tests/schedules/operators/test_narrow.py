"""Conversions to and from 16-bit floats, all of those that there are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm

from flexcomp.schedules.operators import narrow
from flexcomp.schedules.operators.narrow import NarrowSpec
from tests.schedules.kernels import library

FAR = (np.float32(np.inf), np.float32(-np.inf))
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def run(bits: np.ndarray, source: str, target: str, width: int = 8) -> np.ndarray:
    func = narrow.kernel(NarrowSpec(bits.shape, source, target), width)
    module = library({"f": func})
    given, out = tvm.runtime.empty(bits.shape, source), tvm.runtime.empty(bits.shape, target)
    given.copyfrom(bits.view("f4" if source == "float32" else TYPES[source]))
    module["f"](given, out)
    return np.asarray(out.numpy()).view("u4" if target == "float32" else "u2")


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("kind", TYPES)
def test_every_narrow_number_widens_exactly(kind, width):
    bits = np.arange(1 << 16, dtype="u2")
    found = run(bits, kind, "float32", width).view("f4")
    expected = bits.view(TYPES[kind]).astype("f4")
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("kind", TYPES)
def test_floats_narrow_to_the_nearest(kind):
    """Every narrow number, what lies just beside and half-way to the next, and any bits."""
    exact = np.arange(1 << 16, dtype="u2").view(TYPES[kind]).astype("f4")
    exact = exact[np.isfinite(exact)]
    largest = float(np.max(exact))
    with np.errstate(over="ignore", invalid="ignore"):
        middle = np.sort(exact)[:-1] / 2 + np.sort(exact)[1:] / 2
        values = np.concatenate([
            exact, middle, *(np.nextafter(v, towards, dtype="f4") for v in (exact, middle) for towards in FAR),
            np.random.default_rng(0).integers(0, 1 << 32, 50_000, "u4").view("f4"),
            np.array([0.0, -0.0, np.inf, -np.inf, largest * 1.0001, 65519.996, 65520.0, 1e-45, 2**-25, 3e38, np.nan], "f4"),
        ])  # fmt: skip
        expected = values.astype(TYPES[kind])
    found = run(values.view("u4"), "float32", kind).view(TYPES[kind])
    nan = np.isnan(values)
    np.testing.assert_array_equal(np.isnan(found.astype("f4")), nan)
    np.testing.assert_array_equal(found.view("u2")[~nan], expected.view("u2")[~nan])
