"""Batched product of two activations, as tiles of blocks of threads (`product.py`)."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import flat
from ..tiles.spec import MatmulSpec
from .emit import LANES, both, ceil_div, copy, launched, only_if
from .product import BlockTile, Product, or_zeros
from .results import through_epilogue


def kernel(spec: MatmulSpec, tile: BlockTile) -> tirx.PrimFunc:
    """A PrimFunc (a, b, epilogue tensors…, y): float32[batch, m, k], [batch, k, n] → [batch, m, n], as on CPUs."""
    a_shape = (1 if spec.left_shared else spec.batch, spec.m, spec.k)
    b_shape = (1 if spec.right_shared else spec.batch, spec.k, spec.n)
    y_shape = (spec.batch, spec.m, spec.n)
    # Vectors do not leave a row of either operand.
    left_lanes, right_lanes = (LANES if extent % LANES == 0 else 1 for extent in (spec.k, spec.n))
    blocks = ceil_div(spec.m, tile.rows), ceil_div(spec.n, tile.columns), spec.batch
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        if not spec.tensors:  # y may be one of the epilogue's tensors
            T.func_attr({"tirx.noalias": True})
        a, b = (T.arg(name, T.buffer(shape, "float32")) for name, shape in (("a", a_shape), ("b", b_shape)))
        extra = [T.arg(f"t{i}", T.buffer(y_shape, "float32")) for i in range(spec.tensors)]
        y = T.arg("y", T.buffer(y_shape, "float32"))
        a, b = flat(a, math.prod(a_shape)), flat(b, math.prod(b_shape))
        tensors, y = [flat(t, math.prod(y_shape)) for t in extra], flat(y, math.prod(y_shape))
        with launched(blocks, tile.threads) as ((down, across, batch), thread):
            left_at = 0 if spec.left_shared else batch * (spec.m * spec.k)
            right_at = 0 if spec.right_shared else batch * (spec.k * spec.n)
            product = Product(tile, thread, spec.k)

            def exists(index, extent: int, unit: int):
                return True if extent % unit == 0 else index < extent

            def left(target: tirx.Buffer, i: int, first, at, row) -> None:
                row = down * tile.rows + row
                for lane in range(0, LANES, left_lanes):
                    k = first + at + lane
                    inside = both(exists(row, spec.m, tile.rows), exists(k, spec.k, tile.depth))
                    with or_zeros(target, i * LANES + lane, left_lanes, inside):
                        copy(target, i * LANES + lane, a, left_at + row * spec.k + k, left_lanes)

            def right(target: tirx.Buffer, i: int, first, at, column) -> None:
                k = first + at
                for lane in range(0, LANES, right_lanes):
                    n = across * tile.columns + column + lane
                    inside = both(exists(k, spec.k, tile.depth), exists(n, spec.n, tile.columns))
                    with or_zeros(target, i * LANES + lane, right_lanes, inside):
                        copy(target, i * LANES + lane, b, right_at + k * spec.n + n, right_lanes)

            def store(row, column, at) -> None:
                row, column = down * tile.rows + row, across * tile.columns + column
                with only_if(exists(row, spec.m, tile.rows)):
                    for lane in range(0, LANES, right_lanes):
                        with only_if(exists(column + lane, spec.n, tile.columns)):
                            place = (batch * spec.m + row) * spec.n + column + lane
                            sums = lambda i, lane=lane: product.sums[at + lane + i]  # noqa: E731
                            through_epilogue(spec.epilogue, y, tensors, place, right_lanes, sums)

            product.compute(left, right)
            product.for_each_row(store)
    return builder.get()
