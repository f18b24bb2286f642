"""Rows written into a copy of a tensor along one axis, from an index on that each batch has: caches of keys and values.

present[b, o, i] = update[b, o, i - w_b]  where w_b <= i < w_b + rows, else past[b, o, i]        o: the other axes before i's

Circular, i runs past the end to the start again. Both sides are copied by vectors: first the past, then the rows over it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop, vector
from ..tiles.rows import cover, for_each_vector

_BYTES = 32  # of a vector: several where processors have shorter ones
# What copying a vector costs, in operations, for the decision whether threads pay.
_FLOPS = 8


@dataclass(frozen=True)
class ScatterSpec:
    """Of tensors of one element type, with `batch` × `outer` × (`past` or `rows`) × `inner` elements."""

    batch: int
    outer: int
    past: int  # rows there are
    rows: int  # rows that are written, 1 <= rows <= past
    inner: int
    dtype: str
    circular: bool = False

    @property
    def work(self) -> int:
        """What copying costs, in operations."""
        nbytes = self.batch * self.outer * (self.past + self.rows) * self.inner * tvm_ffi.dtype(self.dtype).itemsize
        return nbytes // _BYTES * _FLOPS

    def __str__(self) -> str:
        return f"{self.rows} of {self.past} rows × {self.batch * self.outer}×{self.inner}{' circular' if self.circular else ''}"


def kernel(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tirx.PrimFunc:
    """The PrimFunc (past, update, write indices int64[batch], present), where `shapes` are those of past and update.

    Indices are those of rows, and where it is not circular none is larger than past - rows.
    """
    dtype = "int8" if spec.dtype == "bool" else spec.dtype  # vectors of bool would be vectors of bits
    lanes = max(1, _BYTES // tvm_ffi.dtype(dtype).itemsize)
    tasks = spec.batch * spec.outer
    sizes = {"past": tasks * spec.past * spec.inner, "update": tasks * spec.rows * spec.inner}
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = [T.arg(name, T.buffer(shape, spec.dtype)) for name, shape in zip(sizes, shapes, strict=True)]
        at = T.arg("at", T.buffer((spec.batch,), "int64"))
        given.append(T.arg("present", T.buffer(shapes[0], spec.dtype)))
        past, update, present = (
            T.decl_buffer((size,), dtype, data=buffer.data)
            for buffer, size in zip(given, (*sizes.values(), sizes["past"]), strict=True)
        )

        def copy(source: tirx.Buffer, begin: ir.Expr, extent: int, target: ir.Expr) -> None:
            part = cover(extent, lanes)

            def body(start, _) -> None:
                T.buffer_store(present, source[vector(begin + start, part.lanes)], [vector(target + start, part.lanes)])

            for_each_vector(part, body)

        with loop(tasks, spec.work) as task:
            copy(past, task * (spec.past * spec.inner), spec.past * spec.inner, task * (spec.past * spec.inner))
            first = at[task // spec.outer]
            if spec.circular:
                first = tirx.floormod(first, tirx.const(spec.past, "int64"))
            first = T.bind(tirx.Cast("int32", first))
            with T.serial(spec.rows) as row:
                place = first + row
                if spec.circular:
                    place = tirx.Select(place >= spec.past, place - spec.past, place)
                target = T.bind((task * spec.past + place) * spec.inner)
                copy(update, (task * spec.rows + row) * spec.inner, spec.inner, target)
    return builder.get()


def spec_of(past: tuple[int, ...], update: tuple[int, ...], axis: int, dtype: str, circular: bool) -> ScatterSpec:
    """For tensors of these shapes, which differ in `axis` > 0 alone."""
    return ScatterSpec(
        past[0], math.prod(past[1:axis]), past[axis], update[axis], math.prod(past[axis + 1 :]), dtype, circular
    )  # fmt: skip


__all__ = ["ScatterSpec", "kernel", "spec_of"]
