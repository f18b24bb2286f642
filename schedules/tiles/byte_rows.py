"""Activations in 8 bits with a scale for each block of neighbouring inputs of a row, as kernels of integers multiply them.

    x[row, k] ≈ q[row, k] · scale[row, k // size]        scale = max |x| of the block / 127, q rounded to nearest, ties to even

    int8[rows, nbytes]:    q                               int8[blocks · size] of a row, zeros after the last input
                           scale, -8 · Σ q of the block    float32, int32; for each block

Products of weights that are stored 8 larger begin from the last number. Rows of caches go without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .blocks import BIAS

MOST = 127.0  # of q
_WORD = 4  # bytes of a scale, or a sum


@dataclass(frozen=True)
class ByteRows:
    """The layout of rows of so many inputs."""

    inputs: int
    size: int  # of a block, a multiple of 4
    sums: bool = True  # with sums of blocks

    @classmethod
    def of_cache(cls, depth: int) -> ByteRows:
        """A row of keys or values of one head: a block with its scale."""
        return cls(depth, math.ceil(depth / _WORD) * _WORD, sums=False)

    @property
    def blocks(self) -> int:
        return math.ceil(self.inputs / self.size)

    @property
    def numbers_at(self) -> int:
        """The byte of a row at which scales and sums begin."""
        return self.blocks * self.size

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return self.numbers_at + self.blocks * self._words * _WORD

    @property
    def _words(self) -> int:
        """Words of a block's numbers."""
        return 1 + self.sums

    def scale_at(self, block):
        """The place of a scale in a row of words of 32 bits; the sum follows."""
        return self.numbers_at // _WORD + block * self._words


assert BIAS == 8, "sums are multiplied by the bias of weights"
