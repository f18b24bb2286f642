"""Resize and Upsample of every opset, by the matrices of `resampling`."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, te
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, dtype_of, is_float
from flexcomp.frontend.operators.resampling import COORDINATES, NEAREST, Resampling

_WAY_OUT = "make it a constant of the model"
# What TVM's kernel for images computes in the same way, up to rounding.
_TVM_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _resize(node: Node) -> relax.Expr:
    mode, coordinates = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    nearest = node.text("nearest_mode", "round_prefer_floor")
    if node.opset < 11:
        coordinates, nearest = "asymmetric", "simple"
    if mode not in ("nearest", "linear", "cubic") or coordinates not in COORDINATES or nearest not in NEAREST:
        raise node.refuse(f"{mode}, {coordinates}, {nearest} is no way to resize that ONNX knows: correct its attributes")
    scales, sizes, axes, region = _factors(node, coordinates)
    settings = {
        "coordinates": coordinates, "mode": mode, "nearest": nearest, "cubic": node.attrs.get("cubic_coeff_a", -0.75),
        "exclude_outside": bool(node.attrs.get("exclude_outside", 0)), "antialias": bool(node.attrs.get("antialias", 0)),
    }  # fmt: skip
    plan = [Resampling(n, n, 1.0, mode=mode) for n in node.shape]
    for axis, scale, size, part in zip(axes, scales, sizes, region, strict=True):
        plan[axis] = Resampling(node.shape[axis], size, float(scale), **settings, region=part)
    return _resample(node, plan, node.attrs.get("extrapolation_value", 0.0))


def _upsample(node: Node) -> relax.Expr:
    """Upsample of opsets 1 to 9: what Resize was in opset 10."""
    mode = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}.get(node.text("mode", "nearest"))
    if node.opset >= 9:
        scales = node.value(1)
    elif node.opset >= 7:
        scales = node.attrs.get("scales")
    else:
        scales = (1.0, 1.0, node.attrs.get("height_scale", 1.0), node.attrs.get("width_scale", 1.0))
    if mode is None or scales is None or len(scales) != len(node.shape):
        raise node.refuse(f"its scales are computed or do not fit the input, or its mode is unknown: {_WAY_OUT}")
    plan = [
        Resampling(n, math.floor(np.float32(n) * np.float32(scale)), float(scale), "asymmetric", mode, "simple")
        for n, scale in zip(node.shape, scales, strict=True)
    ]
    return _resample(node, plan, 0.0)


def _factors(node: Node, coordinates: str) -> tuple[list[float], list[int], list[int], list[tuple[float, float]]]:
    """Scale, size of the result, axis, and region of the input, for every axis that is named."""
    rank = len(node.shape)
    axes = [axis % rank for axis in node.attrs.get("axes", range(rank))]
    lengths = [node.shape[axis] for axis in axes]
    first = 1 if node.opset < 11 else 2
    for i, what in ((first, "scale"), (3, "size"), (1, "region")):
        is_read = (i == first or node.opset >= 11) and (what != "region" or coordinates == "tf_crop_and_resize")
        if is_read and node.input(i) is not None and node.value(i) is None:
            raise node.refuse(f"its {what} is computed, and shapes must be known: {_WAY_OUT}")
    region = [(0.0, 1.0)] * len(axes)
    if coordinates == "tf_crop_and_resize":
        given = node.value(1)
        if given is None or given.size != 2 * len(axes):
            raise node.refuse("tf_crop_and_resize needs a region (roi) of a start and an end for every axis: add it")
        region = [(float(a), float(b)) for a, b in given.reshape(2, -1).T]
    scales, sizes = node.value(first), node.value(3) if first == 2 else None
    if scales is not None and scales.size:
        scales = scales.astype("f4")
        if scales.size != len(axes) or (scales <= 0).any():
            raise node.refuse(f"its scales {scales.tolist()} do not fit {len(axes)} axes: correct them")
        sizes = np.floor(np.array(lengths, "f4") * scales).astype(int)
    elif sizes is not None and sizes.size == len(axes):
        scales = sizes.astype("f4") / np.array(lengths, "f4")
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = scales.min() if policy == "not_larger" else scales.max()
            scales = np.full_like(scales, scale)
            sizes = np.floor(scale * np.array(lengths, "f4") + np.float32(0.5)).astype(int)
    else:
        raise node.refuse(f"it has neither scales nor sizes for {len(axes)} axes: add them")
    if min(sizes) < 1:
        raise node.refuse(f"its result has no elements (sizes {[int(n) for n in sizes]}): remove it from the model")
    whole = np.abs(scales * np.array(lengths, "f4") - sizes) <= 1e-5 * sizes
    one = (sizes == 1) | (np.array(lengths) == 1)
    if coordinates == "align_corners" and not (whole | one).all():
        raise node.refuse(
            f"align_corners with scales {scales.tolist()} of {lengths} elements: ONNX's text and its reference implementation "
            "differ where their products are not whole; give sizes instead"
        )
    return [float(s) for s in scales], [int(n) for n in sizes], axes, region


def _resample(node: Node, plan: list[Resampling], extrapolation: float) -> relax.Expr:
    data = node.data
    changed = [axis for axis, of in enumerate(plan) if not of.is_identity]
    if not changed:
        return data
    if _by_tvm(node, plan):
        return _image(data, plan)
    if plan[changed[0]].mode != "nearest" and not is_float(data):
        raise node.refuse(f"it interpolates {node.dtype}: cast its input to a float type and its result back")
    for axis in sorted(changed, key=lambda axis: plan[axis].resized / plan[axis].size):
        data = _along(node, data, axis, plan[axis])
    for axis in changed:
        outside = plan[axis].outside()
        if outside.any():
            shape = [-1 if i == axis else 1 for i in range(len(plan))]
            fill = relax.const(extrapolation, dtype_of(data))
            data = node.emit(op.where(relax.const(outside.reshape(shape)), fill, data))
    return data


def _along(node: Node, data: relax.Expr, axis: int, of: Resampling) -> relax.Expr:
    """The tensor with one axis resized."""
    if of.mode == "nearest":
        return node.emit(op.take(data, relax.const(of.nearest_pixels()), axis, mode="clip"))
    pixels, weights = _taps(of.matrix())
    weights = relax.const(weights, dtype_of(data))
    return node.bb.emit_te(_weighted_sums, data, relax.const(pixels), weights, axis, primfunc_name_hint="resize")


def _taps(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The non-zero weights of every row, and where they stand; short rows repeat a pixel of theirs with weight 0."""
    used = matrix != 0
    count = used.sum(axis=1).max()
    order = np.argsort(~used, axis=1, kind="stable")[:, :count]
    weights = np.take_along_axis(matrix, order, axis=1)
    pixels = np.where(weights != 0, order, order[:, :1])
    return pixels.astype("i8"), weights


def _weighted_sums(data: te.Tensor, pixels: te.Tensor, weights: te.Tensor, axis: int) -> te.Tensor:
    """Along `axis`, result i is the sum over k of weights[i, k] · data[pixels[i, k]]."""
    resized, count = (int(n) for n in pixels.shape)
    tap = te.reduce_axis((0, count), "tap")
    shape = [resized if i == axis else n for i, n in enumerate(data.shape)]

    def value(*place):
        row = place[axis]
        read = [pixels[row, tap] if i == axis else p for i, p in enumerate(place)]
        return te.sum(data[tuple(read)] * weights[row, tap], axis=tap)

    return te.compute(shape, value, name="resize")


def _by_tvm(node: Node, plan: list[Resampling]) -> bool:
    """Whether TVM's kernel, which knows images only and takes the ratio of sizes for the scale, computes the same."""
    if len(plan) != 4 or node.dtype != "float32" or not (plan[0].is_identity and plan[1].is_identity):
        return False
    rows, columns = (of for of in plan[2:])
    for of in (rows, columns):
        exact = abs(of.scale * of.size - of.resized) <= 1e-6 * of.resized
        if not exact or of.antialias or of.coordinates not in _TVM_COORDINATES or min(of.size, of.resized) == 1:
            return False
        # Where coordinates are binary fractions no rounding can take another pixel.
        if of.mode == "nearest" and (math.frexp(of.scale)[0] != 0.5 or of.coordinates == "align_corners"):
            return False
        if of.mode == "nearest" and of.nearest == "simple" and of.scale < 1:
            return False
    return rows.mode in ("nearest", "linear")


def _image(data: relax.Expr, plan: list[Resampling]) -> relax.Expr:
    rows, columns = plan[2:]
    coordinates = {of.coordinates for of in (rows, columns) if not of.is_identity}.pop()
    return op.image.resize2d(
        data, size=relax.ShapeExpr([rows.resized, columns.resized]), layout="NCHW",
        method="linear" if rows.mode == "linear" else "nearest_neighbor", coordinate_transformation_mode=coordinates,
        rounding_method="floor" if rows.nearest == "simple" else rows.nearest,
    )  # fmt: skip


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
