"""Deformable convolutions: their samples by a kernel, then a convolution of 1×1, as every other convolution."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, is_float, shape_of
from flexcomp.schedules.operators import deformable
from flexcomp.schedules.operators.deformable import DeformableSpec

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def _deform_conv(node: Node) -> relax.Expr:
    image, weight, offsets, bias, mask = (node.input(i) for i in range(5))
    spec = _spec(node)
    given = [image, offsets, *([] if mask is None else [mask])]
    last = [node.emit(op.permute_dims(one, _TO_LAST)) for one in given]
    samples = node.call(deformable.kernel(spec), last, operations=spec.flops)
    rows = spec.groups * spec.taps * spec.samples[-1]
    columns = node.emit(op.permute_dims(node.emit(op.reshape(samples, (spec.image[0], *spec.out, rows))), _TO_FIRST))
    filters = shape_of(weight)[0]
    taps = node.emit(op.reshape(node.emit(op.permute_dims(weight, _TO_LAST)), (filters, rows // spec.groups, 1, 1)))
    result = op.nn.conv2d(columns, taps, groups=spec.groups)
    return result if bias is None else op.add(node.emit(result), node.emit(op.reshape(bias, (1, filters, 1, 1))))


def _spec(node: Node) -> DeformableSpec:
    """Raises UnsupportedModelError for inputs that do not fit each other."""
    shapes = [None if node.input(i) is None else shape_of(node.input(i)) for i in range(5)]
    image, weight, offsets, bias, mask = shapes
    if len(image) != 4 or len(weight) != 4:
        raise node.refuse(f"its input has {len(image)} axes, and only images of 4 can be compiled: give it such a one")
    if not is_float(node.data):
        raise node.refuse(f"it interpolates {node.dtype}: cast its input to float32")
    numbers = {name: tuple(node.attrs.get(name, default)) for name, default in
               {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "kernel_shape": weight[2:]}.items()}  # fmt: skip
    groups, offset_groups = int(node.attrs.get("group", 1)), int(node.attrs.get("offset_group", 1))
    channels, filters = image[1], weight[0]
    spans = [(taps - 1) * step + 1 for taps, step in zip(weight[2:], numbers["dilations"], strict=True)]
    pads = numbers["pads"]
    out = tuple((image[2 + i] + pads[i] + pads[2 + i] - spans[i]) // numbers["strides"][i] + 1 for i in range(2))
    spec = DeformableSpec(
        (image[0], *image[2:], channels), out, weight[2:], numbers["strides"], numbers["dilations"], pads[:2], groups,
        offset_groups, mask is not None, node.dtype,
    )  # fmt: skip
    fits = (
        min(groups, offset_groups, *out) > 0
        and numbers["kernel_shape"] == weight[2:]
        and channels % groups == channels % offset_groups == filters % groups == 0
        and weight[1] * groups == channels
        and offsets == tuple(spec.offsets[axis] for axis in _TO_FIRST)
        and bias in (None, (filters,))
        and mask in (None, tuple(spec.masks[axis] for axis in _TO_FIRST))
    )
    if not fits:
        listed = ", ".join(str(list(shape)) for shape in shapes if shape is not None)
        raise node.refuse(f"its inputs {listed} and attributes do not fit each other: correct them")
    return spec


CONVERTERS: dict[str, Converter] = {"DeformConv": _deform_conv}
