"""Pooling that TVM has no operator for: by norms, and by maximum with the places of the maxima."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, relax, te, tirx
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node

_AVERAGES = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


@dataclass(frozen=True)
class _Windows:
    """Where the windows of a pooling lie in an NCHW image."""

    shape: tuple[int, ...]  # of the result
    image: tuple[int, ...]  # spatial extents
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]  # padding

    @classmethod
    def of(cls, node: Node) -> _Windows:
        axes = len(node.shape) - 2
        if axes not in _AVERAGES:
            raise node.refuse(f"it pools {axes} axes, and up to three can be compiled: reshape its input")
        get = lambda key, default: tuple(int(n) for n in node.attrs.get(key, [default] * axes))  # noqa: E731
        pads = tuple(int(n) for n in node.attrs.get("pads", [0] * (2 * axes)))
        kernel, strides, dilations = get("kernel_shape", 1), get("strides", 1), get("dilations", 1)
        like = relax.Var("like", relax.TensorType(node.shape, "float32"))
        ceil = bool(node.attrs.get("ceil_mode", 0))
        pooled = node.bb.normalize(_AVERAGES[axes](like, kernel, strides, pads, dilations, ceil))
        shape = tuple(int(n) for n in pooled.ty.shape.values)
        return cls(shape, node.shape[2:], kernel, strides, dilations, pads[:axes])

    def taps(self) -> list[tirx.IterVar]:
        return [te.reduce_axis((0, size), f"tap{i}") for i, size in enumerate(self.kernel)]

    def at(self, pixel, taps) -> tuple[list[ir.Expr], ir.Expr]:
        """The place that is read, and whether it lies inside of the image."""
        place = [
            p * s + t * d - b for p, s, t, d, b in zip(pixel, self.strides, taps, self.dilations, self.before, strict=True)
        ]
        inside = [tirx.all(x >= 0, x < n) for x, n in zip(place, self.image, strict=True)]
        return place, tirx.all(*inside)


def _power(node: Node, data: relax.Expr, p: float) -> relax.Expr:
    if p == 1:
        return node.emit(op.abs(data))
    if p == 2:
        return node.emit(op.multiply(data, data))
    return node.emit(op.power(node.emit(op.abs(data)), relax.const(float(p), node.dtype)))


def _root(node: Node, data: relax.Expr, p: float) -> relax.Expr:
    if p == 1:
        return data
    return op.sqrt(data) if p == 2 else op.power(data, relax.const(1 / p, node.dtype))


def _lp_pool(node: Node) -> relax.Expr:
    """The importer multiplies an average by the kernel's size, which windows that stick out do not have."""
    windows, p = _Windows.of(node), node.attrs.get("p", 2)

    def compute(data: te.Tensor) -> te.Tensor:
        taps = windows.taps()

        def element(n, c, *pixel):
            place, inside = windows.at(pixel, taps)
            return te.sum(tirx.if_then_else(inside, data[(n, c, *place)], tirx.const(0, data.dtype)), axis=taps)

        return te.compute(windows.shape, element, name="lp_pool")

    total = node.bb.emit_te(compute, _power(node, node.data, p), primfunc_name_hint="lp_pool")
    return _root(node, total, p)


def _global_lp_pool(node: Node) -> relax.Expr:
    p, axes = node.attrs.get("p", 2), list(range(2, len(node.shape)))
    return _root(node, node.emit(op.sum(_power(node, node.data, p), axes, keepdims=True)), p)


def _max_pool(node: Node) -> relax.Tuple | None:
    """With indices: of the first maximum of each window in the flattened input, the last axes in column order if asked."""
    if node.outputs == 1:
        return None
    windows, by_column = _Windows.of(node), bool(node.attrs.get("storage_order", 0))
    is_float = node.dtype.startswith("float")
    least = tirx.const(float("-inf"), node.dtype) if is_float else tirx.min_value(node.dtype)
    many = math.prod(node.shape)

    def larger(left, right):
        (i, a), (j, b) = left, right
        wins = tirx.any(a > b, tirx.all(a == b, i < j))
        if is_float:  # NaN is the largest, and the first of them stays
            number_a, number_b = tirx.Not(tirx.isnan(a)), tirx.Not(tirx.isnan(b))
            wins = tirx.any(tirx.all(tirx.isnan(a), tirx.any(number_b, i < j)), tirx.all(number_a, number_b, wins))
        return tirx.Select(wins, i, j), tirx.Select(wins, a, b)

    reducer = te.comm_reducer(
        lambda left, right: larger(left, right), lambda _, __: (tirx.const(many, "int64"), least), name="largest"
    )

    def turned(index):
        """The same element's number where the first spatial axis is the fastest."""
        pixels, result, place = math.prod(windows.image), 0, []
        rest = tirx.floormod(index, pixels)
        for extent in reversed(windows.image):
            place.append((tirx.floormod(rest, extent), extent))
            rest = tirx.floordiv(rest, extent)
        for x, extent in place:
            result = result * extent + x
        return index - tirx.floormod(index, pixels) + result

    def compute(data: te.Tensor) -> list[te.Tensor]:
        taps = windows.taps()

        def element(n, c, *pixel):
            place, inside = windows.at(pixel, taps)
            index = (n * node.shape[1] + c).astype("int64")
            for x, extent in zip(place, windows.image, strict=True):
                index = index * extent + x
            value = tirx.if_then_else(inside, data[(n, c, *place)], least)
            return reducer((tirx.if_then_else(inside, index, tirx.const(many, "int64")), value), axis=taps)

        indices, values = te.compute(windows.shape, element, name="max_pool")
        return [values, te.compute(windows.shape, lambda *p: turned(indices(*p)), name="places") if by_column else indices]

    both = node.bb.emit_te(compute, node.data, primfunc_name_hint="max_pool")
    return relax.Tuple([node.emit(relax.TupleGetItem(both, i)) for i in range(2)])


CONVERTERS: dict[str, Converter] = {"GlobalLpPool": _global_lp_pool, "LpPool": _lp_pool, "MaxPool": _max_pool}
