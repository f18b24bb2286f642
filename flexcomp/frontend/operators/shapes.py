"""Operators that change a tensor's shape."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node

_MOST_RANGE_NBYTES = 1 << 30


def _expand(node: Node) -> relax.Expr:
    """The importer takes a shape that is a weight for one that is computed."""
    shape = np.broadcast_shapes(node.shape, tuple(int(d) for d in node.value(1)))
    return node.data if shape == node.shape else op.broadcast_to(node.data, shape)


def _unsqueeze(node: Node) -> relax.Expr | None:
    """ONNX's own function bodies give a single axis as a scalar, which the importer does not take."""
    axes = node.value(1)
    if axes is None or axes.ndim:
        return None
    return op.expand_dims(node.data, int(axes))


def _split(node: Node) -> relax.Expr:
    """Where no sizes are given, the last part may be smaller. The importer makes a tuple of a single part."""
    axis = int(node.attrs.get("axis", 0)) % max(len(node.shape), 1)
    extent = node.shape[axis]
    sizes = node.value(1) if node.opset >= 13 else node.attrs.get("split")
    if sizes is None:
        part = -(-extent // node.outputs)
        sizes = [part] * (node.outputs - 1) + [extent - part * (node.outputs - 1)]
    if len(sizes) != node.outputs or sum(sizes) != extent or min(sizes) < 0:
        raise node.refuse(f"{node.outputs} parts of {list(map(int, sizes))} are not the {extent} of axis {axis}: correct them")
    ends = np.cumsum(sizes)[:-1].tolist()
    return op.split(node.data, ends, axis) if ends else node.data


def _tile(node: Node) -> relax.Expr | None:
    """Copies of an axis of one element are a broadcast."""
    repeats = node.value(1)
    if node.opset < 6 or repeats is None or len(repeats) != len(node.shape) or 0 in repeats:
        return None
    copies = [int(count) for count in repeats]
    if any(count != 1 and extent != 1 for count, extent in zip(copies, node.shape, strict=True)):
        return op.tile(node.data, copies)
    shape = tuple(count * extent for count, extent in zip(copies, node.shape, strict=True))
    return node.data if shape == node.shape else op.broadcast_to(node.data, shape)


def _constant_of_shape(node: Node) -> relax.Expr | None:
    """A broadcast of one number; of a shape with one axis the importer makes an array."""
    shape = node.value(0)
    if shape is None or not len(shape):
        return None
    value = node.attrs.get("value")
    number = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
    return op.broadcast_to(relax.const(number.reshape(()), str(number.dtype)), tuple(int(extent) for extent in shape))


def range_excess(first: np.ndarray, end: np.ndarray, step: np.ndarray) -> str | None:
    """The reason why a Range is too long, if it is."""
    count = (float(end.item()) - float(first.item())) / (float(step.item()) or 1.0)
    if count * end.itemsize > _MOST_RANGE_NBYTES:
        return f"it counts to {count:,.0f}, more than a build holds: make it an input of the network"
    return None


def _range(node: Node) -> None:
    """The importer makes a constant, which a build holds in memory."""
    first, end, step = (node.value(i) for i in range(3))
    if first is None or end is None or step is None:
        return
    if reason := range_excess(first, end, step):
        raise node.refuse(reason)


CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Range": _range,
    "Split": _split,
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
}
