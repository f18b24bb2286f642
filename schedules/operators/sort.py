"""Sorting along an axis, and the first elements of a sorted axis, by a heap in the output.

    heap = first k elements, the last of them in the result's order at the root
    for every other element: if before the root, the element takes the root's place
    for m = k - 1 … 1:       swap the root with element m, which is then final

That needs no scratch, n log k comparisons at most, and one for most elements where k is much smaller than n. Rows
run in parallel. The heap holds positions where the result has them, and elements otherwise.

Equal elements keep their order, in both directions, as in ONNX. NaN counts as larger than every number; -0 and 0
are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop

RESULTS = ("both", "values", "indices")
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
# Cost of a step of a heap in operations, for the decision whether threads pay.
_FLOPS = 4


@dataclass(frozen=True)
class SortSpec:
    """The first `count` elements along `axis` (>= 0) of a sorted tensor."""

    shape: tuple[int, ...]
    axis: int
    count: int
    dtype: str  # one of DTYPES
    descending: bool
    results: str = "both"  # one of RESULTS: the elements, their positions along the axis, or both
    index_dtype: str = "int64"

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.shape[: self.axis], self.count, *self.shape[self.axis + 1 :])

    @property
    def flops(self) -> int:
        rows = math.prod(self.shape) // self.shape[self.axis]
        return rows * (self.shape[self.axis] + self.count * max(self.count - 1, 1).bit_length())

    def __str__(self) -> str:
        order = "largest" if self.descending else "smallest"
        return f"{self.count} {order} of {'×'.join(map(str, self.shape))} along {self.axis}"


def kernel(spec: SortSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (input, [values,] [indices]); comparisons of a heap are scalar, whatever `width`."""
    extent, count = spec.shape[spec.axis], spec.count
    outer, inner = math.prod(spec.shape[: spec.axis]), math.prod(spec.shape[spec.axis + 1 :])
    size, out_size = math.prod(spec.shape), math.prod(spec.out_shape)
    has_values, has_indices = spec.results != "indices", spec.results != "values"
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        source = T.arg("source", T.buffer(spec.shape, spec.dtype))
        values = T.arg("values", T.buffer(spec.out_shape, spec.dtype)) if has_values else None
        indices = T.arg("indices", T.buffer(spec.out_shape, spec.index_dtype)) if has_indices else None
        source = T.decl_buffer((size,), spec.dtype, data=source.data)
        if values is not None:
            values = T.decl_buffer((out_size,), spec.dtype, data=values.data)
        if indices is not None:
            indices = T.decl_buffer((out_size,), spec.index_dtype, data=indices.data)

        with loop(outer * inner, spec.flops * _FLOPS) as row:
            column = row % inner if inner > 1 else 0
            first = T.bind(row // inner * (extent * inner) + column)
            first_out = T.bind(row // inner * (count * inner) + column)

            def element(position: ir.Expr) -> ir.Expr:
                return source[first + tirx.Cast("int32", position) * inner]

            def of_heap(entry: ir.Expr) -> ir.Expr:
                return _key(entry if indices is None else element(entry))

            def entry_of(position: ir.Expr | int) -> ir.Expr:
                if indices is None:
                    return element(tirx.const(position, "int32") if isinstance(position, int) else position)
                return tirx.Cast(spec.index_dtype, position)

            heap = _Heap(
                values if indices is None else indices,
                lambda slot: first_out + slot * inner,
                of_heap,
                (lambda a, b: a < b) if spec.descending else (lambda a, b: a > b),
                has_positions=indices is not None,
            )
            with T.serial(0, count) as slot:
                heap.store(slot, entry_of(slot))
            if count > 1:
                with T.serial(0, count // 2) as i:
                    heap.sift(count // 2 - 1 - i, heap.load(count // 2 - 1 - i), count)
            if extent > count:
                with T.serial(0, extent - count) as i:
                    entry = entry_of(count + i)
                    # At equal keys the earlier element stays.
                    with T.If(heap.comes_later(heap.key(heap.load(0)), heap.key(entry))), T.Then():
                        heap.sift(0, entry, count)
            if count > 1:
                with T.serial(0, count - 1) as i:
                    last = T.bind(heap.load(count - 1 - i))
                    heap.store(count - 1 - i, heap.load(0))
                    heap.sift(0, last, count - 1 - i)
            if has_values and has_indices:
                with T.serial(0, count) as slot:
                    T.buffer_store(values, element(heap.load(slot)), [first_out + slot * inner])
    return builder.get()


def _key(value: ir.Expr) -> ir.Expr:
    """A number that orders as `value` does: floats as integers, among which NaN is the largest and there is one 0."""
    dtype = str(value.ty.dtype)
    if dtype.startswith("uint"):  # TVM's simplifier stumbles over comparisons of unsigned numbers
        return tirx.Cast("int64" if dtype == "uint32" else "int32", value)
    if dtype.startswith("int"):
        return value
    bits = int(dtype.removeprefix("float"))
    integer, largest = f"int{bits}", 2 ** (bits - 1) - 1
    infinity = {32: 0x7F800000, 64: 0x7FF0000000000000}[bits]
    raw = T.bind(tirx.reinterpret(integer, value))
    magnitude = T.bind(tirx.bitwise_and(raw, tirx.const(largest, integer)))
    signed = tirx.Select(raw < tirx.const(0, integer), tirx.const(0, integer) - magnitude, magnitude)
    return T.bind(tirx.Select(magnitude > tirx.const(infinity, integer), tirx.const(largest, integer), signed))


@dataclass(frozen=True)
class _Heap:
    """A binary heap in an output, the entry that comes last at the root."""

    buffer: tirx.Buffer
    place: Callable[[ir.Expr | int], ir.Expr]  # of a slot in the buffer
    key: Callable[[ir.Expr], ir.Expr]  # of an entry; emits statements
    comes_later: Callable[[ir.Expr, ir.Expr], ir.Expr]  # by the keys alone
    has_positions: bool  # entries are positions, which decide between equal keys

    def load(self, slot: ir.Expr | int) -> ir.Expr:
        return self.buffer[self.place(slot)]

    def store(self, slot: ir.Expr | int, entry: ir.Expr) -> None:
        T.buffer_store(self.buffer, entry, [self.place(slot)])

    def _later(self, a: ir.Expr, key_a: ir.Expr, b: ir.Expr, key_b: ir.Expr) -> ir.Expr:
        if not self.has_positions:
            return self.comes_later(key_a, key_b)
        return tirx.any(self.comes_later(key_a, key_b), tirx.all(key_a == key_b, a > b))

    def sift(self, slot: ir.Expr | int, entry: ir.Expr, size: ir.Expr | int) -> None:
        """Put `entry` at `slot` or below, where the entry comes later than all entries below."""
        entry = T.bind(entry)
        key = self.key(entry)
        hole = T.alloc_buffer((1,), "int32", scope="global")
        child = T.alloc_buffer((1,), "int32", scope="global")
        T.buffer_store(hole, slot, [0])
        T.buffer_store(child, 2 * slot + 1, [0])
        with T.While(child[0] < size):
            with T.If(child[0] + 1 < size), T.Then():
                left, right = T.bind(self.load(child[0])), T.bind(self.load(child[0] + 1))
                with T.If(self._later(right, self.key(right), left, self.key(left))), T.Then():
                    T.buffer_store(child, child[0] + 1, [0])
            below = T.bind(self.load(child[0]))
            with T.If(self._later(below, self.key(below), entry, key)):
                with T.Then():
                    self.store(hole[0], below)
                    T.buffer_store(hole, child[0], [0])
                    T.buffer_store(child, 2 * child[0] + 1, [0])
                with T.Else():
                    T.buffer_store(child, size, [0])
        self.store(hole[0], entry)


__all__ = ["DTYPES", "RESULTS", "SortSpec", "kernel"]
