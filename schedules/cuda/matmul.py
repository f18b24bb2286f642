"""Batched product of two activations, as tiles of blocks of threads (`main_loop.py`)."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import flat
from ..tiles.spec import MatmulSpec
from .architecture import Architecture
from .block_tile import BlockTile
from .copy_stage import SharedVector, copy_width
from .emit import LANES, RESIDENT, both, ceil_div, launched, only_if, within
from .main_loop import MainLoop
from .results import through_epilogue
from .tensor_core_loop import main_loop

_RESIDENT_THREADS = 384  # 168 registers for each


def kernel(spec: MatmulSpec, tile: BlockTile, architecture: Architecture) -> tirx.PrimFunc:
    """A PrimFunc (a, b, epilogue tensors…, y): float32[batch, m, k], [batch, k, n] → [batch, m, n], as on CPUs."""
    a_shape = (1 if spec.left_shared else spec.batch, spec.m, spec.k)
    b_shape = (1 if spec.right_shared else spec.batch, spec.k, spec.n)
    y_shape = (spec.batch, spec.m, spec.n)
    blocks = ceil_div(spec.m, tile.rows), ceil_div(spec.n, tile.columns), spec.batch
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        # With all the registers there are ptxas keeps the address of every single result, and spills.
        if spec.n % LANES and tile.split_k == 1:
            T.func_attr({RESIDENT: _RESIDENT_THREADS})
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
            loop = main_loop(tile, thread, spec.k, architecture)

            left = _Rows(loop, a, left_at, down * tile.rows, (spec.m, spec.k))
            right = _Columns(loop, b, right_at, across * tile.columns, (spec.k, spec.n))

            def store(row, column, at) -> None:
                row, column = down * tile.rows + row, across * tile.columns + column
                with only_if(within(row, spec.m, tile.rows)):
                    lanes = min(right.lanes, loop.stored)
                    for lane in range(0, loop.stored, lanes):
                        with only_if(within(column + lane, spec.n, tile.columns)):
                            place = (batch * spec.m + row) * spec.n + column + lane
                            sums = lambda i, lane=lane: loop.sums[at + lane + i]  # noqa: E731
                            through_epilogue(spec.epilogue, y, tensors, place, lanes, sums)

            loop.compute(left, right)
            loop.for_each_row(store)
    return builder.get()


class _Rows:
    """The left operand: rows of a matrix, along the products."""

    is_short = False

    def __init__(self, loop: MainLoop, matrix: tirx.Buffer, begin, first_row, shape: tuple[int, int]) -> None:
        self.stage = loop.stage(len(loop.rows_loaded()))
        self.store_shared = self.stage.store_shared
        self.depth, (rows, self.products) = loop.tile.depth, shape
        self.lanes = lanes = copy_width(self.stage, self.products)  # a vector does not leave a row
        self.sources = []
        for row in loop.rows_loaded():
            # Rows after the last one are not stored, and may hold anything.
            row = first_row + row if rows % loop.tile.rows == 0 else tirx.min(first_row + row, rows - 1)
            self.sources.append(self.stage.source(matrix, begin // lanes + row * (self.products // lanes), lanes))

    def load(self, i: int, first, at, row, to: SharedVector) -> None:
        for lane in range(0, LANES, self.lanes):
            product = first + at + lane
            inside = within(product, self.products, self.depth)
            self.stage.issue(i, lane, self.sources[i], (first + at) // self.lanes, lane // self.lanes, inside, to)


class _Columns:
    """The right operand: columns of a matrix, several of one product at a time."""

    is_short = False

    def __init__(self, loop: MainLoop, matrix: tirx.Buffer, begin, first_column, shape: tuple[int, int]) -> None:
        self.stage = loop.stage(loop.columns_loaded)
        self.store_shared = self.stage.store_shared
        self.tile, self.first_column, self.shape, self.apart = loop.tile, first_column, shape, loop.products_apart
        columns = shape[1]
        self.lanes = lanes = copy_width(self.stage, columns)
        at, column = loop.first_vector()
        place = first_column + column
        if lanes == LANES and columns % loop.tile.columns:
            place = tirx.min(place, columns - LANES)  # as of rows
        self.source = self.stage.source(matrix, begin // lanes + at * (columns // lanes) + place // lanes, lanes)

    def load(self, i: int, first, at, column, to: SharedVector) -> None:
        products, columns = self.shape
        product = first + at
        for lane in range(0, LANES, self.lanes):
            inside = within(product, products, self.tile.depth)
            if self.lanes < LANES:
                inside = both(inside, within(self.first_column + column + lane, columns, self.tile.columns))
            units = columns // self.lanes  # of a product
            beyond = i * self.apart * units + lane // self.lanes
            self.stage.issue(i, lane, self.source, first * units, beyond, inside, to)
