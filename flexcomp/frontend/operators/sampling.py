"""GridSample, as sums over the pixels around each point.

TVM writes every one of them out, with all that finds its place: minutes of compiling where padding reflects.
"""

from __future__ import annotations

import math

from tvm import ir, relax, te, tirx

from flexcomp.frontend.operators.node import Converter, Node, is_float, shape_of

_MODES = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}  # → pixels along an axis
_PADDINGS = ("zeros", "border", "reflection")
_FAR = float(2**24)  # pixels; float32 does not tell those beyond apart
_A = -0.75  # of the cubic polynomials


def _grid_sample(node: Node) -> relax.Expr:
    mode = node.text("mode", "linear" if node.opset >= 20 else "bilinear")
    padding, grid = node.text("padding_mode", "zeros"), node.inputs[1]
    if mode not in _MODES or padding not in _PADDINGS:
        raise node.refuse(f"{mode}, {padding} is no way to sample that ONNX knows: correct its attributes")
    if _MODES[mode] > 1 and not is_float(node.data):
        raise node.refuse(f"it interpolates {node.dtype}: cast its input to a float type and its result back")
    if len(node.shape) < 3 or shape_of(grid)[-1] != len(node.shape) - 2:
        raise node.refuse(f"its grid {list(shape_of(grid))} does not fit its input {list(node.shape)}: correct them")
    is_aligned = bool(node.attrs.get("align_corners", 0))

    def sampled(data: te.Tensor, grid: te.Tensor) -> te.Tensor:
        return _sampled(data, grid, _MODES[mode], padding, is_aligned)

    return node.bb.emit_te(sampled, node.data, grid, primfunc_name_hint="grid_sample")


def _sampled(data: te.Tensor, grid: te.Tensor, count: int, padding: str, is_aligned: bool) -> te.Tensor:
    """Data (N, C, D1 … Dr) at the points of a grid (N, O1 … Or, r), whose coordinates begin with that of the last axis."""
    sizes = [int(size) for size in data.shape[2:]]
    rank = len(sizes)
    taps = [te.reduce_axis((0, count), f"tap{axis}") for axis in range(rank)] if count > 1 else [0] * rank

    def value(n, c, *point):
        places, weights = [], []
        for axis, (size, tap) in enumerate(zip(sizes, taps, strict=True)):
            x = _coordinate(grid[(n, *point, rank - 1 - axis)], size, is_aligned)
            first = te.nearbyint(x) if count == 1 else te.floor(x)
            place = tirx.Cast("int32", first) + (tap + (1 - max(count // 2, 1)))
            places.append(_padded(place, size, padding, is_aligned))
            if count > 1:
                weights.append(_weight(x - first, tap, count).astype(data.dtype))
        pixel = data[(n, c, *places)]
        if padding == "zeros":
            inside = te.all(*(te.all(place >= 0, place < size) for place, size in zip(places, sizes, strict=True)))
            pixel = te.if_then_else(inside, pixel, tirx.const(0, data.dtype))
        return te.sum(math.prod(weights, start=pixel), axis=taps) if count > 1 else pixel

    return te.compute((*data.shape[:2], *grid.shape[1:-1]), value, name="grid_sample")


def _coordinate(x: ir.Expr, size: int, is_aligned: bool) -> ir.Expr:
    """From -1 … 1 to pixels; not a number where x is none."""
    pixels = (x + 1) / 2 * (size - 1) if is_aligned else ((x + 1) * size - 1) / 2
    near = te.min(te.max(pixels, tirx.const(-_FAR, x.dtype)), tirx.const(_FAR, x.dtype))
    return tirx.Select(tirx.isnan(pixels), pixels, near)


def _padded(place: ir.Expr, size: int, padding: str, is_aligned: bool) -> ir.Expr:
    """The pixel that stands for the one at `place`."""
    if padding == "zeros":
        return place
    if padding == "border":
        return te.min(te.max(place, 0), size - 1)
    if size == 1:
        return tirx.const(0, "int32")
    # Back and forth, with the outermost pixels once at each turn or twice.
    period, again = (2 * size - 2, 0) if is_aligned else (2 * size, 1)
    forth = te.floormod(place, period)
    return te.min(forth, period - again - forth)


def _weight(fraction: ir.Expr, tap: ir.Expr, count: int) -> ir.Expr:
    """Of the pixel `tap` among those around a point that lies `fraction` of a pixel behind the middle ones' first."""
    if count == 2:
        return tirx.Select(tap == 0, 1 - fraction, fraction)
    x = te.abs(fraction + 1 - tap)
    near = ((_A + 2) * x - (_A + 3)) * x * x + 1
    return tirx.Select(x <= 1, near, ((x - 5) * x + 8) * _A * x - 4 * _A)


def _affine_grid(node: Node) -> None:
    """TVM converts it, but for grids whose only element along an axis would be its first and its last corner."""
    size = node.value(1)
    if node.attrs.get("align_corners", 0) and size is not None and 1 in size[2:]:
        raise node.refuse(f"align_corners is 1, and its size {size.tolist()} has an axis of one element: make it 2 or more")


CONVERTERS: dict[str, Converter] = {"AffineGrid": _affine_grid, "GridSample": _grid_sample}
