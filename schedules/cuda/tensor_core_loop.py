"""The main loop by tensor cores: operands are rounded to tf32, sums are float32.

    rows of a warp × 32 columns, eight products at a time

A warp's product is one of 16 × 8 and 8 × 8 numbers, which threads read one by one, into the required registers: moving numbers
there from vectors took as many instructions as all else. Rows of the operands lie so far apart that no two threads of a warp read
from one bank (`BlockTile`). A thread has sums of two neighbouring columns.

Where many warps read the same numbers, threads round after copying to shared memory; else after reading. Narrow
weights are as short as tf32 already.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir
from tvm.script.ir_builder import tirx as T

from .architecture import WARP, Architecture
from .block_tile import BlockTile
from .emit import LANES, copy, kept, registers
from .instructions import tf32_multiply, tf32_rounded
from .main_loop import MainLoop, Operand

_ROWS, _PRODUCTS = 16, 8  # of a warp's product
_HALF = 8, 4  # rows and products that a thread's numbers are apart
_COLUMNS = 32  # of a warp
_ACROSS = 4  # products for these
_MANY = 4  # warps that read the same number of the left operand: rounding for all of these takes two more instructions


def main_loop(tile: BlockTile, thread, products: int, architecture: Architecture) -> MainLoop:
    """The main loop of a tile."""
    return (TensorCoreLoop if tile.tf32 else MainLoop)(tile, thread, products, architecture)


class TensorCoreLoop(MainLoop):
    """The main loop of one tile, by warps."""

    neighbours = 2

    def _place(self, thread, part) -> None:
        tile = self.tile
        warp, lane = thread // WARP, thread % WARP
        across = tile.columns // _COLUMNS
        first_column = warp % across * _COLUMNS
        group, member = lane // _HALF[1], lane % _HALF[1]
        self._row = T.bind(warp // across * tile.sums + group)
        self._column = T.bind(first_column + member * self.neighbours)
        self._left_read = kept(self._row * tile.left_stride + part + member)
        self._right_read = kept(self._right + (part + member) * tile.right_stride + first_column + group)

    @property
    def _is_rounded(self) -> bool:
        """Whether operands are rounded in shared memory, before the reads."""
        return self.tile.split_k == 1 and self.tile.columns // _COLUMNS >= _MANY

    def compute(self, left: Operand, right: Operand, part=0) -> None:
        self._are_short = right.is_short
        super().compute(left, right, part)

    def _arrived(self, left: Operand, right: Operand, to) -> None:
        if not self._is_rounded:
            return
        slots = [self._left_slot(i, to) for i in range(len(self.rows_loaded()))]
        if not right.is_short:
            slots += [self._right_slot(i, to) for i in range(self.columns_loaded)]
        vector = registers(LANES)
        for slot in slots:
            copy(vector, 0, slot.buffer, slot.at)
            for i in range(LANES):
                T.buffer_store(vector, tf32_rounded(vector[i]), [i])
            copy(slot.buffer, slot.at, vector, 0)

    def _multiply(self, place) -> None:
        tile = self.tile
        rows, columns = _HALF
        left_at = T.bind(self._left_read + place * (tile.rows * tile.left_stride))
        right_at = T.bind(self._right_read + place * (tile.depth * tile.right_stride))
        left, right = registers(4), registers(2 * _ACROSS)
        with T.unroll(tile.depth // tile.split_k // _PRODUCTS) as some:
            for i in range(2 * _ACROSS):
                far = (some * _PRODUCTS + i % 2 * columns) * tile.right_stride + i // 2 * _PRODUCTS
                T.buffer_store(right, self._shared[right_at + far], [i])
            if not self._are_short:
                self._round(right, 2 * _ACROSS)
            with T.unroll(tile.sums // _ROWS) as down:
                for i in range(4):
                    far = (down * _ROWS + i % 2 * rows) * tile.left_stride + some * _PRODUCTS + i // 2 * columns
                    T.buffer_store(left, self._shared[left_at + far], [i])
                self._round(left, 4)
                for i in range(_ACROSS):
                    fragments = [left[j] for j in range(4)], [right[2 * i], right[2 * i + 1]]
                    tf32_multiply(self.sums, down * _ROWS + 2 * i, *fragments)

    def _round(self, numbers, count: int) -> None:
        if not self._is_rounded:
            for i in range(count):
                T.buffer_store(numbers, tf32_rounded(numbers[i]), [i])

    def _for_each_row(self, store: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
        with T.unroll(self.tile.sums // _HALF[0]) as row, T.unroll(_ACROSS) as across:
            place = self._row + row * _HALF[0], self._column + across * _PRODUCTS
            store(*place, (row * _ACROSS + across) * self.neighbours)
