"""Poolings to test kernels with."""

import tvm
from tvm import relax
from tvm.relax.op import nn

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
