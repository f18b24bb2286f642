"""Operators of which the importer knows nothing: running products, bits taken for another type, reversed sequences, patches."""

from __future__ import annotations

import numpy as np
import tvm
from onnx import helper
from tvm import relax, te, tirx
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, dtype_of, is_float, shape_of


def _running_product(node: Node) -> relax.Expr:
    axis = node.value(1)
    if axis is None:
        raise node.refuse("the axis is computed from the network's inputs; make it a constant")
    axis, backwards = int(axis.item()), bool(node.attrs.get("reverse", 0))
    data = node.emit(op.flip(node.data, axis)) if backwards else node.data
    product = op.cumprod(data, axis, exclusive=bool(node.attrs.get("exclusive", 0)))
    return op.flip(node.emit(product), axis) if backwards else product


def _bit_cast(node: Node) -> relax.Expr:
    target = str(helper.tensor_dtype_to_np_dtype(node.attrs["to"]))
    if "bool" in (node.dtype, target):
        raise node.refuse("kernels keep bool in a byte of their own; cast instead")

    def reinterpreted(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *i: tirx.reinterpret(target, data(*i)), name="bit_cast")

    return node.data if node.dtype == target else node.bb.emit_te(reinterpreted, node.data, primfunc_name_hint="bit_cast")


def _columns_to_image(node: Node) -> relax.Expr:
    """Sums of patches at their places: what the gradient of an im2col is."""
    image, block = node.value(1), node.value(2)
    rank = len(image)
    strides = node.attrs.get("strides") or [1] * rank
    dilations = node.attrs.get("dilations") or [1] * rank
    pads = node.attrs.get("pads") or [0] * (2 * rank)
    counts = [
        (int(size) + pads[a] + pads[rank + a] - dilations[a] * (int(block[a]) - 1) - 1) // strides[a] + 1
        for a, size in enumerate(image)
    ]
    batch, rows, _ = shape_of(node.data)
    taps = int(np.prod(block))
    data = node.emit(op.reshape(node.data, (batch, rows // taps, *(int(b) for b in block), *counts)))

    def scattered(patches: te.Tensor) -> te.Tensor:
        tap = [te.reduce_axis((0, int(b)), f"tap{a}") for a, b in enumerate(block)]

        def value(n: tirx.Var, c: tirx.Var, *at: tirx.Var) -> tvm.ir.PrimExpr:
            offsets = [p + pads[a] - tap[a] * dilations[a] for a, p in enumerate(at)]
            patch = [tirx.floordiv(o, strides[a]) for a, o in enumerate(offsets)]
            inside = [
                tirx.all(o >= 0, tirx.floormod(o, strides[a]) == 0, patch[a] < counts[a]) for a, o in enumerate(offsets)
            ]
            read = patches(n, c, *tap, *patch)
            return te.sum(tirx.if_then_else(tirx.all(*inside), read, tirx.const(0, patches.dtype)), axis=tap)

        return te.compute((batch, rows // taps, *(int(size) for size in image)), value, name="col2im")

    return node.bb.emit_te(scattered, data, primfunc_name_hint="col2im")


def _determinant(node: Node) -> relax.Expr:
    """By Laplace's expansion, for the small matrices of coordinate transforms."""
    *_, rows, columns = node.shape
    if rows != columns or rows > 4 or not is_float(node.data):
        raise node.refuse(f"determinants are computed of up to 4 × 4 floats, not of {rows} × {columns} {dtype_of(node.data)}")

    def determinant(data: te.Tensor) -> te.Tensor:
        def minor(i: tuple, rows_left: list[int], columns_left: list[int]) -> tvm.ir.PrimExpr:
            if len(rows_left) == 1:
                return data(*i, rows_left[0], columns_left[0])
            terms = [
                data(*i, rows_left[0], c) * minor(i, rows_left[1:], [d for d in columns_left if d != c])
                for c in columns_left
            ]
            total = terms[0]
            for k, term in enumerate(terms[1:], 1):
                total = total - term if k % 2 else total + term
            return total

        every = list(range(rows))
        return te.compute(data.shape[:-2], lambda *i: minor(i, every, every), name="det")

    return node.bb.emit_te(determinant, node.data, primfunc_name_hint="det")


CONVERTERS: dict[str, Converter] = {
    "BitCast": _bit_cast,
    "Col2Im": _columns_to_image,
    "CumProd": _running_product,
    "Det": _determinant,
}
