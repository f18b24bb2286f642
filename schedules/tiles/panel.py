"""Packed weights: panels of output channels, outermost, so that any run of blocks is one range of the file.

    panel[block][row][lane]    row 0            bias
                               rows 1 … taps    weights, in the order kernel row, kernel column, input channel
                               then             one row per channel vector of the epilogue, zero padding

A panel of a narrow type begins with all its float32 rows, as bits, and has nothing after the weights:

    panel[block]              bias, channel vectors of the epilogue, scale (int8 only)    float32[block] each
                              weights                                                     the narrow type, [taps, block]
                              zero padding

Where a kernel multiplies `together` taps of a lane at once, these are neighbours, [taps / together, block, together]; for
integers, two more rows of 32 bits precede the weights: the start of the sums, int32, and the offset subtracted from packed
inputs.

Weights in blocks of inputs have a panel of their own (`blocks.py`).

A group whose channels are no multiple of the block ends in a block that overlaps its predecessor: both
compute the same values for shared channels, so that no store needs a mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .blocks import INT4, INT4_FORM, Blocks, blocks_of
from .spec import ConvSpec

# Element types that weights may have, and their bytes. int8 has a scale for every output channel.
WEIGHT_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
# Integers with a scale for every output channel, too, of which bfloat16 has all up to 256: never requested, but 8-bit
# weights with zero points are kept so, since nothing is lost.
SCALED_BFLOAT16 = "scaled bfloat16"
_ALIGN = 64  # bytes; a slice starts at any block, and kernels assume aligned data


@dataclass(frozen=True)
class Panel:
    """The shape of a layer's packed weights."""

    groups: int
    group_channels: int
    block: int  # output channels of a block
    taps: int
    vectors: int  # channel vectors of the epilogue
    kept: str = "float32"  # type of kept weights: one of WEIGHT_DTYPES, SCALED_BFLOAT16, or Blocks as text
    together: int = 1  # taps of an output channel that lie together
    lowest: int = 0  # that packed inputs are, where taps lie together

    @property
    def blocks_per_group(self) -> int:
        return max(1, math.ceil(self.group_channels / self.block))

    @property
    def blocks(self) -> int:
        return self.groups * self.blocks_per_group

    @property
    def dtype(self) -> str:
        """The panel's element type."""
        return element_type(self.kept)

    @property
    def itemsize(self) -> int:
        return WEIGHT_DTYPES[self.dtype]

    @property
    def narrow(self) -> bool:
        return self.dtype != "float32"

    @property
    def in_blocks(self) -> Blocks | None:
        """The blocks of inputs that weights are in, if any."""
        return blocks_of(self.kept)

    @property
    def scaled(self) -> bool:
        """Whether weights are multiples of a scale of their output channel."""
        return is_scaled(self.kept)

    @property
    def packs(self) -> bool:
        """Whether inputs are packed as integers."""
        return self.together > 1 and self.dtype == "int8"

    @property
    def head(self) -> int:
        """Rows of float32 in front of the weights."""
        return 1 + self.vectors + self.scaled + 2 * self.packs if self.narrow else 1

    @property
    def first_tap(self) -> int:
        """The row, of the panel's type, at which the weights begin."""
        form = self.in_blocks
        scales = form.scale_rows(self.taps) + form.zero_rows(self.taps) if form else 0
        return self.head * 4 // self.itemsize + scales

    @property
    def rows(self) -> int:
        taps = self.in_blocks.tap_rows(self.taps) if self.in_blocks else self.taps
        rows = self.first_tap + taps + (0 if self.narrow else self.vectors)
        unit = _ALIGN // math.gcd(_ALIGN, self.block * self.itemsize)
        return math.ceil(rows / unit) * unit

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.blocks, self.rows, self.block)

    @property
    def block_nbytes(self) -> int:
        return self.rows * self.block * self.itemsize

    def channels(self) -> np.ndarray:
        """int64[blocks, block]: the output channel of each lane; lanes past a small group repeat its last channel."""
        starts = np.minimum(np.arange(self.blocks_per_group) * self.block, max(self.group_channels - self.block, 0))
        lanes = np.minimum(starts[:, None] + np.arange(self.block), self.group_channels - 1)
        return (np.arange(self.groups)[:, None, None] * self.group_channels + lanes).reshape(self.blocks, self.block)


def element_type(kept: str) -> str:
    """The type of the elements of weights that are kept so: one of WEIGHT_DTYPES."""
    if blocks_of(kept):
        return "int8"
    return "bfloat16" if kept == SCALED_BFLOAT16 else kept


def nbytes_of(kept: str) -> float:
    """Bytes of a weight that is kept so, or, for INT4, most often."""
    form = blocks_of(INT4_FORM if kept == INT4 else kept)
    return form.nbytes if form else WEIGHT_DTYPES[element_type(kept)]


def is_scaled(kept: str) -> bool:
    """Whether weights that are kept so are multiples of a scale."""
    return kept in ("int8", SCALED_BFLOAT16)


def panel_of(spec: ConvSpec, block: int, together: int = 1) -> Panel:
    """The panel of a convolution for blocks of `block` channels, of one group or, if larger than a group, of several.

    Of each tap of the kernel, `together` input channels are neighbours, the last ones maybe with zeros.
    """
    taps = math.prod(spec.kernel) * math.ceil(spec.group_in / together) * together
    groups, channels = (1, spec.out_channels) if block > spec.group_out else (spec.groups, spec.group_out)
    return Panel(groups, channels, block, taps, spec.channel_vectors, spec.weights, together)
