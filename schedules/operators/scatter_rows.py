"""Rows written into a tensor along one axis, from an index on that each batch has: caches of keys and values.

present[b, o, i] = update[b, o, i - w_b]  where w_b <= i < w_b + rows, else past[b, o, i]        o: the other axes before i's

Circular, i runs past the end to the start again. `kernel` makes a copy: first the past, then the rows over the copy.
`exchange` swaps the rows of past and update in place: the same call again restores both.
"""

from __future__ import annotations

import math
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop, vector
from ..tiles.rows import cover, for_each_vector
from ..tiles.tile import pieces

_BYTES = 32  # of a vector: several where processors have shorter ones
# Cost of copying a vector in operations, for the decision whether threads pay.
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
    def tasks(self) -> int:
        return self.batch * self.outer

    @property
    def vectors_of(self) -> tuple[str, int]:
        """The element type that is copied, and how many make a vector: vectors of bool would be vectors of bits."""
        dtype = "int8" if self.dtype == "bool" else self.dtype
        return dtype, max(1, _BYTES // tvm_ffi.dtype(dtype).itemsize)

    @property
    def work(self) -> int:
        """The cost of copying, in operations."""
        return self._work(self.past + self.rows)

    @property
    def exchange_work(self) -> int:
        """The cost of exchanging."""
        return self._work(2 * self.rows)

    def _work(self, rows: int) -> int:
        return self.tasks * rows * self.inner * tvm_ffi.dtype(self.dtype).itemsize // _BYTES * _FLOPS

    def first(self, at: tirx.Buffer, task) -> ir.Expr:
        """The row that the first one of a task is written to, int32."""
        given, limit = at[task // self.outer], tirx.const(self.past, "int64")
        inside = tirx.max(tirx.min(given, limit - self.rows), tirx.const(0, "int64"))
        return tirx.Cast("int32", tirx.floormod(given, limit) if self.circular else inside)

    def encode(self) -> str:
        """As text, for an attribute of a kernel."""
        return repr(astuple(self))

    @classmethod
    def decode(cls, text: str) -> ScatterSpec:
        """The inverse of `encode`."""
        return cls(*literal_eval(text))

    def __str__(self) -> str:
        return f"{self.rows} of {self.past} rows × {self.batch * self.outer}×{self.inner}{' circular' if self.circular else ''}"


def kernel(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tirx.PrimFunc:
    """The PrimFunc (past, update, write indices int64[batch], present), where `shapes` are those of past and update.

    If not circular, indices beyond past - rows count as that, and negative ones as 0.
    """
    dtype, lanes = spec.vectors_of
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = [T.arg(name, T.buffer(shape, spec.dtype)) for name, shape in zip(("past", "update"), shapes, strict=True)]
        at = T.arg("at", T.buffer((spec.batch,), "int64"))
        given.append(T.arg("present", T.buffer(shapes[0], spec.dtype)))
        past, update, present = (_flat(buffer, dtype) for buffer in given)

        def copy(source: tirx.Buffer, begin: ir.Expr, extent: int, target: ir.Expr) -> None:
            part = cover(extent, lanes)

            def body(start, _) -> None:
                T.buffer_store(present, source[vector(begin + start, part.lanes)], [vector(target + start, part.lanes)])

            for_each_vector(part, body)

        with loop(spec.tasks, spec.work) as task:
            copy(past, task * (spec.past * spec.inner), spec.past * spec.inner, task * (spec.past * spec.inner))
            with _each_row(spec, at, task) as (source, target):
                copy(update, source, spec.inner, target)
    return builder.get()


def exchange(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tirx.PrimFunc:
    """The PrimFunc (cache, rows, write indices int64[batch]): `rows` and those rows of `cache` change places.

    Shapes and indices as those of `kernel`.
    """
    dtype, lanes = spec.vectors_of
    full = spec.inner // lanes
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = [T.arg(name, T.buffer(shape, spec.dtype)) for name, shape in zip(("cache", "rows"), shapes, strict=True)]
        at = T.arg("at", T.buffer((spec.batch,), "int64"))
        cache, rows = (_flat(buffer, dtype) for buffer in given)

        def swap(row: ir.Expr, place: ir.Expr, width: int) -> None:
            """No element twice: that would restore the old one."""
            here, there = [vector(row, width)], [vector(place, width)]
            before = T.bind(cache[there[0]])
            T.buffer_store(cache, rows[here[0]], there)
            T.buffer_store(rows, before, here)

        with loop(spec.tasks, spec.exchange_work) as task, _each_row(spec, at, task) as (row, place):
            if full:
                with T.serial(full) as i:
                    swap(row + i * lanes, place + i * lanes, lanes)
            for start, width in pieces(spec.inner % lanes, lanes):
                swap(row + (full * lanes + start), place + (full * lanes + start), width)
    return builder.get()


def _flat(buffer: tirx.Buffer, dtype: str) -> tirx.Buffer:
    return T.decl_buffer((math.prod(map(int, buffer.shape)),), dtype, data=buffer.data)


@contextmanager
def _each_row(spec: ScatterSpec, at: tirx.Buffer, task: ir.Expr) -> Iterator[tuple[ir.Expr, ir.Expr]]:
    """Where each row of a task begins in the update, and in the cache."""
    first = T.bind(spec.first(at, task))
    with T.serial(spec.rows) as row:
        place = first + row
        if spec.circular:
            place = tirx.Select(place >= spec.past, place - spec.past, place)
        yield (task * spec.rows + row) * spec.inner, T.bind((task * spec.past + place) * spec.inner)


def spec_of(past: tuple[int, ...], update: tuple[int, ...], axis: int, dtype: str, circular: bool) -> ScatterSpec:
    """For tensors of these shapes, which differ in `axis` > 0 alone."""
    return ScatterSpec(
        past[0], math.prod(past[1:axis]), past[axis], update[axis], math.prod(past[axis + 1 :]), dtype, circular
    )  # fmt: skip


__all__ = ["ScatterSpec", "exchange", "kernel", "spec_of"]
