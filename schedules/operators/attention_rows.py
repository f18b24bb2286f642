"""How attention of few queries is cut, as of a decoder that makes one token: vectors run over the depth, not over queries.

A task is one head of keys and values, with the queries of the heads that have it in common: `rows` rows, which share each load
(`attention_rows_kernel.py`). Rows are padded to a power of two in scratch, without products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..tiles.tile import VectorUnit
from .attention_block import most_slots
from .attention_spec import AttentionSpec

_MOST_ROWS = 8  # of a task, or as many as a vector has lanes, if these are more
_SUMS = {16: 8, 32: 16}  # of a tile of scores, by registers
# Operations of convolutions that take as long as a product, a score besides its products, and as a number that is widened.
_PRODUCT, _SCORE, _WIDENED = 1.1, 60.0, 3.0


def takes(spec: AttentionSpec, unit: VectorUnit) -> bool:
    """Whether there are so few queries that lanes would be empty, in the shape that inputs of this length are padded to.

    Both have one kernel then: another order of sums would move results that are rounded to bytes next.
    """
    queries = next((extent for extent, fewest in unit.padded if fewest <= spec.queries <= extent), spec.queries)
    return queries < unit.width and not spec.positions


@dataclass(frozen=True)
class Rows:
    """How a kernel of few queries is cut."""

    spec: AttentionSpec
    unit: VectorUnit

    @cached_property
    def heads(self) -> int:
        """Heads of queries of a task: as many of those with common keys as there may be, for all threads to have a task."""
        spec = self.spec
        most = max(_MOST_ROWS, self.unit.width) // spec.queries
        wanted = min(most_slots(spec), self.unit.threads, spec.batch * spec.heads)
        fitting = [n for n in range(1, spec.group + 1) if spec.group % n == 0 and n <= most]
        return max(n for n in fitting if n == 1 or spec.batch * spec.heads // n >= wanted)

    @property
    def tasks(self) -> int:
        return self.spec.batch * self.spec.heads // self.heads

    @property
    def slots(self) -> int:
        """Tasks at the same time."""
        return min(most_slots(self.spec), self.tasks)

    @property
    def rows(self) -> int:
        return self.heads * self.spec.queries

    @cached_property
    def padded(self) -> int:
        """Scores of a key, the power of two from `rows` on."""
        return 1 << (self.rows - 1).bit_length()

    @property
    def keys(self) -> int:
        """Keys of a tile of scores."""
        sums = max(number for registers, number in _SUMS.items() if registers <= self.unit.registers)
        return max(sums, self.unit.width, self.padded) // self.padded

    @property
    def scores(self) -> int:
        """Floats of scratch of a task."""
        return math.ceil(self.spec.keys / self.keys) * self.keys * self.padded

    @property
    def work(self) -> float:
        """Operations at the speed of a convolution, and waiting for keys and values from memory."""
        spec = self.spec
        heads = spec.batch * spec.heads * spec.mean_keys
        computed = _PRODUCT * spec.flops * spec.mean_keys / spec.keys + _SCORE * heads * spec.queries
        nbytes = 0.0
        for access, depth in ((spec.k, spec.depth), (spec.v, spec.value_depth)):
            nbytes += heads / spec.group * depth * np.dtype(access.dtype).itemsize
            if access.dtype != "float32":
                computed += _WIDENED * heads / self.heads * depth
        return computed + self.unit.memory.waiting(int(nbytes), 1, computed, 1, 0.0)
