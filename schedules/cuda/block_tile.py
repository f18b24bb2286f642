"""How the results of a product are cut into tiles of blocks of threads, and which tile a product gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .architecture import WARP, Architecture
from .emit import ceil_div

SQUARE = 8  # rows, and columns, of a thread
# Floats between the rows of the left operand: four keep vectors aligned, and those of neighbouring rows in other banks.
_PADDING = 4
_TENSOR_PADDING = 8  # of the right one, where threads of a warp read four of its rows at once
_SUMS = SQUARE**2
# Of shared memory: what is left of a block's 48 KiB holds a convolution's table of places.
_PLACES_NBYTES, _MOST_PLACES = 44 << 10, 4


@dataclass(frozen=True)
class BlockTile:
    """How a result is cut."""

    rows: int  # of a block of threads
    columns: int
    depth: int  # products of a step
    split_k: int = 1  # threads with the same results, each of a part of the products
    tf32: bool = False  # products are a warp's, by tensor cores (`tensor_core_loop.py`)
    parts: int = 1  # blocks with the same results, each of a range of the products; a second launch adds these up

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
    def places(self) -> int:
        """How many steps' operands lie in shared memory, where copies run while threads compute."""
        return max(2, min(_MOST_PLACES, _PLACES_NBYTES // self._operands_nbytes))

    def shared_nbytes(self, places: int) -> int:
        """Of a block with so many places for a step's operands."""
        return max(places * self._operands_nbytes, 4 * self.split_k * self.rows * self.columns if self.split_k > 1 else 0)

    @property
    def _operands_nbytes(self) -> int:
        return 4 * (self.rows * self.left_stride + self.depth * self.right_stride)

    def __str__(self) -> str:
        return f"{self.rows}×{self.columns}" + (f" in {self.parts}" if self.parts > 1 else "") + (" tf32" if self.tf32 else "")


# How fast the products of a tile are next to each other, where all multiprocessors have enough of them: larger ones read
# shared memory less often (counted in instructions of their loops).
TILES = {
    BlockTile(128, 128, 16): 1.0,
    BlockTile(128, 64, 16): 0.97,
    BlockTile(64, 64, 16): 0.93,
    BlockTile(64, 32, 32, split_k=4): 0.9,
    BlockTile(32, 64, 32, split_k=4): 0.9,
    BlockTile(32, 32, 32, split_k=4): 0.87,
    BlockTile(32, 32, 64, split_k=8): 0.85,
}
# Multiply-adds that a multiprocessor with enough of them does in a cycle, as limited by issuing the loops' instructions.
TENSOR_TILES = {
    BlockTile(128, 128, 16, tf32=True): 740,
    BlockTile(128, 64, 16, tf32=True): 580,
    BlockTile(64, 64, 16, tf32=True): 585,
    BlockTile(64, 32, 32, split_k=4, tf32=True): 465,
    BlockTile(32, 32, 32, split_k=4, tf32=True): 350,
    BlockTile(32, 32, 64, split_k=8, tf32=True): 330,
}
# Tiles of fewer columns have fewer multiply-adds for each number of a row, which takes instructions of its own where numbers are
# loaded one by one.
_ENOUGH_COLUMNS, _ONE_BY_ONE = 64, 0.96
# Of a multiprocessor: schedulers, bytes from the second cache in a cycle, cycles until copies from memory arrive, those in which
# a step waits for shared memory and at the barrier, and those of a second launch, which adds up parts of sums. Fitted to 108
# kernels of convolutions and dense layers on an H100, which took 0.67 to 1.5 times as long.
_SCHEDULERS, _COPIED_NBYTES, _LATENCY, _STALLED, _ADDING = 4, 20, 1040, 320, 5000
MOST_PARTS, _LEAST_STEPS = 16, 4  # of a result, and of a part
_SCRATCH_NBYTES = 4 << 20  # for the parts of a layer, at most


def rates(architecture: Architecture) -> dict[BlockTile, float]:
    """Tiles for a GPU, and their rates compared with float32 multiply-adds without tensor cores."""
    if not architecture.tf32:
        return TILES
    return {tile: min(issued, architecture.tensor_lanes) / architecture.lanes for tile, issued in TENSOR_TILES.items()}


def choose(
    rows: int, across: int, batch: int, products: int, gpu: Architecture, *,
    one_by_one: bool = False, columns: int | None = None, most_parts: int = 1,
) -> BlockTile:
    """The tile with which a batch of products of rows × `across` takes least time; rows may have to be loaded `one_by_one`.

    The tile has so many `columns`, if they are given, and up to `most_parts` blocks share the products of a result.
    """  # fmt: skip

    def shares(tile: BlockTile) -> list[int]:
        steps = ceil_div(products, tile.depth)
        fit = min(most_parts, steps // _LEAST_STEPS, _SCRATCH_NBYTES // (4 * batch * rows * across))
        return [1, *(parts for parts in range(2, fit + 1) if steps % parts == 0)]

    tiles = [tile for tile in rates(gpu) if columns in (None, tile.columns)]
    offered = [replace(tile, parts=parts) for tile in tiles for parts in shares(tile)]

    def cost(tile: BlockTile) -> tuple[float, int]:
        return work(tile, rows, across, batch, products, gpu, one_by_one=one_by_one), -tile.columns if one_by_one else 0

    return min(offered, key=cost)


def work(
    tile: BlockTile, rows: int, columns: int, batch: int, products: int, gpu: Architecture, *, one_by_one: bool = False
) -> float:
    """Multiply-adds for each product that a batch takes the time of: all multiprocessors wait for the one that has most tiles.

    That one takes as long as its tiles' multiplications or copies, and at least as long as a tile that is alone, whose few warps
    wait for shared memory and for copies.
    """
    blocks = batch * ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns) * tile.parts
    most, steps = ceil_div(blocks, gpu.multiprocessors), ceil_div(ceil_div(products, tile.depth), tile.parts)
    rate = rates(gpu)[replace(tile, parts=1)] * (_ONE_BY_ONE if one_by_one and tile.columns < _ENOUGH_COLUMNS else 1)
    multiplying = tile.rows * tile.columns * tile.depth / (gpu.lanes * rate)
    copying = 4 * (tile.rows + tile.columns) * tile.depth / _COPIED_NBYTES
    idle = max(1, _SCHEDULERS * WARP / tile.threads)
    alone = max(multiplying * idle + _STALLED, _LATENCY / (tile.places - 1))
    cycles = steps * max(alone, most * max(multiplying, copying)) + (_ADDING if tile.parts > 1 else 0)
    return cycles * gpu.multiprocessors * gpu.lanes / products
