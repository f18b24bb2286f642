"""How the results of a product are cut into tiles of blocks of threads, and which tile a product gets."""

from __future__ import annotations

from dataclasses import dataclass

from .architecture import Architecture
from .emit import ceil_div

SQUARE = 8  # rows, and columns, of a thread
# Floats between the rows of the left operand: four keep vectors aligned, and those of neighbouring rows in other banks.
_PADDING = 4
_TENSOR_PADDING = 8  # of the right one, where threads of a warp read four of its rows at once
_SUMS = SQUARE**2


@dataclass(frozen=True)
class BlockTile:
    """How a result is cut."""

    rows: int  # of a block of threads
    columns: int
    depth: int  # products of a step
    split_k: int = 1  # threads with the same results, each of a part of the products
    tf32: bool = False  # products are a warp's, by tensor cores (`tensor_core_loop.py`)

    @property
    def sums(self) -> int:
        """Results of a thread."""
        return min(self.rows, _SUMS) if self.tf32 else _SUMS

    @property
    def threads(self) -> int:
        return self.rows * self.columns // self.sums * self.split_k

    @property
    def threads_across(self) -> int:
        return self.columns // SQUARE

    @property
    def threads_down(self) -> int:
        return self.rows // SQUARE

    @property
    def left_stride(self) -> int:
        return self.depth + _PADDING

    @property
    def right_stride(self) -> int:
        return self.columns + (_TENSOR_PADDING if self.tf32 else 0)

    @property
    def shared_nbytes(self) -> int:
        operands = 2 * (self.rows * self.left_stride + self.depth * self.right_stride)
        return 4 * max(operands, self.split_k * self.rows * self.columns if self.split_k > 1 else 0)

    def __str__(self) -> str:
        return f"{self.rows}×{self.columns}" + (" tf32" if self.tf32 else "")


# How fast the products of a tile are next to each other, where all multiprocessors have enough of them: larger ones read
# shared memory less often (counted in instructions of their loops).
TILES = {
    BlockTile(128, 128, 16): 1.0,
    BlockTile(128, 64, 16): 0.97,
    BlockTile(64, 64, 16): 0.93,
    BlockTile(64, 32, 32, split_k=4): 0.9,
    BlockTile(32, 64, 32, split_k=4): 0.9,
    BlockTile(32, 32, 32, split_k=4): 0.87,
}
# Multiply-adds that a multiprocessor with enough of them does in a cycle, as limited by issuing the loops' instructions.
TENSOR_TILES = {
    BlockTile(128, 128, 16, tf32=True): 790,
    BlockTile(128, 64, 16, tf32=True): 615,
    BlockTile(64, 64, 16, tf32=True): 610,
    BlockTile(64, 32, 32, split_k=4, tf32=True): 565,
    BlockTile(32, 32, 32, split_k=4, tf32=True): 420,
}
# Tiles of fewer columns have fewer multiply-adds for each number of a row, which takes instructions of its own where numbers are
# loaded one by one.
_ENOUGH_COLUMNS, _ONE_BY_ONE = 64, 0.96


def rates(architecture: Architecture) -> dict[BlockTile, float]:
    """Tiles for a GPU, and their rates compared with float32 multiply-adds without tensor cores."""
    if not architecture.tf32:
        return TILES
    return {tile: min(issued, architecture.tensor_lanes) / architecture.lanes for tile, issued in TENSOR_TILES.items()}


def choose(rows: int, columns: int, batch: int, architecture: Architecture, *, one_by_one: bool = False) -> BlockTile:
    """The tile with which a batch of products of rows × columns takes least time; rows may have to be loaded `one_by_one`."""
    offered = rates(architecture)
    return min(offered, key=lambda tile: work(tile, rows, columns, batch, architecture, one_by_one=one_by_one))


def work(tile: BlockTile, rows: int, columns: int, batch: int, architecture: Architecture, *, one_by_one: bool = False) -> float:
    """Multiply-adds for each product that a batch takes the time of: all multiprocessors wait for the one that has most tiles."""
    blocks = batch * ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
    most = ceil_div(blocks, architecture.multiprocessors)
    rate = rates(architecture)[tile] * (_ONE_BY_ONE if one_by_one and tile.columns < _ENOUGH_COLUMNS else 1)
    return most * architecture.multiprocessors * tile.rows * tile.columns / rate
