"""Random shapes for the families without weights, and what NumPy says that they compute."""

from __future__ import annotations

import zlib

import numpy as np
import tvm
from hypothesis import strategies as st
from tvm import relax

from flexcomp.device.target import resolve_target
from flexcomp.schedules.generic import schedule as generic
from flexcomp.schedules.operators import concat, pool, rowwise, scan, sort
from flexcomp.schedules.operators.concat import ConcatSpec
from flexcomp.schedules.operators.pool import PoolSpec
from flexcomp.schedules.operators.rowwise import RowSpec
from flexcomp.schedules.operators.scan import ScanSpec
from flexcomp.schedules.operators.sort import SortSpec
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import MatmulSpec

from .shapes import Case, compare, pick
from .shapes_conv import UNITS

WIDTHS = st.sampled_from((4, 8, 16))


def normal(name: str, *shape: int) -> np.ndarray:
    """Values that depend on the case's name."""
    return np.random.default_rng(zlib.crc32(f"{name} {shape}".encode())).standard_normal(shape).astype("f4")


def shapes(most_axes: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(pick(5, 1, 2, 3, 8, 17, 33), min_size=1, max_size=most_axes).map(tuple)


@st.composite
def matmul(draw: st.DrawFn) -> Case:
    shared = draw(pick(0, 1, 2))
    epilogue = draw(st.sampled_from([("acc",), ("multiply", ("acc",), ("const", 0.125)), ("add", ("acc",), ("tensor", 0))]))
    spec = MatmulSpec(
        draw(pick(1, 2, 3)), draw(pick(7, 1, 2, 30)), draw(pick(8, 1, 5, 33, 100)), draw(pick(4, 1, 3, 65, 600)),
        left_shared=shared == 1, right_shared=shared == 2, epilogue=epilogue,
    )  # fmt: skip
    unit = draw(st.sampled_from(UNITS))
    name = f"{spec!r} {unit}"
    a = normal(name + "a", 1 if spec.left_shared else spec.batch, spec.m, spec.k)
    b = normal(name + "b", 1 if spec.right_shared else spec.batch, spec.k, spec.n)
    t = normal(name + "t", spec.batch, spec.m, spec.n)
    expected = a.astype("f8") @ b
    expected = expected * 0.125 if epilogue[0] == "multiply" else expected + t * spec.tensors
    inputs = [a, b, *[t] * spec.tensors]
    return compare(name, candidates(spec, unit)[0].build, inputs, expected, 1e-5 * max(1.0, abs(expected).max()))


@st.composite
def rows(draw: st.DrawFn, kind: str) -> Case:
    shape = draw(shapes(3))
    shape = (*shape[:-1], draw(pick(21, 1, 3, 16, 197, 300)))
    axes = draw(st.integers(1, len(shape))) if kind.endswith("norm") else 1
    affine = kind.endswith("norm") and draw(st.booleans())
    spec, width = RowSpec(kind, shape, axes, 1e-5, has_scale=affine, has_bias=affine), draw(WIDTHS)
    name = f"{spec!r} {width}"
    x, row = normal(name, *shape), shape[len(shape) - axes :]
    scale, bias = normal(name + "scale", *row), normal(name + "bias", *row)
    flat = x.astype("f8").reshape(*shape[: len(shape) - axes], -1)
    shifted = flat - flat.max(-1, keepdims=True)
    result = {
        "softmax": lambda: np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True),
        "log_softmax": lambda: shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)),
        "layer_norm": lambda: (flat - flat.mean(-1, keepdims=True)) / np.sqrt(flat.var(-1, keepdims=True) + 1e-5),
        "rms_norm": lambda: flat / np.sqrt((flat * flat).mean(-1, keepdims=True) + 1e-5),
    }[kind]().reshape(shape)
    expected = result * scale + bias if affine else result
    return compare(name, lambda: rowwise.kernel(spec, width), [x, *([scale, bias] if affine else [])], expected, 2e-5)


@st.composite
def pooling(draw: st.DrawFn) -> Case:
    n, h, w, c = draw(pick(1, 1, 2)), draw(pick(8, 1, 5, 13)), draw(pick(7, 1, 6, 14)), draw(pick(16, 1, 3, 33, 150))
    width = draw(WIDTHS)
    if draw(pick(0, 0, 0, 1)):
        spec = PoolSpec.global_average(n, h, w, c)
    else:
        window = draw(pick(3, 1, 2, 5)), draw(pick(3, 2, 4))
        dilation = draw(pick(1, 1, 2)), draw(pick(1, 1, 2))
        # Padding smaller than the window, so that every window meets the image.
        pad = tuple(draw(st.integers(0, size - 1)) for size in (*window, *window))
        stride = draw(pick(1, 2, 3)), draw(pick(1, 2))
        outer = (h + pad[0] + pad[2], w + pad[1] + pad[3])
        out = [(o - d * (k - 1) - 1) // s + 1 for o, d, k, s in zip(outer, dilation, window, stride, strict=True)]
        if min(out) < 1 or (any(d > 1 for d in dilation) and any(pad)):
            spec = PoolSpec.global_average(n, h, w, c)
        else:
            kind = draw(st.sampled_from(("max", "avg")))
            spec = PoolSpec(n, h, w, c, *window, stride, pad, dilation, kind, kind == "avg" and draw(st.booleans()), *out)
    name = f"{spec!r} {width}"
    x = normal(name, n, h, w, c)
    return compare(name, lambda: pool.kernel(spec, width), [x], _pool(spec, x), 1e-5)


def _pool(spec: PoolSpec, x: np.ndarray) -> np.ndarray:
    top, left, bottom, right = spec.pad
    padded = np.pad(x.astype("f8"), ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=np.nan)
    taps = []
    for row in range(spec.kh):
        for column in range(spec.kw):
            at = row * spec.dilation[0], column * spec.dilation[1]
            ends = (at[0] + (spec.out_h - 1) * spec.stride[0] + 1, at[1] + (spec.out_w - 1) * spec.stride[1] + 1)
            taps.append(padded[:, at[0] : ends[0] : spec.stride[0], at[1] : ends[1] : spec.stride[1]])
    if spec.kind == "max":
        return np.nanmax(taps, 0)
    return np.nansum(taps, 0) / len(taps) if spec.count_include_pad else np.nanmean(taps, 0)


@st.composite
def concatenation(draw: st.DrawFn) -> Case:
    shape, width = draw(shapes(4)), draw(WIDTHS)
    axis = draw(st.integers(0, len(shape) - 1))
    extents = draw(st.lists(pick(3, 1, 2, 16, 33), min_size=2, max_size=4))
    dtype = draw(st.sampled_from(("float32", "int64", "int8")))
    parts = [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in extents]
    spec = ConcatSpec(tuple(parts), axis, dtype)
    name = f"{spec!r} {width}"
    inputs = [(100 * normal(f"{name}{i}", *part)).astype(dtype) for i, part in enumerate(parts)]
    return compare(name, lambda: concat.kernel(spec, width), inputs, np.concatenate(inputs, axis), 0, dtype)


@st.composite
def sums(draw: st.DrawFn) -> Case:
    shape, width = draw(shapes(3)), draw(WIDTHS)
    spec = ScanSpec(shape, draw(st.integers(0, len(shape) - 1)), "float32", "float32", draw(st.booleans()))
    x = normal(name := f"{spec!r} {width}", *shape)
    expected = np.cumsum(x.astype("f8"), spec.axis)
    return compare(name, lambda: scan.kernel(spec, width), [x], expected - x if spec.exclusive else expected, 1e-5)


@st.composite
def sorting(draw: st.DrawFn) -> Case:
    shape = draw(shapes(3))
    axis = draw(st.integers(0, len(shape) - 1))
    count, descending = draw(st.integers(1, shape[axis])), draw(st.booleans())
    spec = SortSpec(shape, axis, count, "float32", descending, "values", "int64")
    x = np.round(normal(name := repr(spec), *shape), 1)
    ordered = np.flip(np.sort(x, axis), axis) if descending else np.sort(x, axis)
    return compare(name, lambda: sort.kernel(spec, 8), [x], np.take(ordered, range(count), axis), 0)


@st.composite
def resize(draw: st.DrawFn) -> Case:
    """Through TVM's legalisation and the generic schedule, as every operator without a family."""
    n, h, w, c = draw(pick(1, 2)), draw(pick(5, 1, 8)), draw(pick(7, 1, 4)), draw(pick(8, 1, 3, 20))
    size, method = (draw(pick(11, 1, 4, 16)), draw(pick(9, 2, 14))), draw(st.sampled_from(("linear", "nearest_neighbor")))
    if any(_has_ties(*extents) for extents in zip((h, w), size, strict=True)):
        method = "linear"  # where two pixels are equally near, rounding errors decide
    name = f"resize {n}×{h}×{w}×{c} to {size} {method}"
    x = normal(name, n, h, w, c)
    return compare(name, lambda: _resize_kernel(x.shape, size, method), [x], _resize(x, size, method), 1e-5)


def _has_ties(before: int, after: int) -> bool:
    at = (np.arange(after) + 0.5) * before / after
    return bool((abs(at - np.round(at)) < 1e-3).any())


def _resize_kernel(shape: tuple[int, ...], size: tuple[int, int], method: str):
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        rounding = "round" if method == "linear" else "round_prefer_floor"
        mode = {"method": method, "coordinate_transformation_mode": "half_pixel", "rounding_method": rounding}
        builder.emit_func_output(builder.emit(relax.op.image.resize2d(x, size, layout="NHWC", **mode)))
    module = relax.transform.LegalizeOps()(builder.get())
    legal = next(f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    scheduled = generic.schedule(legal, resolve_target("llvm -mcpu=x86-64-v3"))
    assert not scheduled.scratch
    return scheduled.func


def _resize(x: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    for axis, extent in ((1, size[0]), (2, size[1])):
        at = (np.arange(extent) + 0.5) * x.shape[axis] / extent - 0.5
        if method == "nearest_neighbor":
            x = np.take(x, np.clip(np.round(at).astype(int), 0, x.shape[axis] - 1), axis)
            continue
        low = np.floor(at).astype(int)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        ends = [np.take(x.astype("f8"), np.clip(low + i, 0, x.shape[axis] - 1), axis) for i in (0, 1)]
        x = ends[0] * (1 - part) + ends[1] * part
    return x
