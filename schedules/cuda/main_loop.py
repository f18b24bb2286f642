"""The GEMM main loop: a tile of a matrix product, by a block's threads, for convolutions, dense layers and matmuls.

    rows × columns of the result, `depth` products of each at a time

1. A step's operands, rows × depth and depth × columns, lie in shared memory. A thread reads its factors
   as vectors of 128 bits, of the left operand four products at a time, without bank conflicts.
2. There are two to four such places. While the threads compute on one, the operands of the next steps are copied to the
   others (`copy_stage.py`). One barrier begins the step.
3. A thread has 8 × 8 results, in rows that lie an eighth of the tile apart. Small tiles, which would have few threads, split k
   within a block: several threads have the same results, each of a part of a step's products, added up in the end.

Where an operand comes from is the caller's: a load may widen narrow numbers, or find that a pixel lies outside of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .architecture import Architecture
from .block_tile import SQUARE, BlockTile
from .copy_stage import AsyncCopy, CopyStage, RegisterCopy, SharedVector
from .emit import LANES, barrier, ceil_div, copy, fill, keep_rolled, kept, only_if, registers, shared
from .instructions import commit, wait


class Operand(Protocol):
    """Where vectors of LANES numbers come from: of the left operand along the products, of the right one along the columns."""

    def load(self, i: int, first, at, place, to: SharedVector) -> None:
        """Ask for vector i of the thread: of product `at` of the step that begins with product `first`, and of row or column
        `place` of the tile.
        """

    lanes: int  # numbers that are copied at once
    is_short: bool  # whether all numbers have ten bits of mantissa at most

    def store_shared(self, i: int, to: SharedVector) -> None:
        """Write vector i to shared memory, unless an asynchronous copy does."""


class MainLoop:
    """The main loop of one tile."""

    neighbours = LANES  # sums of a thread that are neighbours in a row
    left_nbytes: int  # of shared memory, for others

    def __init__(self, tile: BlockTile, thread, products: int, architecture: Architecture) -> None:
        self.tile, self.thread, self.fetches = tile, thread, architecture.fetches
        self.steps = ceil_div(ceil_div(products, tile.depth), tile.parts)
        self._places = max(2, min(tile.places, self.steps)) if self.fetches else 2
        self.sums = registers(tile.sums)
        nbytes = tile.shared_nbytes(self._places)
        self._shared, self.left_nbytes = shared(nbytes // 4), architecture.block_shared_nbytes - nbytes
        self._right = self._places * tile.rows * tile.left_stride  # after the left operand's places
        sharing = tile.threads // tile.split_k
        self._split, thread = (T.bind(thread // sharing), T.bind(thread % sharing)) if tile.split_k > 1 else (0, thread)
        self._place(thread, tile.depth // tile.split_k * self._split)
        across = tile.depth // LANES
        self._left_write = kept(self.thread // across * (tile.left_stride // LANES) + self.thread % across)

    def _place(self, thread, part) -> None:
        """Where a thread reads in the first of the places, from product `part` on, in vectors."""
        tile = self.tile
        self._row = T.bind(thread // tile.threads_across)
        self._column = T.bind(thread % tile.threads_across * LANES)
        self._left_read = kept((self._row * tile.left_stride + part) // LANES)
        self._right_read = kept((self._right + part * tile.columns + self._column) // LANES)

    def rows_loaded(self) -> list[ir.Expr]:
        """The tile's rows that the thread loads a vector of in every step, in the order of the loads."""
        across = self.tile.depth // LANES
        apart = self.tile.threads // across
        return [self.thread // across + i * apart for i in range(self.tile.rows // apart)]

    @property
    def columns_loaded(self) -> int:
        """Vectors of the right operand that the thread loads in every step."""
        return self.tile.depth * self.tile.columns // self.tile.threads // LANES

    @property
    def products_apart(self) -> int:
        """How far the products of these are apart; all are of the same columns."""
        return self.tile.threads * LANES // self.tile.columns

    def first_vector(self) -> tuple[ir.Expr, ir.Expr]:
        """(product, column) of the first of these, in the first step."""
        across = self.tile.columns // LANES
        return self.thread // across, self.thread % across * LANES

    def stage(self, vectors: int) -> CopyStage:
        """The copy stage for `vectors` vectors of a float32 operand."""
        return AsyncCopy() if self.fetches else RegisterCopy(vectors)

    def compute(self, left: Operand, right: Operand, part=0) -> None:
        """All products of one of the tile's parts, added up in `sums`."""
        tile, ahead = self.tile, self._places - 1
        begin = 0 if tile.parts == 1 else T.bind(part * self.steps * tile.depth)
        fill(self.sums, tile.sums)
        for step in range(min(ahead, self.steps)):
            self._load(left, right, begin + step * tile.depth, step)
            self._end_group()
            self._store(left, right, step)
        if self.steps == 1:
            self._arrived_all(left, right, 0, 0)
            self._multiply(0)
        else:
            # Of three places a count takes fewer instructions than a remainder.
            counted = registers(1, "int32") if self._places == 3 else None
            if counted is not None:
                T.buffer_store(counted, tirx.const(0, "int32"), [0])
            keep_rolled()
            with T.serial(self.steps) as step:
                place = T.bind(step % self._places if counted is None else counted[0])
                other = (step + ahead) % self._places
                other = T.bind(other if counted is None else tirx.Select(place > 0, place - 1, tirx.const(ahead, "int32")))
                is_followed = step + ahead < self.steps
                self._arrived_all(left, right, place, ahead - 1)
                with only_if(is_followed):
                    self._load(left, right, begin + (step + ahead) * tile.depth, other)
                self._end_group()
                self._multiply(place)
                with only_if(is_followed):
                    self._store(left, right, other)
                if counted is not None:
                    T.buffer_store(counted, tirx.Select(place < ahead, place + 1, tirx.const(0, "int32")), [0])
        if tile.split_k > 1:
            self._add_up()

    def _arrived_all(self, left: Operand, right: Operand, place, later: int) -> None:
        """Wait until all threads' copies to a place are there; `later` groups of copies may be on their way."""
        if self.fetches:
            wait(later)
        self._arrived(left, right, place)
        barrier()

    def for_each_row(self, store: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
        """Call `store(row of the tile, column of the tile, place of the first of `stored` sums)` for all of the thread's."""
        if self.tile.split_k == 1:
            self._for_each_row(store)
            return
        for i in range(self._vectors_kept):
            vector_at = self.thread + i * self.tile.threads
            across = self.tile.columns // LANES
            store(vector_at // across, vector_at % across * LANES, i * LANES)

    @property
    def stored(self) -> int:
        """Sums that are neighbours in a row when all are added up."""
        return LANES if self.tile.split_k > 1 else self.neighbours

    def _for_each_row(self, store: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
        tile = self.tile
        squares = SQUARE // LANES
        with T.unroll(SQUARE) as row, T.unroll(squares) as across:
            store(
                row * tile.threads_down + self._row,
                across * (tile.columns // squares) + self._column,
                row * SQUARE + across * LANES,
            )

    @property
    def _vectors_kept(self) -> int:
        """Vectors of results that a thread has after the parts are added up."""
        return self.tile.sums // self.tile.split_k // LANES

    def _add_up(self) -> None:
        """Add up the sums of threads with the same results, in the operands' memory: each thread gets a part of the results."""
        tile = self.tile
        floats = tile.rows * tile.columns
        barrier()
        self._for_each_row(
            lambda row, column, at: copy(
                self._shared, self._split * floats + row * tile.columns + column, self.sums, at, self.neighbours
            )
        )
        barrier()
        other = registers(LANES)
        for i in range(self._vectors_kept):
            place = (self.thread + i * tile.threads) * LANES
            copy(self.sums, i * LANES, self._shared, place)
            for part in range(1, tile.split_k):
                copy(other, 0, self._shared, part * floats + place)
                for lane in range(LANES):
                    T.buffer_store(self.sums, self.sums[i * LANES + lane] + other[lane], [i * LANES + lane])

    def _load(self, left: Operand, right: Operand, first, to) -> None:
        """Ask for the operands of the step that begins with product `first`, for one of the places."""
        across = self.tile.depth // LANES
        for i, row in enumerate(self.rows_loaded()):
            left.load(i, first, self.thread % across * LANES, row, self._left_slot(i, to))
        at, column = self.first_vector()
        for i in range(self.columns_loaded):
            right.load(i, first, at + i * self.products_apart, column, self._right_slot(i, to))

    def _end_group(self) -> None:
        if self.fetches:
            commit()

    def _store(self, left: Operand, right: Operand, to) -> None:
        """Write the requested operands that are in registers to shared memory."""
        for i in range(len(self.rows_loaded())):
            left.store_shared(i, self._left_slot(i, to))
        for i in range(self.columns_loaded):
            right.store_shared(i, self._right_slot(i, to))

    def _arrived(self, left: Operand, right: Operand, to) -> None:
        """Called on the numbers that a thread copied, before other threads read them."""

    def _left_slot(self, i: int, to) -> SharedVector:
        tile = self.tile
        apart = tile.threads // (tile.depth // LANES) * tile.left_stride
        return SharedVector(self._shared, to * (tile.rows * tile.left_stride) + self._left_write * LANES + i * apart)

    def _right_slot(self, i: int, to) -> SharedVector:
        tile = self.tile
        at = self._right + to * (tile.depth * tile.right_stride)
        if tile.right_stride == tile.columns:
            return SharedVector(self._shared, at + (self.thread + i * tile.threads) * LANES)
        row, column = self.first_vector()
        return SharedVector(self._shared, at + (row + i * self.products_apart) * tile.right_stride + column)

    def _multiply(self, place) -> None:
        tile = self.tile
        squares = SQUARE // LANES
        part = tile.depth // tile.split_k
        left_at = T.bind(self._left_read * LANES + place * (tile.rows * tile.left_stride))
        right_at = T.bind(self._right_read * LANES + place * (tile.depth * tile.columns))
        left, right = registers(SQUARE * LANES), registers(SQUARE)
        with T.unroll(part // LANES) as some:
            for i in range(SQUARE):
                copy(left, i * LANES, self._shared, left_at + some * LANES + i * (tile.threads_down * tile.left_stride))
            with T.unroll(LANES) as lane:
                for i in range(squares):
                    at = right_at + (some * LANES + lane) * tile.columns + i * (tile.columns // squares)
                    copy(right, i * LANES, self._shared, at)
                with T.unroll(SQUARE) as row, T.unroll(SQUARE) as column:
                    at = row * SQUARE + column
                    T.buffer_store(self.sums, self.sums[at] + left[row * LANES + lane] * right[column], [at])
