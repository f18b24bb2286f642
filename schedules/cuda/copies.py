"""Plain copies, a few bytes by each thread: joined tensors, rows of caches.

Bytes are counted in units, the largest that divide all copied runs: 128 bits, words, or elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..operators.concat import ConcatSpec
from ..operators.scatter_rows import ScatterSpec
from ..tiles.emit import vector
from .emit import LANES, both, ceil_div, launched, only_if

_THREADS = 256  # of a block
_WORD = 4  # bytes


@dataclass(frozen=True)
class Unit:
    """The bytes that a thread copies at once."""

    dtype: str
    lanes: int
    elements: int  # of the tensors that are copied

    @classmethod
    def of(cls, dtype: str, extents: Iterable[int]) -> Unit:
        """The largest unit that divides runs of `extents` elements."""
        itemsize = tvm_ffi.dtype(dtype).itemsize
        for lanes in (LANES, 2, 1):
            elements = lanes * _WORD // itemsize
            if elements and all(extent % elements == 0 for extent in extents):
                return cls("uint32", lanes, elements)
        return cls("int8" if dtype == "bool" else dtype, 1, 1)

    def view(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """A tensor as an array of the units' elements."""
        units = math.prod(map(int, buffer.shape)) // self.elements
        return T.decl_buffer((units * self.lanes,), self.dtype, data=buffer.data)

    def load(self, buffer: tirx.Buffer, at) -> ir.Expr:
        return buffer[vector(at * self.lanes, self.lanes)]

    def store(self, buffer: tirx.Buffer, at, value) -> None:
        T.buffer_store(buffer, value, [vector(at * self.lanes, self.lanes)])


def concat(spec: ConcatSpec) -> tirx.PrimFunc:
    """The PrimFunc (inputs…, output), as on CPUs: every part has blocks of its own."""
    rows = [math.prod(shape[spec.axis :]) for shape in spec.shapes]
    unit = Unit.of(spec.dtype, rows)
    across = [row // unit.elements for row in rows]
    starts = [sum(across[:i]) for i in range(len(rows))]
    blocks = [ceil_div(spec.outer * across[i], _THREADS) for i in spec.copied]
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = [T.arg(f"source_{i}", T.buffer(spec.shapes[i], spec.dtype)) for i in spec.copied]
        target = unit.view(T.arg("target", T.buffer(spec.out_shape, spec.dtype)))
        sources = [unit.view(source) for source in given]
        with launched((max(1, sum(blocks)),), _THREADS) as ((block,), thread):
            first = 0
            for source, i, count in zip(sources, spec.copied, blocks, strict=True):
                if not count:
                    continue
                with only_if(both(block >= first, block < first + count) if len(blocks) > 1 else True):
                    at = T.bind((block - first) * _THREADS + thread)
                    with only_if(at < spec.outer * across[i]):
                        place = at // across[i] * sum(across) + starts[i] + at % across[i]
                        unit.store(target, place, unit.load(source, at))
                first += count
    return builder.get()


def scatter_rows(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tirx.PrimFunc:
    """The PrimFunc (past, update, write indices int64[batch], present), as on CPUs: a thread looks up the source of its unit."""
    unit = Unit.of(spec.dtype, [spec.inner])
    inner = spec.inner // unit.elements
    total = spec.tasks * spec.past * inner
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = [T.arg(name, T.buffer(shape, spec.dtype)) for name, shape in zip(("past", "update"), shapes, strict=True)]
        indices = T.arg("at", T.buffer((spec.batch,), "int64"))
        given.append(T.arg("present", T.buffer(shapes[0], spec.dtype)))
        past, update, present = map(unit.view, given)
        with launched((ceil_div(total, _THREADS),), _THREADS) as ((block,), thread):
            at = T.bind(block * _THREADS + thread)
            with only_if(at < total):
                task, row = T.bind(at // (spec.past * inner)), at // inner % spec.past
                behind = row - spec.first(indices, task)
                if spec.circular:
                    behind = tirx.Select(behind < 0, behind + spec.past, behind)
                behind = T.bind(behind)
                with T.If(tirx.And(behind >= 0, behind < spec.rows)):
                    with T.Then():
                        unit.store(present, at, unit.load(update, (task * spec.rows + behind) * inner + at % inner))
                    with T.Else():
                        unit.store(present, at, unit.load(past, at))
    return builder.get()


def exchange_rows(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tirx.PrimFunc:
    """The PrimFunc (cache, rows, write indices int64[batch]), as on CPUs: a thread for every unit of the rows."""
    unit = Unit.of(spec.dtype, [spec.inner])
    inner = spec.inner // unit.elements
    total = spec.tasks * spec.rows * inner
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = [T.arg(name, T.buffer(shape, spec.dtype)) for name, shape in zip(("cache", "rows"), shapes, strict=True)]
        indices = T.arg("at", T.buffer((spec.batch,), "int64"))
        cache, rows = map(unit.view, given)
        with launched((ceil_div(total, _THREADS),), _THREADS) as ((block,), thread):
            at = T.bind(block * _THREADS + thread)
            with only_if(at < total):
                task = T.bind(at // (spec.rows * inner))
                row = spec.first(indices, task) + at // inner % spec.rows
                if spec.circular:
                    row = tirx.Select(row >= spec.past, row - spec.past, row)
                place = T.bind((task * spec.past + row) * inner + at % inner)
                before = T.bind(unit.load(cache, place))
                unit.store(cache, place, unit.load(rows, at))
                unit.store(rows, at, before)
    return builder.get()
