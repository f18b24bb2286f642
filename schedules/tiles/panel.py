"""Packed weights: panels of output channels, outermost, so that any run of blocks is one range of the file.

    panel[block][row][lane]    row 0            bias
                               rows 1 … taps    weights, in the order kernel row, kernel column, input channel
                               then             one row per channel vector of the epilogue, zero padding

A group whose channels are no multiple of the block ends in a block that overlaps the one before it: both
compute the same values for the channels they share, so that no store needs a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .spec import ConvSpec

_ALIGN = 64  # bytes; a slice starts at any block, and kernels assume aligned data


@dataclass(frozen=True)
class Panel:
    """The shape of a layer's packed weights."""

    groups: int
    group_channels: int
    block: int  # output channels of a block
    taps: int
    vectors: int  # channel vectors of the epilogue

    @property
    def blocks_per_group(self) -> int:
        return max(1, math.ceil(self.group_channels / self.block))

    @property
    def blocks(self) -> int:
        return self.groups * self.blocks_per_group

    @property
    def rows(self) -> int:
        rows = 1 + self.taps + self.vectors
        unit = _ALIGN // math.gcd(_ALIGN, self.block * 4)
        return math.ceil(rows / unit) * unit

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.blocks, self.rows, self.block)

    @property
    def block_nbytes(self) -> int:
        return self.rows * self.block * 4

    def channels(self) -> np.ndarray:
        """int64[blocks, block]: the output channel of each lane; lanes past a small group repeat its last channel."""
        starts = np.minimum(np.arange(self.blocks_per_group) * self.block, max(self.group_channels - self.block, 0))
        lanes = np.minimum(starts[:, None] + np.arange(self.block), self.group_channels - 1)
        return (np.arange(self.groups)[:, None, None] * self.group_channels + lanes).reshape(self.blocks, self.block)


def panel_of(spec: ConvSpec, block: int) -> Panel:
    """The panel of a convolution for blocks of `block` channels."""
    if spec.depthwise:
        return Panel(1, spec.out_channels, block, spec.kernel[0] * spec.kernel[1], spec.channel_vectors)
    return Panel(spec.groups, spec.group_out, block, spec.taps, spec.channel_vectors)
