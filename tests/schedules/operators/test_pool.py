"""Pooling kernels against TVM's own lowering of the Relax operators, over odd shapes."""

import numpy as np
import pytest
import tvm

from flexcomp.schedules.operators.pool import PoolSpec, kernel
from tests.schedules.kernels import library as build

from .pools import CASES, VARIANTS, relax_function

WIDTHS = (4, 16)


@pytest.fixture(scope="module")
def cases():
    """(name of the reference, names of the kernels, input shape, output shape) and the library of all."""
    functions, table = {}, []
    for i, case in enumerate(CASES):
        for kind, count_include_pad in VARIANTS:
            name = f"{kind}{int(count_include_pad)}_{i}"
            functions[name], shape = relax_function(case, kind, count_include_pad)
            n, h, w, c, window, stride, padding, dilation, _ = case
            spec = PoolSpec(n, h, w, c, *window, stride, padding, dilation, kind, count_include_pad, *shape[1:3])
            own = [f"{name}_{width}" for width in WIDTHS]
            functions |= {key: kernel(spec, width) for key, width in zip(own, WIDTHS, strict=True)}
            table.append((name, own, (n, h, w, c), shape))
    return build(functions, references=True), table


def run(function, x, shape):
    result = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    function(tvm.runtime.tensor(x), result)
    return result.numpy()


def test_windows(cases):
    library, table = cases
    rng = np.random.default_rng(0)
    for reference, own, in_shape, out_shape in table:
        x = rng.normal(size=in_shape).astype("float32")
        expected = run(library[reference], x, out_shape)
        for name in own:
            np.testing.assert_allclose(run(library[name], x, out_shape), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_global_average():
    shapes = ((1, 7, 7, 2048), (2, 5, 3, 33), (1, 14, 9, 7), (1, 8, 8, 1000))
    library = build({f"f{i}": kernel(PoolSpec.global_average(*shape), 16) for i, shape in enumerate(shapes)})
    rng = np.random.default_rng(0)
    for i, shape in enumerate(shapes):
        x = rng.normal(size=shape).astype("float32")
        result = run(library[f"f{i}"], x, (shape[0], 1, 1, shape[3]))
        np.testing.assert_allclose(result, x.mean((1, 2), keepdims=True, dtype="float64"), rtol=1e-5, atol=1e-6)


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"kind 'min' is none of max, avg"):
        PoolSpec(1, 4, 4, 4, 2, 2, (2, 2), (0, 0, 0, 0), (1, 1), "min", False, 2, 2)
