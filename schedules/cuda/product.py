"""A tile of a matrix product, by the threads of a block: what convolutions, dense layers and products of activations share.

    rows × columns of the result, `depth` products of each at a time

1. A step's operands, rows × depth and depth × columns, lie in shared memory as they were loaded: a thread reads what it
   multiplies as vectors of 128 bits, of the left one four products at a time, without conflicts of banks.
2. There are two such places. While the threads compute on one, what the next step needs is on its way to the other, or where a
   GPU cannot copy there by itself, into their registers, from which it is written. One barrier ends the step.
3. A thread has 8 × 8 results, in rows that lie an eighth of the tile apart. In small tiles, which would have few threads, the
   products of a step are shared out: several threads have the same results, of parts of the products, added up in the end.

Where an operand comes from is the caller's: a load may widen narrow numbers, or find that a pixel lies outside of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import ir
from tvm.script.ir_builder import tirx as T

from .architecture import Architecture
from .bringing import Fetched, Loaded, Room, Way
from .emit import LANES, barrier, ceil_div, copy, fill, keep_rolled, kept, registers, shared
from .instructions import commit, wait

_SQUARE = 8  # rows, and columns, of a thread
# Floats between the rows of the left operand: four keep vectors aligned, and those of neighbouring rows in other banks.
_PADDING = 4
_SUMS = _SQUARE**2


@dataclass(frozen=True)
class BlockTile:
    """How a result is cut."""

    rows: int  # of a block of threads
    columns: int
    depth: int  # products of a step
    shares: int = 1  # threads that have the same results, of as many parts of the products

    @property
    def threads(self) -> int:
        return self.rows * self.columns // _SUMS * self.shares

    @property
    def threads_across(self) -> int:
        return self.columns // _SQUARE

    @property
    def threads_down(self) -> int:
        return self.rows // _SQUARE

    @property
    def left_stride(self) -> int:
        return self.depth + _PADDING

    @property
    def shared_nbytes(self) -> int:
        operands = 2 * (self.rows * self.left_stride + self.depth * self.columns)
        return 4 * max(operands, self.shares * self.rows * self.columns if self.shares > 1 else 0)

    def __str__(self) -> str:
        return f"{self.rows}×{self.columns}"


# How fast the products of a tile are next to each other, where all multiprocessors have enough of them: larger ones read
# shared memory less often (counted in instructions of their loops).
TILES = {
    BlockTile(128, 128, 16): 1.0,
    BlockTile(128, 64, 16): 0.97,
    BlockTile(64, 64, 16): 0.93,
    BlockTile(64, 32, 32, shares=4): 0.9,
    BlockTile(32, 64, 32, shares=4): 0.9,
    BlockTile(32, 32, 32, shares=4): 0.87,
}
# Tiles of fewer columns have fewer multiply-adds for each number of a row, which takes instructions of its own where numbers are
# loaded one by one.
_ENOUGH_COLUMNS, _ONE_BY_ONE = 64, 0.96


def choose(rows: int, columns: int, batch: int, architecture: Architecture, *, one_by_one: bool = False) -> BlockTile:
    """The tile with which a batch of products of rows × columns takes least time; rows may have to be loaded `one_by_one`."""

    return min(TILES, key=lambda tile: work(tile, rows, columns, batch, architecture, one_by_one=one_by_one))


def work(tile: BlockTile, rows: int, columns: int, batch: int, architecture: Architecture, *, one_by_one: bool = False) -> float:
    """Multiply-adds for each product that a batch takes the time of: all multiprocessors wait for the one that has most tiles."""
    blocks = batch * ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
    most = ceil_div(blocks, architecture.multiprocessors)
    rate = TILES[tile] * (_ONE_BY_ONE if one_by_one and tile.columns < _ENOUGH_COLUMNS else 1)
    return most * architecture.multiprocessors * tile.rows * tile.columns / rate


class Operand(Protocol):
    """Where vectors of LANES numbers come from: of the left operand along the products, of the right one along the columns."""

    def load(self, i: int, first, at, place, room: Room) -> None:
        """Ask for vector i of the thread: of product `at` of the step that begins with product `first`, and of row or column
        `place` of the tile.
        """

    def keep(self, i: int, room: Room) -> None:
        """Write vector i to its place, if it is not on its way there."""


class Product:
    """The products of one tile."""

    def __init__(self, tile: BlockTile, thread, products: int, architecture: Architecture) -> None:
        self.tile, self.thread, self.products, self.fetches = tile, thread, products, architecture.fetches
        self.sums = registers(_SUMS)
        self._room = shared(tile.shared_nbytes // 4)
        self._right = 2 * tile.rows * tile.left_stride  # behind the left operand's two places
        sharing = tile.threads // tile.shares
        self._share, thread = (T.bind(thread // sharing), T.bind(thread % sharing)) if tile.shares > 1 else (0, thread)
        self._row = T.bind(thread // tile.threads_across)
        self._column = T.bind(thread % tile.threads_across * LANES)
        # Where the thread reads and writes in the first place, in vectors.
        part = tile.depth // tile.shares * self._share
        self._left_read = kept((self._row * tile.left_stride + part) // LANES)
        self._right_read = kept((self._right + part * tile.columns + self._column) // LANES)
        across = tile.depth // LANES
        self._left_write = kept(self.thread // across * (tile.left_stride // LANES) + self.thread % across)

    def rows_loaded(self) -> list[ir.Expr]:
        """The rows of the tile of which the thread loads a vector in every step, in the order of their loads."""
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

    def way(self, vectors: int) -> Way:
        """How so many vectors of a float32 operand come to shared memory."""
        return Fetched() if self.fetches else Loaded(vectors)

    def compute(self, left: Operand, right: Operand) -> None:
        """All products, added up in `sums`."""
        tile = self.tile
        steps = ceil_div(self.products, tile.depth)
        fill(self.sums, _SUMS)
        self._load(left, right, 0, 0)
        self._keep(left, right, 0)
        # A round of two steps knows where they read and write, which takes no instructions then. Where they have many products
        # for what they load they need not, and loops stay short.
        each = 2 if tile.shares > 1 or left.lanes < LANES else 1
        rounds, rest = divmod(steps - 1, each)
        if rounds:
            keep_rolled()
            with T.serial(rounds) as turn:
                for number in range(each):
                    step = turn * each + number
                    self._step(left, right, (step + 1) * tile.depth, number if each == 2 else step % 2)
        if rest:
            self._step(left, right, (steps - 1) * tile.depth, 0)
        self._multiply((steps - 1) % 2)
        if tile.shares > 1:
            self._add_up()

    def _step(self, left: Operand, right: Operand, following, place) -> None:
        """Multiply what lies in one place, while what begins with product `following` comes to the other."""
        other = 1 - place if isinstance(place, int) else (place + 1) % 2
        self._load(left, right, following, other)
        self._multiply(place)
        self._keep(left, right, other)

    def for_each_row(self, store: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
        """Call `store(row of the tile, column of the tile, place of the first of LANES sums)` for all of the thread's."""
        if self.tile.shares == 1:
            self._for_each_row(store)
            return
        for i in range(self._vectors_kept):
            vector_at = self.thread + i * self.tile.threads
            across = self.tile.columns // LANES
            store(vector_at // across, vector_at % across * LANES, i * LANES)

    def _for_each_row(self, store: Callable[[ir.Expr, ir.Expr, ir.Expr], None]) -> None:
        tile = self.tile
        squares = _SQUARE // LANES
        with T.unroll(_SQUARE) as row, T.unroll(squares) as across:
            store(
                row * tile.threads_down + self._row,
                across * (tile.columns // squares) + self._column,
                row * _SQUARE + across * LANES,
            )

    @property
    def _vectors_kept(self) -> int:
        """Vectors of results that a thread has when those of all shares are added up."""
        return _SUMS // self.tile.shares // LANES

    def _add_up(self) -> None:
        """What threads with the same results have, added up by way of the operands' places: each gets a part of them."""
        tile = self.tile
        floats = tile.rows * tile.columns
        barrier()
        self._for_each_row(
            lambda row, column, at: copy(self._room, self._share * floats + row * tile.columns + column, self.sums, at)
        )
        barrier()
        other = registers(LANES)
        for i in range(self._vectors_kept):
            place = (self.thread + i * tile.threads) * LANES
            copy(self.sums, i * LANES, self._room, place)
            for share in range(1, tile.shares):
                copy(other, 0, self._room, share * floats + place)
                for lane in range(LANES):
                    T.buffer_store(self.sums, self.sums[i * LANES + lane] + other[lane], [i * LANES + lane])

    def _load(self, left: Operand, right: Operand, first, to) -> None:
        """Ask for what the step that begins with product `first` needs, for one of the two places."""
        across = self.tile.depth // LANES
        for i, row in enumerate(self.rows_loaded()):
            left.load(i, first, self.thread % across * LANES, row, self._left_room(i, to))
        at, column = self.first_vector()
        for i in range(self.columns_loaded):
            right.load(i, first, at + i * self.products_apart, column, self._right_room(i, to))
        if self.fetches:
            commit()

    def _keep(self, left: Operand, right: Operand, to) -> None:
        """See that what was asked for is there, for all threads."""
        for i in range(len(self.rows_loaded())):
            left.keep(i, self._left_room(i, to))
        for i in range(self.columns_loaded):
            right.keep(i, self._right_room(i, to))
        if self.fetches:
            wait()
        barrier()

    def _left_room(self, i: int, to) -> Room:
        tile = self.tile
        apart = tile.threads // (tile.depth // LANES) * tile.left_stride
        return Room(self._room, to * (tile.rows * tile.left_stride) + self._left_write * LANES + i * apart)

    def _right_room(self, i: int, to) -> Room:
        tile = self.tile
        at = self._right + to * (tile.depth * tile.columns)
        return Room(self._room, at + (self.thread + i * tile.threads) * LANES)

    def _multiply(self, place) -> None:
        tile = self.tile
        squares = _SQUARE // LANES
        part = tile.depth // tile.shares
        left_at = T.bind(self._left_read * LANES + place * (tile.rows * tile.left_stride))
        right_at = T.bind(self._right_read * LANES + place * (tile.depth * tile.columns))
        left, right = registers(_SQUARE * LANES), registers(_SQUARE)
        with T.unroll(part // LANES) as some:
            for i in range(_SQUARE):
                copy(left, i * LANES, self._room, left_at + some * LANES + i * (tile.threads_down * tile.left_stride))
            with T.unroll(LANES) as lane:
                for i in range(squares):
                    at = right_at + (some * LANES + lane) * tile.columns + i * (tile.columns // squares)
                    copy(right, i * LANES, self._room, at)
                with T.unroll(_SQUARE) as row, T.unroll(_SQUARE) as column:
                    at = row * _SQUARE + column
                    T.buffer_store(self.sums, self.sums[at] + left[row * LANES + lane] * right[column], [at])
