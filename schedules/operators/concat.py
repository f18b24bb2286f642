"""Concatenation: every input is copied by vectors into its part of each output row.

output[o, start_i : start_i + n_i] = input_i[o, 0 : n_i]        o: all axes before `axis`, flattened
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import PARALLEL_FLOPS, vector
from ..tiles.place import Place
from ..tiles.rows import cover, for_each_vector

# Elements of one task where a single long copy is shared out.
_CHUNK = 16384
# Cost of copying an element in operations, for the decision whether threads pay.
_FLOPS = 4


@dataclass(frozen=True)
class ConcatSpec:
    """Tensors of one element type, joined along `axis` (>= 0)."""

    shapes: tuple[tuple[int, ...], ...]
    axis: int
    dtype: str = "float32"
    placed: tuple[int, ...] = ()  # parts that are there already, because the kernels that computed them wrote them there

    @property
    def out_shape(self) -> tuple[int, ...]:
        first = self.shapes[0]
        return (*first[: self.axis], sum(shape[self.axis] for shape in self.shapes), *first[self.axis + 1 :])

    @property
    def outer(self) -> int:
        """Rows: the product of the axes before `axis`."""
        return math.prod(self.out_shape[: self.axis])

    @property
    def copied(self) -> tuple[int, ...]:
        """The parts that the kernel copies."""
        return tuple(i for i in range(len(self.shapes)) if i not in self.placed)

    def place_of(self, part: int, channels: int) -> Place | None:
        """The place of a part whose pixels have so many channels; None if their distances differ."""
        rows = [math.prod(shape[self.axis :]) for shape in self.shapes]
        if rows[part] != channels and (self.outer > 1 or rows[part] % channels):
            return None
        return Place(self.out_shape, sum(rows[:part]), sum(rows) if rows[part] == channels else channels)

    def __str__(self) -> str:
        parts = "+".join(f"({n})" if i in self.placed else str(n) for i, n in enumerate(s[self.axis] for s in self.shapes))
        return f"concat {parts} × {self.outer}"


def copy_of(shape: tuple[int, ...], dtype: str) -> ConcatSpec:
    """A tensor that is copied unchanged."""
    return ConcatSpec((shape or (1,),), 0, "int8" if dtype == "bool" else dtype)  # vectors of bool would be vectors of bits


def kernel(spec: ConcatSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (inputs…, output) for vectors of `width` 32-bit elements; parts that are placed are no inputs."""
    itemsize = tvm_ffi.dtype(spec.dtype).itemsize
    lanes = max(1, width * 4 // itemsize)
    outer, size = spec.outer, math.prod(spec.out_shape)
    rows = [math.prod(shape[spec.axis :]) for shape in spec.shapes]
    starts = [sum(rows[:i]) for i in range(len(rows))]
    is_parallel = outer * sum(rows[i] for i in spec.copied) * _FLOPS >= PARALLEL_FLOPS
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        sources = [T.arg(f"source_{i}", T.buffer(spec.shapes[i], spec.dtype)) for i in spec.copied]
        target = T.arg("target", T.buffer(spec.out_shape, spec.dtype))
        sources = [
            T.decl_buffer((outer * rows[i],), spec.dtype, data=source.data)
            for i, source in zip(spec.copied, sources, strict=True)
        ]
        target = T.decl_buffer((size,), spec.dtype, data=target.data)

        def copy(source, extent, source_start, target_start) -> None:
            part = cover(extent, lanes)

            def body(start, _) -> None:
                value = source[vector(source_start + start, part.lanes)]
                T.buffer_store(target, value, [vector(target_start + start, part.lanes)])

            for_each_vector(part, body)

        parts = [(source, rows[i], starts[i]) for i, source in zip(spec.copied, sources, strict=True) if rows[i]]
        if outer > 1:
            with T.parallel(0, outer) if is_parallel else T.serial(0, outer) as o:
                for source, row, start in parts:
                    copy(source, row, o * row, o * sum(rows) + start)
        else:
            for source, row, start in parts:
                chunks = row // _CHUNK if is_parallel else 0
                if chunks:
                    with T.parallel(0, chunks) as chunk:
                        copy(source, _CHUNK, chunk * _CHUNK, start + chunk * _CHUNK)
                if row > chunks * _CHUNK:
                    copy(source, row - chunks * _CHUNK, chunks * _CHUNK, start + chunks * _CHUNK)
    return builder.get()
