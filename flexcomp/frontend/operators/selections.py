"""Operators that write few values at chosen places."""

from __future__ import annotations

import numpy as np
from onnx import helper
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node


def _one_hot(node: Node) -> relax.Expr:
    """Indices outside of [-depth, depth) choose nothing."""
    indices, values, rank = node.data, node.inputs[2], node.data.ty.ndim
    depth, axis = int(node.value(1).item()), node.attrs.get("axis", -1) % (rank + 1)
    wide = "int64"  # a depth that the index type cannot hold must not wrap around; fractions are cut off
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


def _top_k(node: Node) -> None:
    wanted = int(node.value(1).item()) if node.opset >= 10 else int(node.attrs["k"])
    extent = node.shape[int(node.attrs.get("axis", -1))]
    if not 0 <= wanted <= extent:
        raise node.refuse(f"its k is {wanted}, and the axis has {extent} elements: make it smaller")


def _trilu(node: Node) -> relax.Expr | None:
    """A diagonal far outside of the matrix is as good as the one next to it. TVM converts those that are computed."""
    diagonal, (rows, columns) = node.value(1), node.shape[-2:]
    if diagonal is None and node.input(1) is not None:
        return None
    k = 0 if diagonal is None else max(-rows, min(columns, int(diagonal.item())))
    return (op.triu if node.attrs.get("upper", 1) else op.tril)(node.data, k)


CONVERTERS: dict[str, Converter] = {"EyeLike": _eye_like, "OneHot": _one_hot, "TopK": _top_k, "Trilu": _trilu}
