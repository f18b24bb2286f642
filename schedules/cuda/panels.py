"""How threads read packed weights: as vectors of channels, narrow ones widened in registers."""

from __future__ import annotations

import math

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.panel_reader import PanelReader
from .emit import LANES, copy, registers
from .instructions import signed_byte


class ThreadPanel:
    """A panel as float32 rows; places are counted in rows and lanes of a block that begins `offset` blocks after the first."""

    def __init__(self, given: PanelReader, offset) -> None:
        panel = self.panel = given.panel
        self._offset = offset
        # Words: vectors of narrow types are not loaded at once by all compilers, and the head is float32 anyway.
        self._dtype = "uint32" if panel.narrow else "float32"
        words = math.prod(panel.shape) * panel.itemsize // 4
        self._words = T.decl_buffer((words,), self._dtype, data=given.buffer.data)

    @property
    def words(self) -> int:
        """32-bit words of LANES weights."""
        return LANES * self.panel.itemsize // 4

    def ahead(self, vectors: int) -> tirx.Buffer:
        """Registers for `vectors` vectors of LANES weights, in the panel's type."""
        return registers(vectors * self.words, self._dtype)

    def load(self, target: tirx.Buffer, i: int, tap, lane) -> None:
        """Load vector i of `target`: the weights of `tap` for LANES channels from `lane` on, at once."""
        copy(target, i * self.words, *self.place(tap, lane), self.words)

    def place(self, tap, lane) -> tuple[tirx.Buffer, ir.Expr]:
        """The words in which weights of `tap` lie, and where those for channels from `lane` on begin."""
        element = self._element(self.panel.first_tap + tap, lane)
        per_word = 4 // self.panel.itemsize
        return self._words, element // per_word if per_word > 1 else element

    def weights(self, source: tirx.Buffer, i: int) -> list[ir.Expr]:
        """The weights in vector i, as float32."""
        per_word = 4 // self.panel.itemsize
        words = [source[i * self.words + lane // per_word] for lane in range(LANES)]
        if not self.panel.narrow:
            return words
        return [self._widened(word, lane % per_word) for lane, word in enumerate(words)]

    def bias(self, lane) -> ir.Expr:
        return self._head(0, lane)

    def finish(self, lane, total: ir.Expr) -> ir.Expr:
        """Sums of products with the channel's scale, if any, and its bias."""
        if self.panel.scaled:
            total = total * self._head(self.panel.head - 1, lane)
        return total + self.bias(lane)

    def channel(self, index: int, lane) -> ir.Expr:
        """A channel vector of the epilogue."""
        if self.panel.narrow:
            return self._head(1 + index, lane)
        return self._words[self._element(1 + self.panel.taps + index, lane)]

    def _element(self, row, lane) -> ir.Expr:
        return (self._offset * self.panel.rows + row) * self.panel.block + lane

    def _head(self, row: int, lane) -> ir.Expr:
        """An element of the float32 rows in front of the weights."""
        per_word = 4 // self.panel.itemsize
        word = self._words[self._offset * (self.panel.rows * self.panel.block // per_word) + row * self.panel.block + lane]
        return tirx.reinterpret("float32", word) if self.panel.narrow else word

    def _widened(self, word: ir.Expr, part: int) -> ir.Expr:
        """Number `part` of a word, counted from the lowest bits."""

        def shift(bits: int) -> ir.Expr:
            return tirx.const(bits, "uint32")

        if self.panel.dtype == "bfloat16":
            return tirx.reinterpret("float32", word << shift(16) if part == 0 else word & shift(0xFFFF0000))
        if self.panel.dtype == "float16":
            return tirx.Cast("float32", tirx.reinterpret("float16", tirx.Cast("uint16", word >> shift(16 * part))))
        return tirx.Cast("float32", signed_byte(word, part))
