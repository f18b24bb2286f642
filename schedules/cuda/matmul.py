"""Batched product of two activations, as tiles of blocks of threads (`product.py`)."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import flat
from ..tiles.spec import MatmulSpec
from .emit import LANES, RESIDENT, both, ceil_div, copy, launched, only_if
from .product import BlockTile, Loaded, Product, or_zeros
from .results import through_epilogue

_RESIDENT_THREADS = 384  # 168 registers for each


def kernel(spec: MatmulSpec, tile: BlockTile) -> tirx.PrimFunc:
    """A PrimFunc (a, b, epilogue tensors…, y): float32[batch, m, k], [batch, k, n] → [batch, m, n], as on CPUs."""
    a_shape = (1 if spec.left_shared else spec.batch, spec.m, spec.k)
    b_shape = (1 if spec.right_shared else spec.batch, spec.k, spec.n)
    y_shape = (spec.batch, spec.m, spec.n)
    blocks = ceil_div(spec.m, tile.rows), ceil_div(spec.n, tile.columns), spec.batch
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        # With all the registers there are ptxas keeps the address of every single result, and spills.
        if spec.n % LANES and tile.shares == 1:
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
            product = Product(tile, thread, spec.k)

            left = _Rows(product, a, left_at, down * tile.rows, (spec.m, spec.k))
            right = _Columns(product, b, right_at, across * tile.columns, (spec.k, spec.n))

            def store(row, column, at) -> None:
                row, column = down * tile.rows + row, across * tile.columns + column
                with only_if(within(row, spec.m, tile.rows)):
                    for lane in range(0, LANES, right.lanes):
                        with only_if(within(column + lane, spec.n, tile.columns)):
                            place = (batch * spec.m + row) * spec.n + column + lane
                            sums = lambda i, lane=lane: product.sums[at + lane + i]  # noqa: E731
                            through_epilogue(spec.epilogue, y, tensors, place, right.lanes, sums)

            product.compute(left, right)
            product.for_each_row(store)
    return builder.get()


class _Rows(Loaded):
    """The left operand: rows of a matrix, along the products."""

    def __init__(self, product: Product, matrix: tirx.Buffer, begin, first_row, shape: tuple[int, int]) -> None:
        super().__init__(len(product.rows_loaded()))
        self.tile, self.matrix, self.begin, self.first_row, self.shape = product.tile, matrix, begin, first_row, shape
        self.lanes = LANES if shape[1] % LANES == 0 else 1  # a vector does not leave a row

    def load(self, i: int, first, at, row) -> None:
        rows, products = self.shape
        # What lies behind the last row is not stored, so that it may be anything.
        row = self.first_row + row if rows % self.tile.rows == 0 else tirx.min(self.first_row + row, rows - 1)
        for lane in range(0, LANES, self.lanes):
            product = first + at + lane
            inside = within(product, products, self.tile.depth)
            with or_zeros(self.ahead, i * LANES + lane, self.lanes, inside):
                copy(self.ahead, i * LANES + lane, self.matrix, self.begin + row * products + product, self.lanes)


class _Columns(Loaded):
    """The right operand: columns of a matrix, several of one product at a time."""

    def __init__(self, product: Product, matrix: tirx.Buffer, begin, first_column, shape: tuple[int, int]) -> None:
        super().__init__(product.columns_loaded)
        self.tile, self.matrix, self.begin, self.first_column, self.shape = product.tile, matrix, begin, first_column, shape
        self.lanes = LANES if shape[1] % LANES == 0 else 1

    def load(self, i: int, first, at, column) -> None:
        products, columns = self.shape
        product = first + at
        for lane in range(0, LANES, self.lanes):
            place = self.first_column + column + lane
            inside = within(product, products, self.tile.depth)
            if self.lanes == LANES and columns % self.tile.columns:
                place = tirx.min(place, columns - LANES)  # as of rows
            elif self.lanes == 1:
                inside = both(inside, within(place, columns, self.tile.columns))
            with or_zeros(self.ahead, i * LANES + lane, self.lanes, inside):
                copy(self.ahead, i * LANES + lane, self.matrix, self.begin + product * columns + place, self.lanes)


def within(index, extent: int, unit: int):
    """Whether an index of a tile exists; True if all do, as tiles of `unit` fill the extent."""
    return True if extent % unit == 0 else index < extent
