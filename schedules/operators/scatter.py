"""A copy of a tensor with some of its elements replaced, or combined with others, at places that indices name.

    out = data
    for every update, in their order:  out[place] = out[place] ∘ update

Updates come as rows of neighbouring elements where indices name such rows (ScatterND); along an axis (ScatterElements) a
row is one element. Indices are inside their axes (`indices.py`). Two of them may name one place, and ONNX then wants the last
update, or a sum in a fixed order: one task does all updates between which that can happen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop, vector
from ..tiles.rows import cover, for_each_vector
from ..tiles.vector_math import largest, smallest

REDUCTIONS = ("update", "add", "mul", "min", "max")
# Cost of a copied element in operations, for the decision whether threads pay.
_FLOPS = 2


@dataclass(frozen=True)
class ScatterSpec:
    """Updates of the shape of `indices` along `axis`; with axis -1 the last axis of `indices` holds the first axes' numbers."""

    shape: tuple[int, ...]
    indices: tuple[int, ...]
    axis: int
    dtype: str
    index_dtype: str  # int32 or int64
    reduction: str = "update"  # one of REDUCTIONS

    @property
    def updates(self) -> tuple[int, ...]:
        """Shape of the updates."""
        return self.indices if self.axis >= 0 else self.indices[:-1] + self.shape[self.indices[-1] :]

    def __str__(self) -> str:
        of = "" if self.reduction == "update" else f" {self.reduction}"
        return f"{math.prod(self.updates)}{of} into {'×'.join(map(str, self.shape))}"


def kernel(spec: ScatterSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (data, indices, updates, out) for vectors of `width` 32-bit elements."""
    size, count = math.prod(spec.shape), math.prod(spec.updates)
    # Vectors of bool would be vectors of bits.
    width = 1 if spec.dtype == "bool" else max(1, width * 4 // tvm_ffi.dtype(spec.dtype).itemsize)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        data = T.arg("data", T.buffer(spec.shape, spec.dtype))
        indices = T.arg("indices", T.buffer(spec.indices, spec.index_dtype))
        updates = T.arg("updates", T.buffer(spec.updates, spec.dtype))
        out = T.arg("out", T.buffer(spec.shape, spec.dtype))
        data = T.decl_buffer((size,), spec.dtype, data=data.data)
        indices = T.decl_buffer((math.prod(spec.indices),), spec.index_dtype, data=indices.data)
        updates = T.decl_buffer((count,), spec.dtype, data=updates.data)
        out = T.decl_buffer((size,), spec.dtype, data=out.data)
        _copy(data, out, size, width)
        place = _along_axis if spec.axis >= 0 else _by_tuples
        place(spec, indices, _Combine(spec, updates, out), width)
    return builder.get()


@dataclass(frozen=True)
class _Combine:
    """out[to : to + lanes] = out[…] ∘ updates[at : at + lanes]."""

    spec: ScatterSpec
    updates: tirx.Buffer
    out: tirx.Buffer

    def __call__(self, to: ir.Expr, at: ir.Expr, lanes: int) -> None:
        place = vector(to, lanes)
        new = self.updates[vector(at, lanes)]
        if self.spec.reduction != "update":
            new = _OPERATIONS[self.spec.reduction](self.out[place], new)
        T.buffer_store(self.out, new, [place])


_OPERATIONS: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": lambda old, new: smallest(old, new) if _is_float(new) else tirx.min(old, new),
    "max": lambda old, new: largest(old, new) if _is_float(new) else tirx.max(old, new),
}


def _is_float(value: ir.Expr) -> bool:
    return str(value.ty.dtype).startswith("float")


def _copy(data: tirx.Buffer, out: tirx.Buffer, size: int, width: int) -> None:
    row = cover(size, width)
    vectors = row.full + bool(row.overlap)
    with loop(vectors, size * _FLOPS) as i:
        start = tirx.min(i * row.lanes, row.last) if vectors > 1 else i * row.lanes
        T.buffer_store(out, data[vector(start, row.lanes)], [vector(start, row.lanes)])


def _along_axis(spec: ScatterSpec, indices: tirx.Buffer, combine: _Combine, width: int) -> None:
    """out[…, indices[p], …] for every position p of the indices, which may be fewer than the data on every axis."""
    strides, index_strides = _strides(spec.shape), _strides(spec.indices)
    with ExitStack() as loops:
        place, at = tirx.const(0, "int32"), tirx.const(0, "int32")
        for axis, extent in enumerate(spec.indices):
            # Updates of different rows of an axis before the indexed one never meet.
            apart = axis == 0 and spec.axis > 0
            i = loops.enter_context(loop(extent, math.prod(spec.indices) * _FLOPS) if apart else T.serial(0, extent))
            at = at + i * index_strides[axis]
            if axis != spec.axis:
                place = place + i * strides[axis]
        combine(place + T.Cast("int32", indices[at]) * strides[spec.axis], at, 1)


def _by_tuples(spec: ScatterSpec, indices: tirx.Buffer, combine: _Combine, width: int) -> None:
    """out[indices[p], …] for every tuple of indices; a tuple names a row of neighbouring elements."""
    depth = spec.indices[-1]
    strides = _strides(spec.shape)
    length = math.prod(spec.shape[depth:])
    row = cover(length, width)
    with T.serial(0, math.prod(spec.indices[:-1])) as i:
        place: ir.Expr = tirx.const(0, "int32")
        for axis in range(depth):
            place = place + T.Cast("int32", indices[i * depth + axis]) * strides[axis]
        start = T.bind(place)
        if spec.reduction != "update" and row.overlap:  # nothing counts twice
            with T.serial(0, length) as j:
                combine(start + j, i * length + j, 1)
        else:
            for_each_vector(row, lambda at, _: combine(start + at, i * length + at, row.lanes))


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


__all__ = ["REDUCTIONS", "ScatterSpec", "kernel"]
