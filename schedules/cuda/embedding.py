"""Rows of a table by their number, as `operators/embedding.py` has them: a block of threads for every number."""

from __future__ import annotations

import math

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..operators.embedding import EmbeddingSpec
from ..tiles.emit import flat, vector
from ..tiles.panel_reader import widened
from .architecture import WARP
from .emit import LANES, ceil_div, launched, only_if

_MOST_THREADS = 256


def kernel(spec: EmbeddingSpec) -> tirx.PrimFunc:
    """A PrimFunc (ids, panel, first, count, y), as on CPUs."""
    numbers = math.prod(spec.ids)
    # Narrow rows need not begin where vectors may.
    lanes = LANES if spec.dtype == "float32" and spec.width % LANES == 0 and not spec.interleaved else 1
    vectors = spec.width // lanes
    threads = min(_MOST_THREADS, ceil_div(vectors, WARP) * WARP)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given_ids = T.arg("ids", T.buffer(spec.ids, spec.ids_dtype))
        panel = T.arg("panel", T.buffer(spec.panel, spec.dtype))
        first, count = T.arg("first", T.int64()), T.arg("count", T.int64())
        given_y = T.arg("y", T.buffer((*spec.ids, spec.width), "float32"))
        ids = T.decl_buffer((numbers,), spec.ids_dtype, data=given_ids.data)
        table, y = flat(panel, math.prod(spec.panel), spec.dtype), flat(given_y, numbers * spec.width)
        with launched((numbers,), threads) as ((number,), thread):
            asked = tirx.Cast("int32", tirx.max(tirx.min(ids[number], spec.rows - 1), 0))
            if spec.interleaved:
                in_table = T.bind(asked // spec.block_rows)
                lane = T.bind(asked - tirx.min(in_table * spec.block_rows, spec.rows - spec.block_rows))
                piece, pieces = T.bind(in_table - tirx.Cast("int32", first)), tirx.Cast("int32", count)
            else:
                piece = T.bind(asked - tirx.Cast("int32", first) * spec.block_rows)
                pieces = tirx.Cast("int32", count) * spec.block_rows
            with only_if(tirx.And(piece >= 0, piece < pieces)):
                if spec.interleaved:
                    stride = spec.block_rows
                    begin = T.bind(piece * (spec.interleaved.rows * stride))
                    scale_at = begin + (spec.interleaved.scale * stride + lane) * spec.scale
                    start = begin + (spec.interleaved.first * stride + lane)
                else:
                    stride = 1
                    scale_at = begin = T.bind(piece * spec.columns)
                    start = begin + spec.scale
                scale = T.bind(_scale(spec, table, scale_at)) if spec.scale else None
                with T.serial(ceil_div(vectors, threads)) as turn:
                    place = T.bind(turn * threads + thread)
                    with only_if(True if vectors % threads == 0 else place < vectors):
                        value = table[vector(start + place * (lanes * stride), lanes)]
                        value = value if spec.dtype == "float32" else widened(value, spec.dtype, lanes)
                        value = value if scale is None else value * scale
                        T.buffer_store(y, value, [vector(number * spec.width + place * lanes, lanes)])
    return builder.get()


def _scale(spec: EmbeddingSpec, table: tirx.Buffer, begin) -> ir.Expr:
    """The float32 whose bits are the first elements of a row, the lowest ones first."""
    each = 32 // spec.scale
    bits = tirx.const(0, "uint32")
    for i in range(spec.scale):
        element = tirx.Cast("uint32", tirx.reinterpret(f"uint{each}", table[begin + i]))
        bits = bits | (element << tirx.const(i * each, "uint32"))
    return tirx.reinterpret("float32", bits)
