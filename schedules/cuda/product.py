"""A tile of a matrix product, by the threads of a block: what convolutions, dense layers and products of activations share.

    rows × columns of the result, `depth` products of each at a time

1. A step's operands, rows × depth and depth × columns, lie in shared memory, the left one transposed: a thread reads what it
   multiplies as vectors of 128 bits, which neighbouring threads read without conflicts of banks.
2. There are two such places. While the threads compute on one, what the next step needs is on its way into their registers; then
   it is written to the other place, and one barrier ends the step.
3. A thread has 8 × 8 results (or 4 × 4), in squares of 4 × 4 that lie half a tile apart.

Where an operand comes from is the caller's: a load may widen narrow numbers, or find that a pixel lies outside of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import maybe_serial, spread, vector
from .architecture import Architecture
from .emit import LANES, barrier, ceil_div, copy, fill, keep_rolled, registers, shared

# Floats between the rows of the left operand, beyond the tile's: four keep vectors aligned, and transposed writes of
# neighbouring threads meet in a bank by twos instead of all.
_PADDING = 4
_UNROLLED = 16  # products; of more ptxas loads so many operands ahead that it spills


@dataclass(frozen=True)
class BlockTile:
    """How a result is cut."""

    rows: int  # of a block of threads
    columns: int
    depth: int  # products of a step
    square: int = 8  # rows, and columns, of a thread

    @property
    def threads(self) -> int:
        return self.rows * self.columns // self.square**2

    @property
    def threads_across(self) -> int:
        return self.columns // self.square

    @property
    def left_stride(self) -> int:
        return self.rows + _PADDING

    @property
    def shared_nbytes(self) -> int:
        return 2 * 4 * self.depth * (self.left_stride + self.columns)

    def __str__(self) -> str:
        return f"{self.rows}×{self.columns}"


# How fast the products of a tile are next to each other, where all multiprocessors have enough of them: larger ones read
# shared memory less often (counted in instructions of their loops).
TILES = {
    BlockTile(128, 128, 16): 1.0,
    BlockTile(128, 64, 16): 0.97,
    BlockTile(64, 64, 16): 0.93,
    BlockTile(64, 32, 32, 4): 0.8,
    BlockTile(32, 32, 32, 4): 0.75,
}


def choose(rows: int, columns: int, batch: int, architecture: Architecture) -> BlockTile:
    """The tile with which a batch of products of rows × columns takes least time."""

    return min(TILES, key=lambda tile: work(tile, rows, columns, batch, architecture))


def work(tile: BlockTile, rows: int, columns: int, batch: int, architecture: Architecture) -> float:
    """Multiply-adds for each product that a batch takes the time of: all multiprocessors wait for the one that has most tiles."""
    blocks = batch * ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
    most = ceil_div(blocks, architecture.multiprocessors)
    return most * architecture.multiprocessors * tile.rows * tile.columns / TILES[tile]


class Operand(Protocol):
    """Where vectors of LANES numbers come from: of the left operand along the products, of the right one along the columns."""

    def load(self, i: int, first, at, place) -> None:
        """Ask for vector i of the thread: of product `at` of the step that begins with product `first`, and of row or column
        `place` of the tile.
        """

    def loaded(self, i: int) -> tuple[tirx.Buffer, int]:
        """The registers in which vector i is, and where in them it begins."""


class Product:
    """The products of one tile."""

    def __init__(self, tile: BlockTile, thread, products: int) -> None:
        self.tile, self.thread, self.products = tile, thread, products
        self.sums = registers(tile.square**2)
        self._left = shared(2 * tile.depth * tile.left_stride)
        self._right = shared(2 * tile.depth * tile.columns)
        self._row = T.bind(thread // tile.threads_across * LANES)
        self._column = T.bind(thread % tile.threads_across * LANES)

    def rows_loaded(self) -> list[ir.Expr]:
        """The rows of the tile of which the thread loads a vector in every step, in the order of their loads."""
        across = self.tile.depth // LANES
        apart = self.tile.threads // across
        return [self.thread // across + i * apart for i in range(self.tile.rows // apart)]

    @property
    def columns_loaded(self) -> int:
        """Vectors of the right operand that the thread loads in every step."""
        return self.tile.depth * self.tile.columns // self.tile.threads // LANES

    def compute(self, left: Operand, right: Operand) -> None:
        """All products, added up in `sums`."""
        tile = self.tile
        steps = ceil_div(self.products, tile.depth)
        fill(self.sums, tile.square**2)
        self._load(left, right, 0)
        self._keep(left, right, 0)
        barrier()
        if steps > 1:
            keep_rolled()
            with T.serial(steps - 1) as step:
                self._load(left, right, (step + 1) * tile.depth)
                self._multiply(step % 2)
                self._keep(left, right, (step + 1) % 2)
                barrier()
        self._multiply((steps - 1) % 2)

    def for_each_row(self, store: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
        """Call `store(row of the tile, column of the tile, place of the first of LANES sums)` for all of the thread's."""
        tile = self.tile
        squares = tile.square // LANES
        with T.unroll(squares) as down, T.unroll(LANES) as row, T.unroll(squares) as across:
            store(
                down * (tile.rows // squares) + self._row + row,
                across * (tile.columns // squares) + self._column,
                (down * LANES + row) * tile.square + across * LANES,
            )

    def _load(self, left: Operand, right: Operand, first) -> None:
        across = self.tile.depth // LANES
        for i, row in enumerate(self.rows_loaded()):
            left.load(i, first, self.thread % across * LANES, row)
        across = self.tile.columns // LANES
        for i in range(self.columns_loaded):
            right.load(i, first, self.thread // across + i * (self.tile.threads // across), self.thread % across * LANES)

    def _keep(self, left: Operand, right: Operand, place) -> None:
        """Write what was loaded to one of the two places."""
        tile = self.tile
        left_at, right_at = place * (tile.depth * tile.left_stride), place * (tile.depth * tile.columns)
        across = tile.depth // LANES
        for i, row in enumerate(self.rows_loaded()):
            source, start = left.loaded(i)
            for lane in range(LANES):
                product = self.thread % across * LANES + lane
                T.buffer_store(self._left, source[start + lane], [left_at + product * tile.left_stride + row])
        for i in range(self.columns_loaded):
            copy(self._right, right_at + (self.thread + i * tile.threads) * LANES, *right.loaded(i))

    def _multiply(self, place) -> None:
        tile = self.tile
        squares = tile.square // LANES
        left_at = T.bind(place * (tile.depth * tile.left_stride) + self._row)
        right_at = T.bind(place * (tile.depth * tile.columns) + self._column)
        left, right = registers(tile.square), registers(tile.square)
        rounds = ceil_div(tile.depth, _UNROLLED)
        if rounds > 1:
            keep_rolled()
        with maybe_serial(0, rounds) as turn, T.unroll(tile.depth // rounds) as within:
            product = turn * _UNROLLED + within
            for i in range(squares):
                copy(left, i * LANES, self._left, left_at + product * tile.left_stride + i * (tile.rows // squares))
                copy(right, i * LANES, self._right, right_at + product * tile.columns + i * (tile.columns // squares))
            with T.unroll(tile.square) as row, T.unroll(tile.square) as column:
                at = row * tile.square + column
                T.buffer_store(self.sums, self.sums[at] + left[row] * right[column], [at])


class Loaded:
    """Registers for what an operand loads that is float32 already."""

    def __init__(self, vectors: int) -> None:
        self.ahead = registers(vectors * LANES)

    def loaded(self, i: int) -> tuple[tirx.Buffer, int]:
        return self.ahead, i * LANES


@contextmanager
def or_zeros(target: tirx.Buffer, at: int, lanes: int, inside: ir.Expr | bool) -> Iterator[None]:
    """What is done where `inside` holds; elsewhere target[at : at + lanes] becomes zero."""
    if inside is True:
        yield
        return
    with T.If(inside):
        with T.Then():
            yield
        with T.Else():
            T.buffer_store(target, spread(tirx.const(0, target.dtype), lanes), [vector(at, lanes)])
