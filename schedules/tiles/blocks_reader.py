"""Kernels' reads of a panel of weights in blocks (`blocks.py`), widened to float32 in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import nibbles
from .blocks import BIAS, Blocks
from .emit import spread, vector
from .panel import Panel
from .panel_reader import PanelReader, vector_type
from .tile import VectorUnit

_WIDENED_LANES = 16  # of a vector that is not in a register tile
_HIGH, _LOW = 4, 28  # bits by which the halves of a byte are shifted to sign-extended 32 bits


@dataclass(frozen=True)
class BlockedLanes:
    """Loads of weights in blocks, whose channels are lanes of rows of bytes; `at` is the element at which these rows begin."""

    form: Blocks
    buffer: tirx.Buffer
    stride: int  # bytes from one row to the next: the lanes
    scale_row: int  # the first row of scales; those of zero points, if any, follow
    tap_row: int  # the first row of weights
    taps: int

    @property
    def count(self) -> int:
        """Blocks of a channel."""
        return self.form.count(self.taps)

    @property
    def zero_row(self) -> int:
        return self.scale_row + self.form.scale_rows(self.taps)

    @property
    def whole(self) -> tuple[int, int]:
        """Blocks with all their weights, and weights of the last block if there are fewer."""
        return divmod(self.taps, self.form.size)

    def scale_at(self, at, block):
        """The element at which the scales of a block of inputs begin."""
        return at + (self.scale_row + block * self.form.scale_nbytes) * self.stride

    def scales(self, at, block, start, lanes: int) -> tirx.Expr:
        """The scales of a block of inputs, float32."""
        each = self.form.scale_nbytes
        bits = self.buffer[vector(self.scale_at(at, block) + start * each, lanes * each)]
        scale = tirx.reinterpret(vector_type(self.form.scales, lanes), bits)
        return scale if self.form.scales == "float32" else tirx.Cast(vector_type("float32", lanes), scale)

    def zeros(self, at, block, start, lanes: int) -> tirx.Expr | None:
        """The zero points of a block of inputs, float32; None if there are none."""
        if not self.form.has_zeros:
            return None
        if self.form.bits == 8:
            return _wide(self._bytes(at, self.zero_row + block, start, lanes), lanes)
        both = self._bytes(at, self.zero_row + block // 2, start, lanes)
        # To the high half, and from there to 32 bits with its sign.
        up = spread(_LOW - block % 2 * _HIGH, lanes)
        return _wide((both << up) >> spread(tirx.const(_LOW, "int32"), lanes), lanes)

    def pair(self, at, tap, start, lanes: int, zeros: tirx.Expr | None) -> tuple[tirx.Expr, tirx.Expr]:
        """The integers of an even tap and of the next one, less the zero points of their block, float32."""
        if self.form.together > 1:
            low, high = (self._of_word(at, tap + i, start, lanes) for i in range(2))
        elif self.form.bits == 8:
            low, high = (_wide(self._bytes(at, self.tap_row + tap + i, start, lanes), lanes) for i in range(2))
        else:
            low, high = nibbles.shifted(T.bind(self._bytes(at, self.tap_row + tap // 2, start, lanes)), lanes)
        return _less(low, zeros), _less(high, zeros)

    def pairs(
        self, at, tap, pieces: Sequence[tuple[int, int]], zeros: Mapping[int, tirx.Expr | None], unit: VectorUnit
    ) -> Iterator[tuple[int, int, tuple[tirx.Expr, tirx.Expr]]]:
        """(start, lanes, pair) for pieces of channels, as `nibbles.floats`."""
        if self.form.bits == 8:
            for start, lanes in pieces:
                yield start, lanes, self.pair(at, tap, start, lanes, zeros[start])
            return
        row = T.bind(at + (self.tap_row + tap // 2) * self.stride)
        load = lambda first, count: self.buffer[vector(row + first, count)]  # noqa: E731
        for start, lanes, (low, high) in nibbles.floats(load, pieces, unit):
            yield start, lanes, (_less(low, zeros[start]), _less(high, zeros[start]))

    def _of_word(self, at, tap, lane, lanes: int) -> tirx.Expr:
        """The integer of a tap of a channel that lies in a word of several."""
        assert lanes == 1, "words of neighbouring channels are read as they are"
        form = self.form
        group = tap // form.together
        word = group if form.bits == 8 else group // 2
        row = (self.tap_row + word * form.together) * self.stride
        value = T.Cast("int32", self.buffer[at + row + lane * form.together + tap % form.together])
        if form.bits == 8:
            return _wide(value, 1)
        return _wide(((value >> (group % 2 * _HIGH)) & 15) - BIAS, 1)

    def _bytes(self, at, row, start, lanes: int) -> tirx.Expr:
        """A row of bytes, as int32."""
        value = self.buffer[vector(at + row * self.stride + start, lanes)]
        return tirx.Cast(vector_type("int32", lanes), value)


class BlocksReader(PanelReader):
    """Loads from panels whose weights are in blocks of inputs."""

    def __init__(self, panel: Panel, form: Blocks, buffer: tirx.Buffer) -> None:
        super().__init__(panel, buffer)
        self.form = form
        self.lanes = BlockedLanes(form, buffer, panel.block, 4 * panel.head, panel.first_tap, panel.taps)

    def fetch_taps_ahead(self, at, tap) -> None:
        """Ask for weights that a loop over pairs of taps reads later, which is at `tap`."""
        per_row = 8 // self.form.bits
        for i in range(2 // per_row):
            self.fetch_ahead(at + (self.panel.first_tap + tap // per_row + i) * self.panel.block)

    def widen(self, at, tap, count, target: tirx.Buffer, place) -> None:
        """Write `count` weights of each channel from `tap` on, the first of a block of inputs, to `target` from `place` on."""
        size, rest = self.form.size, self.panel.taps % self.form.size
        first = T.bind(tap // size)
        with T.serial(count // size) as index:
            self._widen_block(at, first + index, size, target, place + index * (size * self.panel.block))
        if not rest:
            return
        whole = T.bind(count // size)
        with T.If(whole * size < count), T.Then():
            self._widen_block(at, first + whole, rest, target, place + whole * (size * self.panel.block))

    def _widen_block(self, at, block, count: int, target: tirx.Buffer, place) -> None:
        width = self.panel.block
        lanes = min(width & -width, _WIDENED_LANES)
        with T.serial(width // lanes) as piece:
            start = T.bind(piece * lanes)
            scales, zeros = T.bind(self.lanes.scales(at, block, start, lanes)), self.lanes.zeros(at, block, start, lanes)
            zeros = None if zeros is None else T.bind(zeros)

            def write(pair, halves: int) -> None:
                values = self.lanes.pair(at, block * self.form.size + pair * 2, start, lanes, zeros)
                for half, value in enumerate(values[:halves]):
                    index = place + (pair * 2 + half) * width + start
                    T.buffer_store(target, value * scales, [vector(index, lanes)])

            with T.serial(count // 2) as pair:
                write(pair, 2)
            if count % 2:
                write(count // 2, 1)


def _wide(integers: tirx.Expr, lanes: int) -> tirx.Expr:
    return tirx.Cast(vector_type("float32", lanes), integers)


def _less(value: tirx.Expr, zeros: tirx.Expr | None) -> tirx.Expr:
    return value if zeros is None else value - zeros
