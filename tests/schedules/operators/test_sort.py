"""Sorting and cumulative sums against NumPy."""

import numpy as np
import pytest
import tvm

from flexcomp.schedules.operators import scan, sort
from flexcomp.schedules.operators.scan import ScanSpec
from flexcomp.schedules.operators.sort import SortSpec
from tests.pairs import pairs
from tests.schedules.kernels import library


def run(func, *inputs, outputs):
    module = library({"main": func})
    arrays = [tvm.runtime.tensor(a) for a in (*inputs, *outputs)]
    module["main"](*arrays)
    return [a.numpy() for a in arrays[len(inputs) :]]


def order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Positions in sorted order, NaN as the largest, equal elements in their own order."""
    with np.errstate(invalid="ignore"):
        ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)  # NaN is last, and one value
    return np.argsort(-ranks if descending else ranks, axis=axis, kind="stable")


# Shape, axis, count.
SORTED = [
    ((3, 50), 1, 50), ((3, 50), 1, 7), ((1000,), 0, 13), ((2, 33, 5), 1, 33), ((2, 33, 5), 1, 1), ((4, 1), 1, 1),
    ((2, 3), 1, 2), ((64, 300), 1, 200),
]  # fmt: skip
SUMMED = [((7,), 0), ((3, 50), 1), ((50, 3), 0), ((2, 9, 37), 1), ((4, 200, 160), 1), ((3, 1, 8), 1)]
DTYPES = ["float32", "float64", "int64", "uint8"]


@pytest.mark.parametrize("case, dtype, results, descending", pairs(SORTED, DTYPES, sort.RESULTS, [False, True]), ids=str)
def test_sort(case, dtype, results, descending):
    shape, axis, count = case
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(0, 20, shape).astype(dtype)  # many equal ones
    if dtype.startswith("float"):
        x = x - 8
        flat = x.reshape(-1)
        flat[rng.integers(0, flat.size, flat.size // 8)] = np.nan
        flat[rng.integers(0, flat.size, 3)] = [-0.0, np.inf, -np.inf]
        flat[0] = -np.float32(np.nan)
    spec = SortSpec(shape, axis, count, dtype, descending, results)
    positions = order(x, axis, descending).take(range(count), axis)
    expected = {"values": np.take_along_axis(x, positions, axis), "indices": positions}
    expected = list(expected.values()) if results == "both" else [expected[results]]
    found = run(sort.kernel(spec, 8), x, outputs=[np.zeros_like(e) for e in expected])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "case, dtypes, exclusive",
    pairs(SUMMED, [("float32", "float32"), ("int32", "int64"), ("float64", "float64")], [False, True]),
    ids=str,
)
def test_cumulative_sum(case, dtypes, exclusive):
    (shape, axis), (dtype, out_dtype) = case, dtypes
    x = np.random.default_rng(1).integers(-50, 50, shape).astype(dtype)
    func = scan.kernel(ScanSpec(shape, axis, dtype, out_dtype, exclusive), 8)
    (found,) = run(func, x, outputs=[np.zeros(shape, out_dtype)])
    expected = np.cumsum(x, axis, dtype=out_dtype)
    np.testing.assert_array_equal(found, expected - x if exclusive else expected)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("shape, axis", [((7,), 0), ((3, 50), 1), ((50, 3), 0), ((2, 9, 37), 1)])
def test_cumulative_product(shape, axis, exclusive):
    x = np.random.default_rng(1).choice([-2, -1, 1, 2], shape).astype("float64")
    func = scan.kernel(ScanSpec(shape, axis, "float64", "float64", exclusive, product=True), 8)
    (found,) = run(func, x, outputs=[np.zeros(shape)])
    expected = np.cumprod(x, axis)
    np.testing.assert_array_equal(found, expected / x if exclusive else expected)
