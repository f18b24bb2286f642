"""Caches of a fixed capacity, into which rows are written from an index on."""

from __future__ import annotations

import numpy as np
from tvm import relax

from flexcomp.frontend.operators.node import Converter, Node, shape_of
from flexcomp.passes.check_indices import Bounds
from flexcomp.passes.narrow_states import writing_kernel
from flexcomp.schedules.operators import scatter_rows

_FAR = 2**62  # beyond what anybody counts to; sums of it and a few rows are no overflow


def write_bounds(node: Node) -> Bounds:
    """Where TensorScatter may begin to write: so that all its rows are in the cache, or anywhere if it is circular."""
    axis = _axis(node)
    room = node.shape[axis] - shape_of(node.inputs[1])[axis] + 1
    return ((0, _FAR if _is_circular(node) else max(room, 1)),)


def _axis(node: Node) -> int:
    axis, rank = int(node.attrs.get("axis", -2)), len(node.shape)
    if not -rank <= axis < rank:
        raise node.refuse(f"there is no axis {axis} in a cache of {node.shape}")
    return axis % rank


def _is_circular(node: Node) -> bool:
    return node.text("mode", "linear") == "circular"


def _tensor_scatter(node: Node) -> relax.Expr:
    past, update = node.inputs[:2]
    axis, shapes = _axis(node), (node.shape, shape_of(update))
    others = [tuple(extent for i, extent in enumerate(one) if i != axis) for one in shapes]
    if axis == 0 or others[0] != others[1] or shapes[1][axis] > shapes[0][axis]:
        raise node.refuse(
            f"an update of {shapes[1]} does not fit a cache of {shapes[0]} along axis {axis}: they must agree in all other axes, "
            "of which the first is the batch"
        )
    if not np.prod(shapes[1]):
        return past
    at = node.input(2)
    if at is not None and shape_of(at) != (shapes[0][0],):
        raise node.refuse(f"write indices of {shape_of(at)}: one for each of the batch is needed, {(shapes[0][0],)}")
    spec = scatter_rows.spec_of(*shapes, axis, node.dtype, _is_circular(node))
    at = relax.const(np.zeros(spec.batch, "int64"), "int64") if at is None else at
    function = writing_kernel(spec, shapes)
    operands = [node.emit(one) for one in (past, update, at)]
    return relax.call_tir(node.bb.add_func(function, "tensor_scatter"), operands, relax.TensorType(node.shape, node.dtype))


CONVERTERS: dict[str, Converter] = {"TensorScatter": _tensor_scatter}
