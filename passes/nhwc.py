"""Compute images with the channels last.

A value of main may exist in two versions: as main has it, and with its channels last. One walk
forwards decides for each operator which version it reads and makes; a version that is missing is
made by one permutation of the other, where it is first needed, and kept. So two permutations never
meet, and a permutation that moves nothing in memory is a reshape.

"Channels last" is meant for any rank: (N, C, H, W) becomes (N, H, W, C), (N, G, C, H, W), as in a
channel shuffle, (N, H, W, G, C), and (N, C, L), an image without its second axis, (N, L, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import ir, relax
from tvm.ir.transform import module_pass
from tvm.relax import op

from .ir import operator, shape, static_tensor
from .rebuild import MainRewriter, permuted_axes, permutes_nothing
from .weights import weight_vars


@module_pass(opt_level=0)
class ToNHWC:
    """Turn 2-D convolutions, and what lies between them, to NHWC, with OHWI kernels.

    main(x, w):                          main(x, w):
      y = conv2d(x, w)                     wt = permute_dims(w, [0, 2, 3, 1])
      z = relu(y)                  →       xt = permute_dims(x, [0, 2, 3, 1])
      return z                             yt = conv2d(xt, wt, NHWC, OHWI)
                                           zt = relu(yt)
                                           return permute_dims(zt, [0, 3, 1, 2])

    Inputs and results of main keep their layout. An operator that is not known here gets its operands
    in their original layout, so every module can be converted.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _ToNHWC(mod).rewrite()


class _ToNHWC(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.weights = weight_vars(self.main)
        # Old variable → its channels-last version in the new main; `replaced` has the version in main's layout.
        self.last: dict[relax.Var, ir.Expr] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        rule = None if var in self.weights or not static_tensor(var) else _RULES.get(operator(value))
        converted = rule(self, value) if rule else None
        if converted is None:
            return self._in_main_layout(value)
        self.last[var] = self.emit(converted, var.name)
        return None

    def _in_main_layout(self, value: ir.Expr) -> ir.Expr:
        value = self.substitute(value)
        match operator(value):
            case "reshape":
                return self.reshape(value.args[0], tuple(int(d) for d in value.args[1].values))
            case "permute_dims":
                return self.permute(value.args[0], permuted_axes(value))
            case _:
                return value

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """`expr` over variables of the new main, in main's layout."""
        if isinstance(expr, relax.Var) and expr not in self.replaced and expr in self.last:
            rank = len(shape(expr))
            self.replaced[expr] = self.emit(self.permute(self.last[expr], _from_last(rank)), expr.name)
        return super().substitute(expr)

    def channels_last(self, expr: ir.Expr) -> ir.Expr:
        """The channels-last version of a value of the old main."""
        if expr not in self.last:
            self.last[expr] = self.emit(self.permute(self.substitute(expr), _to_last(len(shape(expr)))))
        return self.last[expr]

    def prefers_channels_last(self, operands: list[ir.Expr]) -> bool:
        """Whether an operator that can run in both layouts moves less data if it runs channels-last."""
        to_last = from_last = 0
        exists = False
        for expr in operands:
            if not isinstance(expr, relax.Var) or expr in self.weights:
                continue
            exists |= expr in self.last
            extents = shape(expr)
            if permutes_nothing(extents, _to_last(len(extents))):
                continue
            if expr not in self.last:
                to_last += math.prod(extents)
            elif expr not in self.replaced:
                from_last += math.prod(extents)
        return exists and to_last <= from_last

    def broadcast_last(self, expr: ir.Expr, rank: int) -> ir.Expr | None:
        """An operand of an elementwise operator of `rank` axes, channels-last; None if that is not possible."""
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        extents = shape(expr)
        if math.prod(extents) == 1 and len(extents) <= rank:
            return self.emit(self.reshape(self.substitute(expr), ()))
        if len(extents) == rank and isinstance(expr, relax.Var):
            return self.channels_last(expr)
        if len(extents) > rank or not isinstance(expr, relax.Var):
            return None
        full = (1,) * (rank - len(extents)) + extents
        return self.emit(self.permute(self.emit(self.reshape(self.substitute(expr), full)), _to_last(rank)))


def _to_last(rank: int) -> list[int]:
    """Axes that move the channels behind the image: two image axes, or one in a tensor of rank 3."""
    image = 1 if rank == 3 else 2
    return [0, *range(rank - image, rank), *range(1, rank - image)] if rank >= 3 else list(range(rank))


def _from_last(rank: int) -> list[int]:
    to_last = _to_last(rank)
    return [to_last.index(axis) for axis in range(rank)]


# Rules: the channels-last form of a call, or None where it has none or better stays in main's layout.
Rule = Callable[[_ToNHWC, relax.Call], "ir.Expr | None"]


def _conv2d(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    attrs = call.attrs
    data, weight = call.args
    if attrs.data_layout != "NCHW" or attrs.out_layout not in ("", "NCHW"):
        return None
    axes = [attrs.kernel_layout.index(axis) for axis in "OHWI"]
    kernel = rewriter.emit(rewriter.permute(rewriter.substitute(weight), axes))
    return op.nn.conv2d(
        rewriter.channels_last(data), kernel,
        strides=attrs.strides, padding=attrs.padding, dilation=attrs.dilation, groups=attrs.groups,
        data_layout="NHWC", kernel_layout="OHWI", out_dtype=attrs.out_dtype,
    )  # fmt: skip


def _conv2d_transpose(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    """Patches that do not overlap: a 1×1 convolution makes each pixel's patch, a permutation puts it in place."""
    attrs = call.attrs
    data, weight = call.args
    channels, out_channels, height, width = shape(weight)
    plain = (
        (attrs.data_layout, attrs.kernel_layout) == ("NCHW", "IOHW")
        and attrs.out_layout in ("", "NCHW")
        and [int(s) for s in attrs.strides] == [height, width]
        and not any(int(p) for p in (*attrs.padding, *attrs.output_padding))
        and int(attrs.groups) == 1
        and all(int(d) == 1 for d in attrs.dilation)
    )
    if not plain:
        return None
    emit = rewriter.emit
    batch, _, rows, columns = shape(data)
    kernel = emit(rewriter.permute(rewriter.substitute(weight), [2, 3, 1, 0]))
    kernel = emit(rewriter.reshape(kernel, (height * width * out_channels, 1, 1, channels)))
    patches = emit(op.nn.conv2d(rewriter.channels_last(data), kernel, data_layout="NHWC", kernel_layout="OHWI"))
    patches = emit(op.reshape(patches, (batch, rows, columns, height, width, out_channels)))
    placed = emit(rewriter.permute(patches, [0, 1, 3, 2, 4, 5]))
    return rewriter.reshape(placed, (batch, rows * height, columns * width, out_channels))


def _pool(function: Callable) -> Rule:
    def rule(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
        attrs = call.attrs
        if attrs.layout != "NCHW" or attrs.out_layout not in ("", "NCHW"):
            return None
        data = rewriter.channels_last(call.args[0])
        return function(
            data, attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation, attrs.ceil_mode,
            attrs.count_include_pad, layout="NHWC",
        )  # fmt: skip

    return rule


def _adaptive_average(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    attrs = call.attrs
    if attrs.layout != "NCHW" or attrs.out_layout not in ("", "NCHW"):
        return None
    return op.nn.adaptive_avg_pool2d(rewriter.channels_last(call.args[0]), attrs.output_size, layout="NHWC")


def _resize(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
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


def _elementwise(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    if not all(static_tensor(arg) for arg in tensors):
        return None
    rank = max(len(shape(arg)) for arg in tensors)
    if not rewriter.prefers_channels_last([arg for arg in tensors if len(shape(arg)) == rank]):
        return None
    args = [rewriter.broadcast_last(arg, rank) for arg in call.args]
    if any(arg is None for arg in args):
        return None
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _prelu(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    data, slope = call.args
    rank = len(shape(data))
    if not rewriter.prefers_channels_last([data]) or len(shape(slope)) != 1:
        return None
    axis = _to_last(rank).index(int(call.attrs.axis) % rank)
    return op.nn.prelu(rewriter.channels_last(data), rewriter.substitute(slope), axis)


def _softmax(function: Callable) -> Rule:
    def rule(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
        """Over the channels only: kernels want the axis last."""
        (data,) = call.args
        rank = len(shape(data))
        if _to_last(rank)[-1] != int(call.attrs.axis) % rank or not rewriter.prefers_channels_last([data]):
            return None
        return function(rewriter.channels_last(data), rank - 1)

    return rule


def _concat(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or not all(isinstance(part, relax.Var) for part in parts.fields):
        return None
    fields = list(parts.fields)
    if not rewriter.prefers_channels_last(fields):
        return None
    rank = len(shape(fields[0]))
    axis = _to_last(rank).index(int(call.attrs.axis) % rank)
    return op.concat([rewriter.channels_last(part) for part in fields], axis)


def _strided_slice(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    data, axes, *bounds = call.args
    if not rewriter.prefers_channels_last([data]):
        return None
    rank = len(shape(data))
    to_last = _to_last(rank)
    mapped = relax.Tuple([relax.prim_value(to_last.index(int(axis) % rank)) for axis in axes.fields])
    return relax.Call(call.op, [rewriter.channels_last(data), mapped, *bounds], call.attrs, call.ty_args)


def _pad(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    data, attrs = call.args[0], call.attrs
    if not rewriter.prefers_channels_last([data]):
        return None
    width = [int(p) for p in attrs.pad_width]
    moved = [p for axis in _to_last(len(shape(data))) for p in width[2 * axis : 2 * axis + 2]]
    return op.nn.pad(rewriter.channels_last(data), moved, attrs.pad_mode, float(attrs.pad_value))


def _reduction(function: Callable) -> Rule:
    """A reduction that keeps its axes, or drops all those that the layouts have in different order."""

    def rule(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
        data, attrs = call.args[0], call.attrs
        if attrs.axis is None or not rewriter.prefers_channels_last([data]):
            return None
        extents = shape(data)
        to_last = _to_last(len(extents))
        reduced = sorted(to_last.index(int(axis) % len(extents)) for axis in attrs.axis)
        if attrs.keepdims:
            return function(rewriter.channels_last(data), reduced, True)
        kept = [axis for i, axis in enumerate(to_last) if i not in reduced]
        result = tuple(extents[axis] for axis in kept)
        if kept != sorted(kept):
            return None
        rank = len(result)
        plain = rewriter.emit(function(rewriter.channels_last(data), reduced, False))
        return rewriter.permute(plain, _to_last(rank))  # undone where it is read in main's layout

    return rule


def _reshape(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    """Channels regrouped, or the image flattened or restored, at the same number of pixels."""
    data = call.args[0]
    before, after = shape(data), tuple(int(d) for d in call.args[1].values)
    if data not in rewriter.last or not rewriter.prefers_channels_last([data]) or min(len(before), len(after)) < 3:
        return None
    image = [extents[-1:] if len(extents) == 3 else extents[-2:] for extents in (before, after)]
    same_image = image[0] == image[1] or len(before) == 3 or len(after) == 3
    if before[0] != after[0] or math.prod(image[0]) != math.prod(image[1]) or not same_image:
        return None
    return rewriter.reshape(rewriter.channels_last(data), tuple(after[axis] for axis in _to_last(len(after))))


def _permute(rewriter: _ToNHWC, call: relax.Call) -> ir.Expr | None:
    """Channels reordered among themselves, as in a channel shuffle."""
    data, axes = call.args[0], permuted_axes(call)
    rank = len(axes)
    fixed = [0, rank - 2, rank - 1]
    if rank < 4 or [axes[axis] for axis in fixed] != fixed or not rewriter.prefers_channels_last([data]):
        return None
    to_last = _to_last(rank)
    return rewriter.permute(rewriter.channels_last(data), [to_last.index(axes[axis]) for axis in to_last])


_ELEMENTWISE = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "isfinite",
    "isinf", "isnan", "log", "logical_not", "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "square", "tan", "tanh", "trunc", "clip", "astype", "relu", "relu6", "leakyrelu", "gelu", "gelu_tanh", "selu",
    "silu", "softplus", "add", "divide", "floor_divide", "multiply", "power", "subtract", "mod", "floor_mod", "equal",
    "greater", "greater_equal", "less", "less_equal", "not_equal", "maximum", "minimum", "logical_and", "logical_or",
    "logical_xor", "where",
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "conv2d": _conv2d,
    "conv2d_transpose": _conv2d_transpose,
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
