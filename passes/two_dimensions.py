"""Convolutions along one axis or three as convolutions of images, for which there are kernels."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import dtype, operator, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter
from .transposed import Axis, Phases, joined, taken


@module_pass(opt_level=0)
class ToTwoDimensions:
    """Replace convolutions of one and three spatial axes.

    y = conv1d(x, w)   x (n, c, l)          →   an image of one row: reshape, conv2d with a kernel of 1 × k, reshape
    y = conv1d_transpose(x, w)              →   likewise

    y = conv3d(x, w)   x (n, c, d, h, w)    →   p = for each plane of the kernel the planes of x that meet this one, as channels
                                                y = conv2d of n · d images with kd · c channels each
    y = conv3d_transpose(x, w)              →   likewise conv2d_transpose, of which the s planes that follow each other in the
                                                result are channels for a stride of s, and a permutation

    Sums are over the same products.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        names = {operator(binding.value) for block in mod["main"].body.blocks for binding in block.bindings}
        return _Rewriter(mod).rewrite() if names & _RULES.keys() else mod


class _Rewriter(MainRewriter):
    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        rule = _RULES.get(operator(value))
        if rule is None or not all(static_tensor(arg) for arg in value.args):
            return self.substitute(value)
        found = rule(self, self.substitute(value), shape(var))
        return self.substitute(value) if found is None else found


def _conv1d(rewriter: _Rewriter, call: relax.Call, result: tuple[int, ...]) -> ir.Expr | None:
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) not in (("NCW", "OIW", ""), ("NCW", "OIW", "NCW")):
        return None
    data, weight = (rewriter.emit(_with_a_row(rewriter, arg)) for arg in call.args)
    left, right = (int(p) for p in attrs.padding)
    image = op.nn.conv2d(
        data, weight,
        strides=(1, int(attrs.strides[0])), padding=(0, left, 0, right), dilation=(1, int(attrs.dilation[0])),
        groups=attrs.groups, out_dtype=attrs.out_dtype,
    )  # fmt: skip
    return rewriter.reshape(rewriter.emit(image), result)


def _conv1d_transpose(rewriter: _Rewriter, call: relax.Call, result: tuple[int, ...]) -> ir.Expr | None:
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) not in (("NCW", "IOW", ""), ("NCW", "IOW", "NCW")):
        return None
    data, weight = (rewriter.emit(_with_a_row(rewriter, arg)) for arg in call.args)
    left, right = (int(p) for p in attrs.padding)
    image = op.nn.conv2d_transpose(
        data, weight,
        strides=(1, int(attrs.strides[0])), padding=(0, left, 0, right), dilation=(1, int(attrs.dilation[0])),
        output_padding=(0, int(attrs.output_padding[0])), groups=attrs.groups, out_dtype=attrs.out_dtype,
    )  # fmt: skip
    return rewriter.reshape(rewriter.emit(image), result)


def _with_a_row(rewriter: _Rewriter, value: ir.Expr) -> ir.Expr:
    """(a, b, l) as (a, b, 1, l)."""
    first, second, length = shape(value)
    return rewriter.reshape(value, (first, second, 1, length))


def _conv3d(rewriter: _Rewriter, call: relax.Call, result: tuple[int, ...]) -> ir.Expr | None:
    attrs, emit = call.attrs, rewriter.emit
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) not in (("NCDHW", "OIDHW", ""), ("NCDHW", "OIDHW", "NCDHW")):
        return None
    data, weight = call.args
    front, top, left, back, bottom, right = (int(p) for p in attrs.padding)
    step, *strides = (int(s) for s in attrs.strides)
    apart, *dilation = (int(d) for d in attrs.dilation)
    groups = int(attrs.groups)
    if front or back:
        data = emit(op.nn.pad(data, (0, 0, 0, 0, front, back, 0, 0, 0, 0)))
    batch, channels, _, height, width = shape(data)
    out_channels, per_group, planes, *kernel = shape(weight)
    _, _, depth, out_height, out_width = result

    def met(plane: int) -> ir.Expr:
        """The planes of the input that a plane of the kernel meets."""
        first = plane * apart
        if shape(data)[2] == depth and step == 1 and not first:
            return data
        return emit(op.strided_slice(data, [2], [first], [first + (depth - 1) * step + 1], [step]))

    own = (batch, groups, 1, per_group, depth, height, width)
    parts = [emit(rewriter.reshape(met(plane), own)) for plane in range(planes)]
    joined = emit(op.concat(parts, axis=2)) if planes > 1 else parts[0]
    images = emit(rewriter.permute(joined, [0, 4, 1, 2, 3, 5, 6]))
    images = emit(rewriter.reshape(images, (batch * depth, planes * channels, height, width)))
    flat = emit(rewriter.permute(weight, [0, 2, 1, 3, 4]))
    flat = emit(rewriter.reshape(flat, (out_channels, planes * per_group, *kernel)))
    found = emit(
        op.nn.conv2d(
            images, flat, strides=strides, padding=(top, left, bottom, right), dilation=dilation, groups=groups,
            out_dtype=attrs.out_dtype,
        )
    )  # fmt: skip
    found = emit(rewriter.reshape(found, (batch, depth, out_channels, out_height, out_width)))
    return rewriter.permute(found, [0, 2, 1, 3, 4])


def _conv3d_transpose(rewriter: _Rewriter, call: relax.Call, result: tuple[int, ...]) -> ir.Expr | None:
    attrs, emit = call.attrs, rewriter.emit
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) not in (("NCDHW", "IODHW", ""), ("NCDHW", "IODHW", "NCDHW")):
        return None
    data, weight = call.args
    apart, *dilation = (int(d) for d in attrs.dilation)
    batch, channels, size, height, width = shape(data)
    _, per_group, planes, *kernel = shape(weight)
    _, out_channels, depth, out_height, out_width = result
    front, top, left, _, bottom, right = (int(p) for p in attrs.padding)
    step, *strides = (int(s) for s in attrs.strides)
    groups = int(attrs.groups)
    axis = Axis(size, depth, planes, step, apart, front)
    within, image = channels // groups, (batch, axis.patches, groups)

    def computed(phases: Phases) -> ir.Expr:
        """The patches of some phases: (batch, patch, group, phase, channel, y, x)."""
        if not phases.taps:
            return emit(op.zeros((*image, phases.count, per_group, out_height, out_width), dtype(data)))
        before, after = axis.padding(phases)
        padded = data
        if max(before, after) > 0:
            padded = emit(op.nn.pad(data, (0, 0, 0, 0, max(before, 0), max(after, 0), 0, 0, 0, 0)))

        def met(tap: int) -> ir.Expr:
            first = tap * axis.apart + max(-before, 0)
            if shape(padded)[2] == axis.patches:
                return padded
            return emit(op.strided_slice(padded, [2], [first], [first + axis.patches]))

        own = (batch, groups, 1, within, axis.patches, height, width)
        parts = [emit(rewriter.reshape(met(tap), own)) for tap in range(phases.taps)]
        images = emit(rewriter.permute(joined(emit, parts, 2), [0, 4, 1, 2, 3, 5, 6]))
        images = emit(rewriter.reshape(images, (batch * axis.patches, phases.taps * channels, height, width)))
        cut = (groups, within, per_group, phases.count, phases.taps, *kernel)
        flat = emit(rewriter.reshape(taken(rewriter, weight, phases, 2), cut))
        flat = emit(rewriter.permute(flat, [0, 4, 1, 3, 2, 5, 6]))
        flat = emit(rewriter.reshape(flat, (phases.taps * channels, phases.count * per_group, *kernel)))
        found = emit(
            op.nn.conv2d_transpose(
                images, flat, strides=strides, padding=(top, left, bottom, right), dilation=dilation, groups=groups,
                output_padding=[int(more) for more in attrs.output_padding][1:], out_dtype=attrs.out_dtype,
            )
        )  # fmt: skip
        return emit(rewriter.reshape(found, (*image, phases.count, per_group, out_height, out_width)))

    found = joined(emit, [computed(phases) for phases in axis.phases()], 3)
    placed = emit(rewriter.permute(found, [0, 2, 4, 1, 3, 5, 6]))
    whole = emit(rewriter.reshape(placed, (batch, out_channels, axis.patches * step, out_height, out_width)))
    start = axis.start - axis.first * step
    if shape(whole)[2] == depth:
        return whole
    return op.strided_slice(whole, [2], [start], [start + depth])


_RULES: dict[str, Callable] = {
    "conv1d": _conv1d,
    "conv1d_transpose": _conv1d_transpose,
    "conv3d": _conv3d,
    "conv3d_transpose": _conv3d_transpose,
}
