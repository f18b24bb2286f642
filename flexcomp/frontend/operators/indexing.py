"""Operators that take indices, and the check of indices that every one of them gets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.errors import ModelError
from flexcomp.frontend.operators.attention import length_bounds
from flexcomp.frontend.operators.caches import write_bounds
from flexcomp.frontend.operators.node import Converter, Node, dtype_of, shape_of
from flexcomp.passes.check_indices import Bounds, check_function, checked_constant, wrapping

_MOST_SAMPLES = 1024  # of a region's bin, on a side: where there are more, a region is no part of an image
_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def check_indices(node: Node) -> None:
    """Replace the input that holds a node's indices by safe ones: known ones are looked at now, others before they are used.

    Raises ModelError for an index that is known and wrong.
    """
    rule = _INDICES.get(node.kind)
    if rule is None:
        return
    at, bounds_of = rule
    given = node.input(at)
    if given is None or not _is_tensor(given) or not _is_tensor(node.data):
        return
    if not node.shape:
        raise node.refuse("its input is a number, and has no axis for indices: give it one")
    node.inputs[at] = safe_indices(node, given, bounds_of(node))


def index_input(kind: str) -> int | None:
    """Which input of such a node holds indices."""
    return _INDICES[kind][0] if kind in _INDICES else None


def safe_indices(node: Node, given: relax.Expr, bounds: Bounds) -> relax.Expr:
    """Indices counted from the start and inside of `bounds`, as integers of 32 or 64 bits."""
    where = f"node {node.name!r} ({node.kind})"
    known = node.value_of(given)
    if known is not None:
        try:
            safe = checked_constant(known, bounds)
        except IndexError as error:
            raise ModelError(f"{where}: {error}") from None
        return given if (known >= 0).all() else relax.const(safe, dtype_of(given))
    var = node.emit(given if dtype_of(given) in ("int32", "int64") else op.astype(given, "int64"))
    given = var
    function = node.bb.add_func(check_function(shape_of(given), dtype_of(given), bounds, where), "indices")
    return node.emit(relax.call_tir(function, [var], relax.TensorType(shape_of(given), dtype_of(given))))


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType)


def _axis(node: Node, default: int = 0) -> int:
    return int(node.attrs.get("axis", default)) % max(len(node.shape), 1)


def _of_axis(node: Node) -> Bounds:
    return wrapping(node.shape[_axis(node)])


def _of_tuples(node: Node) -> Bounds:
    first = int(node.attrs.get("batch_dims", 0))
    return wrapping(*node.shape[first : first + shape_of(node.inputs[1])[-1]])


def _of_unpooled(node: Node) -> Bounds:
    return ((0, math.prod(_unpooled(node))),)


def _of_batch(node: Node) -> Bounds:
    return ((0, node.shape[0]),)


def _of_sequence(node: Node) -> Bounds:
    return ((0, node.shape[int(node.attrs.get("time_axis", 0))] + 1),)


def _of_steps(node: Node) -> Bounds:
    return ((0, node.shape[int(node.attrs.get("layout", 0))] + 1),)


# Operator → the input that holds indices, and their bounds.
_INDICES: dict[str, tuple[int, Callable[[Node], Bounds]]] = {
    "Attention": (6, length_bounds),
    "Gather": (1, _of_axis),
    "GatherElements": (1, _of_axis),
    "GRU": (4, _of_steps),
    "GatherND": (1, _of_tuples),
    "LSTM": (4, _of_steps),
    "MaxUnpool": (1, _of_unpooled),
    "RNN": (4, _of_steps),
    "ReverseSequence": (1, _of_sequence),
    "RoiAlign": (2, _of_batch),
    "Scatter": (1, _of_axis),
    "ScatterElements": (1, _of_axis),
    "ScatterND": (1, _of_tuples),
    "TensorScatter": (2, write_bounds),
}


def _gather(node: Node) -> relax.Expr | None:
    given = node.inputs[1]
    if not _is_tensor(node.data) or not _is_tensor(given):
        return None  # of a shape
    return op.take(node.data, given, _axis(node), mode="clip")


def _gather_elements(node: Node) -> relax.Expr:
    _require_smaller(node)
    return op.gather_elements(node.data, node.inputs[1], _axis(node))


def _gather_nd(node: Node) -> relax.Expr:
    return op.gather_nd(node.data, node.inputs[1], int(node.attrs.get("batch_dims", 0)))


def _scatter_elements(node: Node) -> relax.Expr:
    _require_smaller(node)
    data, indices, updates = node.inputs[:3]
    return op.scatter_elements(data, indices, updates, _axis(node), _reduction(node))


def _scatter_nd(node: Node) -> relax.Expr:
    data, indices, updates = node.inputs[:3]
    return op.scatter_nd(data, indices, updates, _reduction(node))


def _reduction(node: Node) -> str:
    return _REDUCTIONS[node.text("reduction", "none")]


def _require_smaller(node: Node) -> None:
    """Positions of the indices are positions of the data, too, on every axis but one."""
    data, indices, axis = node.shape, shape_of(node.inputs[1]), _axis(node)
    if len(data) != len(indices) or any(i > d for a, (i, d) in enumerate(zip(indices, data, strict=True)) if a != axis):
        raise ModelError(
            f"node {node.name!r} ({node.kind}): indices of shape {list(indices)} reach outside of data of shape {list(data)}"
        )


def _unpooled(node: Node) -> tuple[int, ...]:
    """The shape of what was pooled: indices count in it."""
    kernel = [int(size) for size in node.attrs["kernel_shape"]]
    strides = [int(stride) for stride in node.attrs.get("strides", [1] * len(kernel))]
    pads = [int(pad) for pad in node.attrs.get("pads", [0] * 2 * len(kernel))]
    size = [
        (extent - 1) * stride + length - before - after
        for extent, stride, length, before, after in zip(
            node.shape[2:], strides, kernel, pads[: len(kernel)], pads[len(kernel) :], strict=True
        )
    ]
    return (*node.shape[:2], *size)


def _max_unpool(node: Node) -> relax.Expr:
    """What was not the largest is 0; an output that is larger than what was pooled is so at the end of its axes."""
    inner, outer = _unpooled(node), node.value(2)
    zeros = node.emit(op.zeros((math.prod(inner),), node.dtype))
    flat = [node.emit(op.reshape(given, (-1,))) for given in (node.inputs[1], node.data)]
    pooled = node.emit(op.reshape(node.emit(op.scatter_elements(zeros, *flat, 0)), inner))
    if outer is None or tuple(outer) == inner:
        return pooled
    missing = np.asarray(outer, "int64") - inner
    if (missing < 0).any():
        raise node.refuse(f"output_shape {list(map(int, outer))} is smaller than what was pooled, {list(inner)}")
    return op.nn.pad(pooled, [int(width) for after in missing for width in (0, after)], "constant", 0.0)


def _roi_align(node: Node) -> relax.Expr:
    """Regions are scaled and moved first.

    Without a sampling ratio larger regions have more samples. Those of no size, or NaN, have none, of which TVM's kernel
    makes nothing and ONNX 0; those with too many to be part of any image are refused at run time.
    """
    attrs, regions, kind = node.attrs, node.inputs[1], dtype_of(node.inputs[1])
    transformation = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    if node.text("mode", "avg") != "avg":
        raise node.refuse(
            "mode max: ONNX's text takes the largest sample, its reference implementation the largest part of a sample; use avg"
        )
    aligned, ratio = transformation == "half_pixel", int(attrs.get("sampling_ratio", 0))
    pooled = (int(attrs.get("output_height", 1)), int(attrs.get("output_width", 1)))
    corners = node.emit(op.multiply(regions, relax.const(attrs.get("spatial_scale", 1.0), kind)))
    if aligned:
        corners = node.emit(op.subtract(corners, relax.const(0.5, kind)))
    valid = None
    if not ratio:
        valid = _have_samples(node, corners, aligned, pooled)
        corners = node.emit(op.where(valid, corners, relax.const(0.0, kind)))
    images = node.emit(op.astype(node.emit(op.expand_dims(node.inputs[2], 1)), kind))
    found = op.vision.roi_align(
        node.data, node.emit(op.concat([images, corners], 1)), pooled, 1.0, ratio, aligned, "NCHW", "avg"
    )  # fmt: skip
    if valid is None:
        return found
    valid = node.emit(op.reshape(valid, (shape_of(regions)[0], 1, 1, 1)))
    return op.where(valid, node.emit(found), relax.const(0.0, node.dtype))


def _have_samples(node: Node, corners: relax.Expr, aligned: bool, pooled: tuple[int, int]) -> relax.Expr:
    """Which regions have any, bool[regions, 1]; too many on a side are an error before they are taken."""
    kind = dtype_of(corners)
    begin, end = (node.emit(op.strided_slice(corners, [1], [at], [at + 2])) for at in (0, 2))
    sides = node.emit(op.subtract(end, begin))
    pixels = node.emit(op.maximum(node.emit(op.astype(sides, "int32")), relax.const(0, "int32")))
    checked = safe_indices(node, pixels, ((0, _MOST_SAMPLES * max(pooled)),))
    some = op.greater(sides, relax.const(0.0, kind)) if aligned else op.logical_not(node.emit(op.isnan(sides)))
    some = node.emit(op.logical_and(node.emit(some), node.emit(op.greater_equal(checked, relax.const(0, "int32")))))
    width, height = (node.emit(op.strided_slice(some, [1], [at], [at + 1])) for at in (0, 1))
    return node.emit(op.logical_and(width, height))


def _max_roi_pool(node: Node) -> None:
    """Regions begin with the number of their image, as a float."""
    regions = node.inputs[1]
    numbers = node.emit(op.astype(node.emit(op.strided_slice(regions, [1], [0], [1])), "int32"))
    safe = node.emit(op.astype(safe_indices(node, numbers, _of_batch(node)), dtype_of(regions)))
    corners = node.emit(op.strided_slice(regions, [1], [1], [5]))
    node.inputs[1] = node.emit(op.concat([safe, corners], 1))


def _reverse_sequence(node: Node) -> relax.Expr:
    time, batch = int(node.attrs.get("time_axis", 0)), int(node.attrs.get("batch_axis", 1))
    return op.reverse_sequence(node.data, node.inputs[1], time, batch)


CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "MaxRoiPool": _max_roi_pool,
    "MaxUnpool": _max_unpool,
    "ReverseSequence": _reverse_sequence,
    "RoiAlign": _roi_align,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
