"""Register tiles of AArch64's bfmmla, which multiplies four input channels of two pixels and of two output channels.

A vector of sums is two pixels × two channels. Factors are words of four channels, int64: zero for a pixel without a neighbour.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import bfloat16
from .emit import Accumulators, spread, vector

_ROWS, _CHANNELS, _LANES = 2, 2, 4


class MatrixAccumulators(Accumulators):
    """A register tile of float32, whose vectors have at most four channels."""

    def __init__(self, rows: int, pieces: list[tuple[int, int]]) -> None:
        self.pieces = pieces
        self._parts = [(at, start + lanes - at) for start, lanes in pieces for at in range(start, start + lanes, _CHANNELS)]
        self._rows = [
            T.alloc_buffer((_LANES * len(self._parts),), self.dtype, scope="global") for _ in range(-(-rows // _ROWS))
        ]

    def fill(self, rows: int, value: Callable[[int, int], tirx.Expr]) -> None:
        for start, lanes in self.pieces:
            given = T.bind(value(start, lanes))
            for at in range(0, lanes, _CHANNELS):
                both = spread(given, _LANES) if lanes == 1 else tirx.Shuffle([given, given], [at, at + 1] * _ROWS)
                for row in self._rows[: -(-rows // _ROWS)]:
                    T.buffer_store(row, both, [self._place(start + at)])

    def accumulate(
        self, rows: list[int], left: Callable[[int, int, int], tirx.Expr], right: Callable[[int, int], tirx.Expr]
    ) -> None:
        """Add products of words: `left(row, 0, 1)`, and `right(start, channels)` of one channel or two."""
        pairs = sorted({row // _ROWS for row in rows})
        word = lambda row: left(row, 0, 1) if row in rows else tirx.const(0, "int64")  # noqa: E731
        factors = [tirx.Shuffle([word(_ROWS * pair + row) for row in range(_ROWS)], list(range(_ROWS))) for pair in pairs]
        bound = [T.bind(tirx.reinterpret(f"int32x{_LANES}", both)) for both in factors]
        for start, rest in self._parts:
            weights = right(start, min(rest, _CHANNELS))
            other = T.bind(tirx.Shuffle([weights, weights], [0, 1] * _CHANNELS) if rest == 1 else weights)
            for pair, both in zip(pairs, bound, strict=True):
                place = self._place(start)
                T.buffer_store(self._rows[pair], bfloat16.matrix(self._rows[pair][place], both, other), [place])

    def add(self, rows: int, other: Accumulators) -> None:
        assert isinstance(other, MatrixAccumulators)
        for sums, more in zip(self._rows[: -(-rows // _ROWS)], other._rows, strict=False):
            for start, _ in self._parts:
                place = self._place(start)
                T.buffer_store(sums, sums[place] + more[place], [place])

    def get(self, row: int, start: int, lanes: int) -> tirx.Expr:
        sums, upper = self._rows[row // _ROWS], row % _ROWS * _CHANNELS
        if lanes == 1:
            return sums[self._index(start) * _LANES + upper]
        parts = [sums[self._place(start + at)] for at in range(0, lanes, _CHANNELS)]
        return tirx.Shuffle(parts, [_LANES * part + upper + i for part in range(len(parts)) for i in range(_CHANNELS)])

    def _index(self, start: int) -> int:
        return [at for at, _ in self._parts].index(start)

    def _place(self, start: int):
        return vector(self._index(start) * _LANES, _LANES)
