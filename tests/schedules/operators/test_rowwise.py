"""Row-wise and concatenation kernels against numpy, over odd sizes and vector widths."""

import numpy as np
import pytest
import tvm

from flexcomp.schedules.operators import concat, rowwise
from flexcomp.schedules.tiles.rows import cover
from tests.schedules.kernels import library as build

from .rows import EPSILON, exact

SHAPES = ((7, 1), (5, 3), (9, 5), (4, 16), (3, 17), (64, 21), (2, 3, 67), (5, 197), (300, 768))
WIDTHS = (4, 16)
CONCATS = (
    (((1, 5, 5, 7), (1, 5, 5, 3), (1, 5, 5, 21)), 3, "float32"),
    (((1, 56, 56, 64), (1, 56, 56, 64)), 3, "float32"),
    (((1, 64, 56, 56), (1, 17, 56, 56)), 1, "float32"),
    (((3, 2), (1, 2), (4, 2)), 0, "int64"),
    (((2, 9, 5), (2, 1, 5)), 1, "int8"),
)


@pytest.fixture(scope="module")
def library():
    functions = {
        f"{kind}_{width}_{'x'.join(map(str, shape))}": rowwise.kernel(rowwise.RowSpec(kind, shape, 1, EPSILON), width)
        for kind in rowwise.KINDS
        for shape in SHAPES
        for width in WIDTHS
    }
    for width in WIDTHS:
        spec = rowwise.RowSpec("layer_norm", (6, 5, 9), 2, EPSILON, has_scale=True, has_bias=True)
        functions[f"affine_{width}"] = rowwise.kernel(spec, width)
        for i, case in enumerate(CONCATS):
            functions[f"concat_{i}_{width}"] = concat.kernel(concat.ConcatSpec(*case), width)
    return build(functions)


def run(function, *inputs, like):
    result = tvm.runtime.tensor(np.full(like.shape, -77, like.dtype))
    function(*[tvm.runtime.tensor(x) for x in inputs], result)
    return result.numpy()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", rowwise.KINDS)
def test_rows(library, kind, width):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        x = (rng.normal(size=shape) * 3 + 1).astype("float32")
        result = run(library[f"{kind}_{width}_{'x'.join(map(str, shape))}"], x, like=x)
        np.testing.assert_allclose(result, exact(kind, x, 1), rtol=3e-6, atol=3e-6, err_msg=f"{shape}")


@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_softmax_is_stable(library, kind):
    x = np.zeros((5, 197), "float32")
    x[0, 5], x[1] = 1e30, -1e30
    x[2, :100] = -np.inf
    x[3] = np.linspace(-100, 100, 197)
    result = run(library[f"{kind}_16_5x197"], x, like=x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(result, exact(kind, x, 1), rtol=1e-5, atol=1e-35)


@pytest.mark.parametrize("width", WIDTHS)
def test_affine_over_two_axes(library, width):
    rng = np.random.default_rng(2)
    x, scale, bias = (rng.normal(size=shape).astype("float32") for shape in ((6, 5, 9), (5, 9), (5, 9)))
    result = run(library[f"affine_{width}"], x, scale, bias, like=x)
    np.testing.assert_allclose(result, exact("layer_norm", x, 2) * scale + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", range(len(CONCATS)))
def test_concat(library, case, width):
    shapes, axis, dtype = CONCATS[case]
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-100, 100, size=shape).astype(dtype) for shape in shapes]
    expected = np.concatenate(inputs, axis)
    assert concat.ConcatSpec(*CONCATS[case]).out_shape == expected.shape
    assert np.array_equal(run(library[f"concat_{case}_{width}"], *inputs, like=expected), expected)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"kind 'hardmax' is none of softmax, log_softmax, layer_norm, rms_norm"):
        rowwise.RowSpec("hardmax", (1, 2))


@pytest.mark.parametrize("width", [1, 4, 8, 16])
def test_cover_writes_every_element(width):
    for extent in range(1, 70):
        row = cover(extent, width)
        starts = [i * row.lanes for i in range(row.full)] + ([row.last] if row.overlap else [])
        counts = np.zeros(extent, int)
        for start in starts:
            counts[start : start + row.lanes] += 1
        assert counts.min() == 1 and counts.sum() - extent == row.overlap
