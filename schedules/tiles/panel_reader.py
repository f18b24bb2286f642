"""Kernels' reads of a panel: narrow weights are widened in registers, where factors are not of the same type.

float16 and bfloat16 become the float32 of the same value; int8 the integer, and the sum of products is multiplied by the
channel's scale before the bias is added.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import prefetch_line, vector, zero
from .panel import Panel

_WIDENED_LANES = 16  # of a vector that is not in a register tile
_LINE_NBYTES = 64
# Bytes that narrow weights are prefetched ahead of their use, where every one is used once: from memory, one row of a layer
# takes 0.83 of the time (int8) and 0.95 (16 bits); half and double the distance take longer.
_AHEAD_NBYTES = 8 * 1024


class PanelReader:
    """Loads from blocks of a panel, of weights as `dtype`, else as float32; `at` is the element at which a block begins."""

    def __init__(self, panel: Panel, buffer: tirx.Buffer, dtype: str = "float32") -> None:
        self.panel, self.buffer, self.dtype = panel, buffer, dtype

    def block_at(self, offset):
        """Where the block begins that is `offset` blocks after the first."""
        return offset * (self.panel.rows * self.panel.block)

    def begin(self, at, start, lanes: int) -> tirx.Expr:
        """The start of accumulators: the bias, or zero where sums are scaled."""
        return zero(lanes) if self.panel.scaled else self.bias(at, start, lanes)

    def finish(self, at, start, lanes: int, total: tirx.Expr) -> tirx.Expr:
        """The result of accumulators that began with `begin`."""
        if not self.panel.scaled:
            return total
        return self.scale(at, start, lanes, total) + self.bias(at, start, lanes)

    def scale(self, at, start, lanes: int, total: tirx.Expr) -> tirx.Expr:
        """Sums of products, times the scale of their channels, if any."""
        return total * self.factor(at, start, lanes) if self.panel.scaled else total

    def factor(self, at, start, lanes: int) -> tirx.Expr:
        """The scale of channels whose weights have one."""
        return self._wide(at, 1 + self.panel.vectors, start, lanes)

    def beginning(self, at, start, lanes: int) -> tirx.Expr:
        """The start of sums of integers, int32."""
        return tirx.reinterpret(vector_type("int32", lanes), self._wide(at, 2 + self.panel.vectors, start, lanes))

    def offset(self, at) -> tirx.Expr:
        """The offset subtracted from packed inputs."""
        return self._wide(at, 3 + self.panel.vectors, 0, 1)

    def bias(self, at, start, lanes: int) -> tirx.Expr:
        if self.panel.narrow:
            return self._wide(at, 0, start, lanes)
        return self.buffer[vector(at + start, lanes)]

    def channel(self, at, index: int, start, lanes: int) -> tirx.Expr:
        """A channel vector of the epilogue."""
        panel = self.panel
        if panel.narrow:
            return self._wide(at, 1 + index, start, lanes)
        vectors_at = at + (1 + panel.taps) * panel.block
        return self.buffer[vector(vectors_at + index * panel.block + start, lanes)]

    def weights_at(self, at, *taps):
        """Where the weights of the tap begin whose number is the sum of `taps`."""
        return at + sum(taps, self.panel.first_tap) * self.panel.block

    def weights(self, index, lanes: int) -> tirx.Expr:
        """The weights from element `index` on."""
        value = self.buffer[vector(index, lanes)]
        return value if self.panel.dtype == self.dtype else widened(value, self.panel.dtype, lanes)

    def fetch_ahead(self, index) -> None:
        """Ask for weights that a loop over taps reads later, which is at the taps that begin at element `index`."""
        ahead = index + _AHEAD_NBYTES // self.panel.itemsize
        for start in range(0, self.panel.together * self.panel.block, _LINE_NBYTES // self.panel.itemsize):
            T.evaluate(prefetch_line(self.buffer, ahead + start, level=2))

    def widen(self, at, tap, count, target: tirx.Buffer, place) -> None:
        """Write the weights of `count` taps from `tap` on to `target` from `place` on, float32."""
        block, first = self.panel.block, self.weights_at(at, tap)
        lanes = min(block & -block, _WIDENED_LANES)
        with T.serial(count * block // lanes) as i:
            T.buffer_store(target, self.weights(first + i * lanes, lanes), [vector(place + i * lanes, lanes)])

    def _wide(self, at, row: int, start, lanes: int) -> tirx.Expr:
        """A float32 row in front of narrow weights."""
        each = 4 // self.panel.itemsize
        bits = self.buffer[vector(at + (row * self.panel.block + start) * each, lanes * each)]
        return tirx.reinterpret(vector_type("float32", lanes), bits)


def widened(value: tirx.Expr, dtype: str, lanes: int) -> tirx.Expr:
    """A vector of a narrow type as float32."""
    if dtype == "bfloat16":
        bits = tirx.Cast(vector_type("uint32", lanes), tirx.reinterpret(vector_type("uint16", lanes), value))
        shift = tirx.const(16, "uint32") if lanes == 1 else tirx.Broadcast(tirx.const(16, "uint32"), lanes)
        return tirx.reinterpret(vector_type("float32", lanes), bits << shift)
    if dtype == "int8":
        value = tirx.Cast(vector_type("int32", lanes), value)
    return tirx.Cast(vector_type("float32", lanes), value)


def vector_type(dtype: str, lanes: int) -> str:
    """The type of so many elements."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
