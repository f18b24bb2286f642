"""The channels-last form of every operator that has one."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import ir, relax
from tvm.relax import op

from .both_layouts import BothLayouts, from_last, to_last
from .ir import shape, static_tensor
from .rebuild import permuted_axes
from .transposed import conv2d_transpose

# The channels-last form of a call, or None where it has none or better stays in main's layout.
Rule = Callable[[BothLayouts, relax.Call], "ir.Expr | None"]


def _conv2d(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    attrs = call.attrs
    data, weight = call.args
    if attrs.data_layout != "NCHW" or attrs.out_layout not in ("", "NCHW"):
        return None
    axes = [attrs.kernel_layout.index(axis) for axis in "OHWI"]
    kernel = rewriter.emit(rewriter.permute(rewriter.substitute(weight), axes))
    column = _column(rewriter, call, kernel)
    if column is not None:
        return column
    return op.nn.conv2d(
        rewriter.channels_last(data), kernel,
        strides=attrs.strides, padding=attrs.padding, dilation=attrs.dilation, groups=attrs.groups,
        data_layout="NHWC", kernel_layout="OHWI", out_dtype=attrs.out_dtype,
    )  # fmt: skip


def _column(rewriter: BothLayouts, call: relax.Call, kernel: ir.Expr) -> ir.Expr | None:
    """A result of one column is one row: the kernel's row is as wide as the image, and its pixels are as good as channels.

    Register tiles are cut from rows: of a column every pixel would be a tile by itself.
    """
    attrs, (data, _) = call.attrs, call.args
    batch, channels, height, width = shape(data)
    out_channels, rows, columns, per_group = shape(kernel)
    top, left, bottom, right = (int(p) for p in attrs.padding)
    (down, _), (apart, beside) = (map(int, pair) for pair in (attrs.strides, attrs.dilation))
    out_height = (height + top + bottom - apart * (rows - 1) - 1) // down + 1
    whole = columns == width and (beside == 1 or columns == 1) and left == right == 0
    if not whole or out_height == 1 or (width > 1 and int(attrs.groups) > 1):
        return None
    row = rewriter.emit(rewriter.reshape(rewriter.channels_last(data), (batch, 1, height, width * channels)))
    across = rewriter.emit(rewriter.reshape(kernel, (out_channels, 1, rows, columns * per_group)))
    result = op.nn.conv2d(
        row, across,
        strides=(1, down), padding=(0, top, 0, bottom), dilation=(1, apart), groups=attrs.groups,
        data_layout="NHWC", kernel_layout="OHWI", out_dtype=attrs.out_dtype,
    )  # fmt: skip
    return rewriter.reshape(rewriter.emit(result), (batch, out_height, 1, out_channels))


def _pool(function: Callable) -> Rule:
    def rule(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
        attrs = call.attrs
        if attrs.layout != "NCHW" or attrs.out_layout not in ("", "NCHW"):
            return None
        data = rewriter.channels_last(call.args[0])
        return function(
            data, attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation, attrs.ceil_mode,
            attrs.count_include_pad, layout="NHWC",
        )  # fmt: skip

    return rule


def _adaptive_average(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    attrs = call.attrs
    if attrs.layout != "NCHW" or attrs.out_layout not in ("", "NCHW"):
        return None
    return op.nn.adaptive_avg_pool2d(rewriter.channels_last(call.args[0]), attrs.output_size, layout="NHWC")


def _resize(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    attrs, (data, size) = call.attrs, call.args
    if attrs.layout != "NCHW":
        return None
    return op.image.resize2d(
        rewriter.channels_last(data), size,
        roi=tuple(float(r) for r in attrs.roi), layout="NHWC", method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode, rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha, cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value, out_dtype=attrs.out_dtype,
    )  # fmt: skip


def _elementwise(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    if not all(static_tensor(arg) for arg in tensors):
        return None
    rank = max(len(shape(arg)) for arg in tensors)
    if not rewriter.prefers_channels_last([arg for arg in tensors if len(shape(arg)) == rank]):
        return None
    one_value = all(math.prod(shape(arg)) == 1 for arg in tensors)
    args = [rewriter.broadcast_last(arg, rank, one_value) for arg in call.args]
    if any(arg is None for arg in args):
        return None
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _prelu(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    data, slope = call.args
    rank = len(shape(data))
    if not rewriter.prefers_channels_last([data]) or len(shape(slope)) != 1:
        return None
    axis = to_last(rank).index(int(call.attrs.axis) % rank)
    return op.nn.prelu(rewriter.channels_last(data), rewriter.substitute(slope), axis)


def _softmax(function: Callable) -> Rule:
    def rule(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
        """Over the channels only: kernels want the axis last."""
        (data,) = call.args
        rank = len(shape(data))
        if to_last(rank)[-1] != int(call.attrs.axis) % rank or not rewriter.prefers_channels_last([data]):
            return None
        return function(rewriter.channels_last(data), rank - 1)

    return rule


def _concat(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or not all(isinstance(part, relax.Var) for part in parts.fields):
        return None
    fields = list(parts.fields)
    if not rewriter.prefers_channels_last(fields):
        return None
    rank = len(shape(fields[0]))
    axis = to_last(rank).index(int(call.attrs.axis) % rank)
    return op.concat([rewriter.channels_last(part) for part in fields], axis)


def _strided_slice(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    data, axes, *bounds = call.args
    if not rewriter.prefers_channels_last([data]):
        return None
    rank = len(shape(data))
    last = to_last(rank)
    mapped = relax.Tuple([relax.prim_value(last.index(int(axis) % rank)) for axis in axes.fields])
    return relax.Call(call.op, [rewriter.channels_last(data), mapped, *bounds], call.attrs, call.ty_args)


def _pad(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    data, attrs = call.args[0], call.attrs
    if not rewriter.prefers_channels_last([data]):
        return None
    width = [int(p) for p in attrs.pad_width]
    moved = [p for axis in to_last(len(shape(data))) for p in width[2 * axis : 2 * axis + 2]]
    return op.nn.pad(rewriter.channels_last(data), moved, attrs.pad_mode, float(attrs.pad_value))


def _reduction(function: Callable) -> Rule:
    """A reduction that keeps its axes, or drops all those that the layouts have in different order."""

    def rule(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
        data, attrs = call.args[0], call.attrs
        if attrs.axis is None or not rewriter.prefers_channels_last([data]):
            return None
        extents = shape(data)
        last = to_last(len(extents))
        reduced = sorted(last.index(int(axis) % len(extents)) for axis in attrs.axis)
        if attrs.keepdims:
            return function(rewriter.channels_last(data), reduced, True)
        kept = [axis for i, axis in enumerate(last) if i not in reduced]
        result = tuple(extents[axis] for axis in kept)
        if kept != sorted(kept):
            return None
        rank = len(result)
        plain = rewriter.emit(function(rewriter.channels_last(data), reduced, False))
        return rewriter.permute(plain, to_last(rank))  # undone where a reader needs main's layout

    return rule


def _reshape(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    """Channels regrouped, or the image flattened or restored, at the same number of pixels."""
    data = call.args[0]
    before, after = shape(data), tuple(int(d) for d in call.args[1].values)
    if data not in rewriter.last or not rewriter.prefers_channels_last([data]) or min(len(before), len(after)) < 3:
        return None
    image = [extents[-1:] if len(extents) == 3 else extents[-2:] for extents in (before, after)]
    same_image = image[0] == image[1] or len(before) == 3 or len(after) == 3
    if before[0] != after[0] or math.prod(image[0]) != math.prod(image[1]) or not same_image:
        return None
    return rewriter.reshape(rewriter.channels_last(data), tuple(after[axis] for axis in to_last(len(after))))


def _permute(rewriter: BothLayouts, call: relax.Call) -> ir.Expr | None:
    """Channels reordered among themselves, as in a channel shuffle; or moved in front, whose other version there is."""
    data, axes = call.args[0], permuted_axes(call)
    rank = len(axes)
    if rank == 4 and axes == from_last(rank) and data not in rewriter.last:
        return rewriter.substitute(data)
    fixed = [0, rank - 2, rank - 1]
    if rank < 4 or [axes[axis] for axis in fixed] != fixed or not rewriter.prefers_channels_last([data]):
        return None
    last = to_last(rank)
    return rewriter.permute(rewriter.channels_last(data), [last.index(axes[axis]) for axis in last])


_ELEMENTWISE = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "isfinite",
    "isinf", "isnan", "log", "logical_not", "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "square", "tan", "tanh", "trunc", "clip", "astype", "relu", "relu6", "leakyrelu", "gelu", "gelu_tanh", "selu",
    "silu", "softplus", "add", "divide", "floor_divide", "multiply", "power", "subtract", "mod", "floor_mod", "equal",
    "greater", "greater_equal", "less", "less_equal", "not_equal", "maximum", "minimum", "logical_and", "logical_or",
    "logical_xor", "where",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "conv2d": _conv2d,
    "conv2d_transpose": conv2d_transpose,
    "max_pool2d": _pool(op.nn.max_pool2d),
    "avg_pool2d": _pool(op.nn.avg_pool2d),
    "adaptive_avg_pool2d": _adaptive_average,
    "image.resize2d": _resize,
    "prelu": _prelu,
    "softmax": _softmax(op.nn.softmax),
    "log_softmax": _softmax(op.nn.log_softmax),
    "concat": _concat,
    "strided_slice": _strided_slice,
    "pad": _pad,
    **{name: _reduction(getattr(op, name)) for name in ("mean", "sum", "max", "min", "prod", "variance", "std")},
    "reshape": _reshape,
    "permute_dims": _permute,
}
