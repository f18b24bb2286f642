"""Batched product of two activations, float32, row-major, without scratch.

1. Tasks are (batch, block of columns); the block's columns of the right operand, k rows of one tile's width, stay
   in the first- or second-level cache while all row tiles pass over them.
2. Rows are cut evenly into tiles; columns into blocks of the tile's width, the last one overlapping its
   predecessor, so that no store needs a mask.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .family import PRODUCTS, Candidate, Family
from .tiles import epilogue as ep
from .tiles import lane
from .tiles.emit import Accumulators, flat, loop, vector, zero
from .tiles.spec import MatmulSpec
from .tiles.tile import Tile, VectorUnit, choose, pieces, runs, split_evenly
from .tiles.trials import tiles


def kernel(spec: MatmulSpec, tile: Tile, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (a, b, epilogue tensors…, y): float32[batch, m, k], [batch, k, n] → [batch, m, n].

    A shared operand has a batch of one.
    """
    blocks = math.ceil(spec.n / tile.channels)
    columns = pieces(tile.channels, vector_width)
    a_shape = (1 if spec.left_shared else spec.batch, spec.m, spec.k)
    b_shape = (1 if spec.right_shared else spec.batch, spec.k, spec.n)
    y_shape = (spec.batch, spec.m, spec.n)
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            given_a = T.arg("a", T.buffer(a_shape, "float32"))
            given_b = T.arg("b", T.buffer(b_shape, "float32"))
            extra = [T.arg(f"t{i}", T.buffer(y_shape, "float32")) for i in range(spec.tensors)]
            result = T.arg("y", T.buffer(y_shape, "float32"))
            a, b = flat(given_a, math.prod(a_shape)), flat(given_b, math.prod(b_shape))
            tensors = [flat(t, math.prod(y_shape)) for t in extra]
            y = flat(result, math.prod(y_shape))
            with loop(spec.batch * blocks, spec.flops) as task:
                acc = Accumulators(tile.rows, columns)
                batch = T.bind(task // blocks)
                left = 0 if spec.left_shared else batch * (spec.m * spec.k)
                start = tirx.min(task % blocks * tile.channels, spec.n - tile.channels)
                column = T.bind(start) if blocks > 1 else 0
                right = T.bind((0 if spec.right_shared else batch * (spec.k * spec.n)) + column)
                for row, size, count in runs(split_evenly(spec.m, tile.rows)):
                    with T.serial(count) as i:
                        top = row + i * size
                        acc.fill(size, lambda start, lanes: zero(lanes))
                        lane.reduce(
                            acc,
                            list(range(size)),
                            spec.k,
                            lambda r, step, lanes, top=top: a[vector(left + (top + r) * spec.k + step, lanes)],
                            lambda step, start, lanes: b[vector(right + step * spec.n + start, lanes)],
                            tile.depth,
                        )
                        for r in range(size):
                            place = (batch * spec.m + top + r) * spec.n + column
                            for start, lanes in columns:
                                index = vector(place + start, lanes)
                                value = ep.evaluate(
                                    spec.epilogue,
                                    acc.get(r, start, lanes),
                                    tensor=lambda i, index=index: tensors[i][index],
                                    channel=_no_channels,
                                )
                                T.buffer_store(y, value, [index])
    return builder.get()


def _no_channels(index: int) -> tirx.Expr:
    raise AssertionError(f"a product of two activations has no packed channel vectors, asked for {index}")


def _candidate(spec: MatmulSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    return Candidate("matmul", tile, None, 0, float(spec.flops), lambda: kernel(spec, tile, unit.width))


FAMILY = Family(
    "matmul",
    MatmulSpec,
    lambda spec, unit: [_candidate(spec, choose(spec.m, spec.n, unit, row_nbytes=4 * spec.k), unit)],
    lambda spec, unit: [_candidate(spec, tile, unit) for tile in tiles(spec.m, spec.n, unit)],
    group=PRODUCTS,
)
