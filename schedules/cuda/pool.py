"""Pooling over windows of an NHWC image: a thread reduces the windows of one pixel and LANES channels, or of one channel."""

from __future__ import annotations

import math

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..operators.pool import PoolSpec
from ..tiles import vector_math
from ..tiles.emit import flat
from .emit import LANES, both, ceil_div, copy, fill, launched, only_if, registers

_THREADS = 128


def kernel(spec: PoolSpec) -> tirx.PrimFunc:
    """The PrimFunc (input, output), both NHWC, as on CPUs."""
    lanes = LANES if spec.c % LANES == 0 else 1
    in_shape, out_shape = (spec.n, spec.h, spec.w, spec.c), (spec.n, spec.out_h, spec.out_w, spec.c)
    vectors = spec.c // lanes
    total = spec.n * spec.out_h * spec.out_w * vectors
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        source, target = (T.arg(name, T.buffer(shape, "float32")) for name, shape in (("x", in_shape), ("y", out_shape)))
        source, target = flat(source, math.prod(in_shape)), flat(target, math.prod(out_shape))
        with launched((ceil_div(total, _THREADS),), _THREADS) as ((block,), thread):
            index = T.bind(block * _THREADS + thread)
            with only_if(True if total % _THREADS == 0 else index < total):
                _window(spec, source, target, index // vectors, index % vectors * lanes, lanes)
    return builder.get()


def _window(spec: PoolSpec, source: tirx.Buffer, target: tirx.Buffer, pixel, channel, lanes: int) -> None:
    image, rest = pixel // (spec.out_h * spec.out_w), pixel % (spec.out_h * spec.out_w)
    top, left, bottom, right = spec.pad
    first_row = T.bind(rest // spec.out_w * spec.stride[0] - top)
    first_column = T.bind(rest % spec.out_w * spec.stride[1] - left)
    so_far, value = registers(lanes), registers(lanes)
    fill(so_far, lanes, float("-inf") if spec.kind == "max" else 0.0)
    with T.serial(spec.kh) as down, T.serial(spec.kw) as across:
        row, column = first_row + down * spec.dilation[0], first_column + across * spec.dilation[1]
        with only_if(both(row >= 0, row < spec.h, column >= 0, column < spec.w)):
            copy(value, 0, source, ((image * spec.h + row) * spec.w + column) * spec.c + channel, lanes)
            for i in range(lanes):
                both_of = vector_math.largest(so_far[i], value[i]) if spec.kind == "max" else so_far[i] + value[i]
                T.buffer_store(so_far, both_of, [i])
    if spec.kind == "avg":
        if spec.count_include_pad:
            # Only windows that ceil_mode lets stick out have taps outside of the padded image.
            rows = _taps(spec.kh, spec.dilation[0], first_row, None, spec.h + bottom)
            columns = _taps(spec.kw, spec.dilation[1], first_column, None, spec.w + right)
        else:
            rows = _taps(spec.kh, spec.dilation[0], first_row, 0, spec.h)
            columns = _taps(spec.kw, spec.dilation[1], first_column, 0, spec.w)
        # A window that lies in the padding altogether averages to 0.
        count = T.bind(tirx.Cast("float32", tirx.max(rows * columns, 1)))
        for i in range(lanes):
            T.buffer_store(so_far, so_far[i] / count, [i])
    copy(target, pixel * spec.c + channel, so_far, 0, lanes)


def _taps(taps: int, dilation: int, first: ir.Expr, low: int | None, high: int) -> ir.Expr:
    """How many of the taps that begin at `first` lie in [low, high), or below `high`."""
    last = tirx.min(taps, (high - first + (dilation - 1)) // dilation)
    if low is None:
        return last
    return last - tirx.max(0, (low - first + (dilation - 1)) // dilation)
