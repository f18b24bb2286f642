"""Indices that a user gives, made safe: negative ones count from the end, and all lie inside their axis.

The runtime checks indices before the kernel runs and refuses those out of bounds, with an error (`ValueArg.bounds`). The
kernel writes indices inside in any case, so that no later kernel can be led out of its tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop

# Cost of an index in operations, for the decision whether threads pay.
_FLOPS = 4


@dataclass(frozen=True)
class IndexSpec:
    """A tensor of indices and their bounds (low, high), high excluded: one for all, or one for each place of the last axis.

    A negative `low` is -high: such indices count from the end.
    """

    shape: tuple[int, ...]
    dtype: str  # int32 or int64
    bounds: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{math.prod(self.shape)} indices in {', '.join(f'[{low}, {high})' for low, high in self.bounds)}"


def kernel(spec: IndexSpec) -> tirx.PrimFunc:
    """The PrimFunc (indices, safe indices)."""
    period = len(spec.bounds)
    rows = math.prod(spec.shape) // period
    number = lambda value: tirx.const(value, spec.dtype)  # noqa: E731
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = T.arg("given", T.buffer(spec.shape, spec.dtype))
        safe = T.arg("safe", T.buffer(spec.shape, spec.dtype))
        given = T.decl_buffer((rows * period,), spec.dtype, data=given.data)
        safe = T.decl_buffer((rows * period,), spec.dtype, data=safe.data)
        with loop(rows, rows * period * _FLOPS) as row:
            for place, (low, high) in enumerate(spec.bounds):
                index = given[row * period + place]
                if low < 0:
                    index = tirx.Select(index < number(0), index + number(high), index)
                index = tirx.max(tirx.min(index, number(high - 1)), number(max(low, 0)))
                T.buffer_store(safe, index, [row * period + place])
    return builder.get()


__all__ = ["IndexSpec", "kernel"]
