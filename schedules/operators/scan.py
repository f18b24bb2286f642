"""Cumulative sums and products along an axis.

Neighbouring columns are summed together, one vector of them per task; along the last axis a task is one row:

    for task in outer × vectors of inner, in parallel:
        sum = 0
        for position along the axis:   sum += input;  output = sum
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop, spread, vector
from ..tiles.rows import cover

# Cost of an element in operations, for the decision whether threads pay.
_FLOPS = 4


@dataclass(frozen=True)
class ScanSpec:
    """The sums or products of a tensor along `axis` (>= 0), computed in the result's element type."""

    shape: tuple[int, ...]
    axis: int
    dtype: str  # of the input
    out_dtype: str
    exclusive: bool  # every result leaves its own element out
    product: bool = False

    @property
    def flops(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{'cumprod' if self.product else 'cumsum'} {'×'.join(map(str, self.shape))} along {self.axis}"


def kernel(spec: ScanSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (input, output) for vectors of `width` 32-bit elements."""
    size, extent = math.prod(spec.shape), spec.shape[spec.axis]
    outer, inner = math.prod(spec.shape[: spec.axis]), math.prod(spec.shape[spec.axis + 1 :])
    itemsize = max(tvm_ffi.dtype(dtype).itemsize for dtype in (spec.dtype, spec.out_dtype))
    columns = cover(inner, max(1, width * 4 // itemsize))
    lanes, vectors = columns.lanes, columns.full + bool(columns.overlap)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        source = T.arg("source", T.buffer(spec.shape, spec.dtype))
        target = T.arg("target", T.buffer(spec.shape, spec.out_dtype))
        source = T.decl_buffer((size,), spec.dtype, data=source.data)
        target = T.decl_buffer((size,), spec.out_dtype, data=target.data)
        with loop(outer * vectors, size * _FLOPS) as task:
            total = T.alloc_buffer((lanes,), spec.out_dtype, scope="global")
            whole = vector(0, lanes)
            T.buffer_store(total, spread(tirx.const(int(spec.product), spec.out_dtype), lanes), [whole])
            column: ir.Expr | int = 0
            if vectors > 1:
                # The last vector ends with the row and overlaps its predecessor; both store the same.
                column = tirx.min(task % vectors * lanes, inner - lanes)
            first = T.bind(task // vectors * (extent * inner) + column)
            with T.serial(0, extent) as position:
                place = vector(first + position * inner, lanes)
                value = source[place]
                if spec.dtype != spec.out_dtype:
                    value = tirx.Cast(f"{spec.out_dtype}x{lanes}" if lanes > 1 else spec.out_dtype, value)
                if spec.exclusive:
                    T.buffer_store(target, total[whole], [place])
                T.buffer_store(total, total[whole] * value if spec.product else total[whole] + value, [whole])
                if not spec.exclusive:
                    T.buffer_store(target, total[whole], [place])
    return builder.get()


__all__ = ["ScanSpec", "kernel"]
