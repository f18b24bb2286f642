"""Pooling kernels against TVM's own lowering of the Relax operators, over odd shapes."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.op import nn

from flexcomp.schedules.operators.pool import PoolSpec, kernel
from tests.schedules.kernels import library as build

# n, h, w, c, kernel, stride, padding (top, left, bottom, right), dilation, ceil_mode
CASES = (
    (1, 13, 15, 64, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    (2, 9, 7, 20, (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False),
    (1, 8, 8, 5, (3, 3), (2, 2), (0, 0, 0, 0), (1, 1), True),
    (1, 7, 6, 3, (3, 2), (1, 1), (1, 0, 1, 1), (1, 1), False),
    (1, 12, 11, 33, (3, 3), (1, 2), (2, 2, 2, 2), (2, 2), False),
    (1, 6, 6, 150, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), False),
    (1, 10, 30, 1, (2, 9), (1, 3), (0, 4, 1, 4), (1, 1), False),
    (1, 7, 7, 17, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), True),
    (1, 3, 3, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), False),
)
VARIANTS = (("max", False), ("avg", False), ("avg", True))
WIDTHS = (4, 16)


def relax_function(case, kind, count_include_pad):
    n, h, w, c, window, stride, padding, dilation, ceil_mode = case
    arguments = {
        "pool_size": window,
        "strides": stride,
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": ceil_mode,
        "layout": "NHWC",
    }
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, h, w, c), "float32"))
    with builder.function("main", [x]):
        if kind == "max":
            result = builder.emit(nn.max_pool2d(x, **arguments))
        else:
            result = builder.emit(nn.avg_pool2d(x, count_include_pad=count_include_pad, **arguments))
        builder.emit_func_output(result)
    module = relax.transform.LegalizeOps()(builder.get())
    shape = tuple(int(extent) for extent in module["main"].ret_ty.shape)
    return next(f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)), shape


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
