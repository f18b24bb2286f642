"""Weights that a kernel takes in other numbers than its layer's: the part of a family that computes these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvm import relax, tirx

Emit = Callable[[relax.Expr], relax.Var]
Vectors = list[tirx.Expr | None]  # None is zero


class Preparing(Protocol):
    """Code that prepares a block, for a vector of `lanes` of its output channels at a time (`preparation.py`)."""

    lanes: int

    def source(self, channel) -> tuple:
        """Where the stored block of output channels from `channel` on begins, and their lane."""

    def weights(self, at, lane, tap) -> tirx.Expr:
        """Stored weights of a tap, as float32."""

    def write(self, index, value: tirx.Expr | None) -> None:
        """Write a vector at an index of the prepared weights."""


class Transform(Protocol):
    """A frozen dataclass of numbers and tuples of these, which say how weights are computed."""

    parts: int  # of a block's channels, which are combined with each other
    of_blocks: bool  # whether `pack` takes the weights of blocks, or those of the layer

    def pack(self, emit: Emit, weight: relax.Expr) -> relax.Expr:
        """Of weights OHWI the same with other taps; of weights float32[blocks, block, in] float32[blocks, taps, block]."""

    def prepare(self, code: Preparing, kernel: tuple[int, int], in_channels: int, block: int) -> None:
        """Emit code that makes a block of the prepared panel of the stored weights."""


def extents(value: relax.Expr) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tuple(int(extent) for extent in value.ty.shape.values)
