"""Weights of 4 bits, two in a byte, as ones of 8: of a file they are widened a few rows at a time, when these are needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from flexcomp.deferred import Array, Deferred, Rows

WIDENED = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """uint8[…, numbers]: of 4 bits, the lower half of a byte comes first."""
    return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def rows_of_numbers(packed: Array, rows: int, columns: int, bits: int) -> Array:
    """uint8[rows, columns]: the first numbers of each row of bytes; deferred as `packed` is."""
    if isinstance(packed, Deferred):
        return packed.once(_RowsOfNumbers(rows, columns, bits))
    return unpacked(packed.reshape(rows, -1), bits)[:, :columns]


@dataclass(frozen=True)
class _RowsOfNumbers:
    rows: int
    columns: int
    bits: int

    def __call__(self, packed: Deferred) -> Deferred:
        given = packed.reshape((self.rows, packed.size // self.rows))

        def begin() -> Rows:
            slices = given.slices()
            return lambda first, end: unpacked(slices(first, end), self.bits)[:, : self.columns]

        return Deferred((self.rows, self.columns), packed.dtype, self.rows, begin)


def widened(packed: Array, count: int, kind: type) -> Array:
    """The first `count` numbers of 4 bits, with a sign for np.int8; deferred as `packed` is."""
    if isinstance(packed, Deferred):
        return packed.once(_Widened(count, kind))
    numbers = unpacked(packed, 4)[:count]
    return (numbers ^ 8).view(np.int8) - np.int8(8) if kind is np.int8 else numbers


@dataclass(frozen=True)
class _Widened:
    count: int
    kind: type

    def __call__(self, packed: Deferred) -> Deferred:
        def begin() -> Rows:
            elements = packed.elements()

            def numbers(first: int, end: int) -> np.ndarray:
                begin = first // 2
                return widened(elements(begin, -(-end // 2)), end - 2 * begin, self.kind)[first - 2 * begin :]

            return numbers

        return Deferred((self.count,), np.dtype(self.kind), self.count, begin)
