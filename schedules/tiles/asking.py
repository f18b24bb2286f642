"""Weights are asked for while others are multiplied.

Register tiles pass over a block of weights one after the other. The first one would wait for memory, and memory rest while the
others compute. So each asks for a share of the next block, in every step of its reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import prefetch, prefetch_ahead, prefetch_near

# Of more tiles each asks for lines that others asked for, too.
MOST_SHARES = 64


def share(floats: int, tiles: int) -> int:
    """Floats of the next block for a step of a tile, if a step multiplies so many and so many tiles pass over a block; or 0."""
    return math.ceil(floats / tiles) if 1 < tiles <= MOST_SHARES else 0


def ask(buffer, next_at, done, floats: int) -> Callable[[tirx.Expr], None]:
    """The prefetches of a step: its share of the block at `next_at`, after `done` steps of all tiles."""
    begin = T.bind(next_at + done * floats)
    return lambda step: prefetch(buffer, begin + step * floats, floats, level=2)


def in_order(buffer, at, floats: int, next_ones: Callable[[tirx.Expr], None] | None) -> Callable[[tirx.Expr], None]:
    """The prefetches of a step that reads so many weights, in order from `at` on.

    With `next_ones` these lie in the second-level cache, because earlier tiles asked for them; else they come from memory.
    """

    def fetch(step) -> None:
        if next_ones is None:
            prefetch_ahead(buffer, at + step * floats, floats)
            return
        next_ones(step)
        prefetch_near(buffer, at + step * floats, floats)

    return fetch
