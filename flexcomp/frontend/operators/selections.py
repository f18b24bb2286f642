"""Operators that write few values at chosen places, and those that run along an axis."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te, tirx
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, dtype_of, is_float, shape_of


def _one_hot(node: Node) -> relax.Expr:
    """Indices outside of [-depth, depth) choose nothing."""
    indices, values, rank = node.data, node.inputs[2], node.data.ty.ndim
    depth = node.value(1)
    if depth is None:
        raise node.refuse("its depth is computed, and shapes must be known: make it a constant of the model")
    depth, axis = int(depth.item()), node.attrs.get("axis", -1) % (rank + 1)
    # A depth that the index type cannot hold must not wrap around; fractions choose nothing.
    wide = "float64" if is_float(indices) else "int64"
    chosen = node.emit(op.astype(indices, wide))
    from_end = node.emit(op.add(chosen, relax.const(depth, wide)))
    chosen = node.emit(op.where(op.less(chosen, relax.const(0, wide)), from_end, chosen))
    places = np.arange(depth).astype(wide).reshape([-1 if i == axis else 1 for i in range(rank + 1)])
    is_chosen = node.emit(op.equal(node.emit(op.expand_dims(chosen, axis)), relax.const(places, wide)))
    off, on = (
        node.emit(op.reshape(op.strided_slice(values, [0], [i], [i + 1]), (1,) * (rank + 1))) for i in (0, 1)
    )  # fmt: skip
    return op.where(is_chosen, on, off)


def _eye_like(node: Node) -> relax.Expr:
    """Depends on the input's shape alone."""
    wanted = node.attrs.get("dtype")
    kind = node.dtype if wanted is None else str(helper.tensor_dtype_to_np_dtype(wanted))
    return relax.const(np.eye(*node.shape, k=node.attrs.get("k", 0)), kind)


def _bit_cast(node: Node) -> relax.Expr:
    kind = str(helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    if node.attrs["to"] == TensorProto.BOOL or node.dtype == "bool":
        return op.astype(node.data, kind)  # a boolean is a byte that is 0 or 1

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *i: tirx.reinterpret(kind, data(*i)), name="bit_cast")

    return node.bb.emit_te(compute, node.data, primfunc_name_hint="bit_cast")


def _cumulative_product(node: Node) -> relax.Expr:
    """Products of all elements up to each, in log2(n) steps: each multiplies by what lies 1, 2, 4, … before."""
    axis = node.value(1)
    if axis is None:
        raise node.refuse("its axis is computed: make it a constant of the model")
    axis, data = int(axis.item()) % node.data.ty.ndim, node.data
    count, is_reverse = node.shape[axis], bool(node.attrs.get("reverse", 0))

    def shifted(data: relax.Expr, by: int) -> relax.Expr:
        extents = [by if i == axis else n for i, n in enumerate(shape_of(data))]
        ones = relax.const(np.ones(extents), dtype_of(data))
        if by == count:
            return ones
        kept = (by, count) if is_reverse else (0, count - by)
        kept = node.emit(op.strided_slice(data, [axis], [kept[0]], [kept[1]]))
        return node.emit(op.concat([kept, ones] if is_reverse else [ones, kept], axis))

    if node.attrs.get("exclusive", 0):
        data = shifted(data, 1)
    step = 1
    while step < count:
        data = node.emit(op.multiply(data, shifted(data, step)))
        step *= 2
    return data


CONVERTERS: dict[str, Converter] = {
    "BitCast": _bit_cast,
    "CumProd": _cumulative_product,
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
}
