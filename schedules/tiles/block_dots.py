"""Sums of products of 8 bits over a part of a block: words of weights (`blocks.py`) times those of rows (`byte_rows.py`).

    vpdpbusd     x86 with AVX-512 VNNI or AVX-VNNI: weights unsigned, those of 8 bits 128 more than their integers
    vpmaddubsw   x86 with AVX2: weights of 4 bits unsigned, eight sums of two in 16 bits, at most 8 · 2 · 15 · 127 < 2^15;
                 of 8 bits the absolute value times an input of the weight's sign, at most 2 · 128 · 127 < 2^15
    sdot         AArch64 with dot products: all signed; inputs from a lane
    smmla        AArch64 with i8mm: eight taps of two rows and of two channels; a row without a neighbour is its own

No sum saturates: all are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import Accumulators, spread

CHUNK = 32  # taps that are multiplied in a straight line; a block is a multiple of it, or one chunk

# Inputs of a row: (row, word of the chunk) → a vector of int32, each of 4 bytes, or with smmla an int64 of 8 bytes.
Inputs = Callable[[int, int], tirx.Expr]


class Sums(Accumulators):
    """int32 sums of rows × vectors."""

    dtype = "int32"


class BlockDots:
    """An instruction's way to multiply; `bits` are those of weights, `width` the lanes of a vector."""

    together = 4  # taps of a channel
    spare_rows = 0  # of sums, besides those of a tile

    def __init__(self, bits: int, width: int) -> None:
        self.bits, self.width = bits, width

    def begin(self, acc: Sums, starts: Sequence[tirx.Expr]) -> None:
        """Set the sums of rows to int32."""
        for row, start in enumerate(starts):
            acc.assign_to(row, 0, self.width, spread(start, self.width))

    def total(self, acc: Sums, rows: int, row: int) -> tirx.Expr:
        """The sums of one of so many rows."""
        return acc.get(row, 0, self.width)

    @property
    def starts_from(self) -> int:
        """The factor of a row's sum of a block from which sums begin: by what weights are larger than integers, over BIAS."""
        return 1 if self.bits == 4 else 0

    def add(self, acc: Sums, rows: int, words: Sequence[tirx.Expr], inputs: Inputs) -> None:
        """Add the products of words, int8 vectors in order, to the sums of a vector of channels."""
        for number, factors in enumerate(part for word in words for part in self._parts(word)):
            for row in range(rows):
                left = inputs(row, number)
                acc.assign_to(row, 0, self.width, self._added(acc.get(row, 0, self.width), factors, left))

    def _parts(self, word: tirx.Expr) -> list[tirx.Expr]:
        """The weights of a word: its lower halves and its upper ones, or its bytes."""
        if self.bits == 8:
            return [T.bind(word)]
        both = T.bind(self._as("int32", word))
        low = spread(tirx.const(0x0F0F0F0F, "int32"), self.width)
        return [T.bind(self._bytes(part & low)) for part in (both, both >> spread(tirx.const(4, "int32"), self.width))]

    def _added(self, total: tirx.Expr, weights: tirx.Expr, left: tirx.Expr) -> tirx.Expr:
        raise NotImplementedError

    def _as(self, kind: str, value: tirx.Expr) -> tirx.Expr:
        lanes = self.width * {"int8": 4, "uint8": 4, "int16": 2, "int32": 1}[kind]
        return tirx.reinterpret(f"{kind}x{lanes}", value)

    def _bytes(self, value: tirx.Expr) -> tirx.Expr:
        return self._as("int8", value)

class _Vnni(BlockDots):
    @property
    def starts_from(self) -> int:
        return 1 if self.bits == 4 else 16

    def _parts(self, word: tirx.Expr) -> list[tirx.Expr]:
        if self.bits == 4:
            return super()._parts(word)
        return [T.bind(word ^ spread(tirx.const(-128, "int8"), 4 * self.width))]

    def _added(self, total: tirx.Expr, weights: tirx.Expr, left: tirx.Expr) -> tirx.Expr:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.width}"
        return tirx.call_llvm_pure_intrin(f"int32x{self.width}", name, total, weights, self._bytes(left))


class _Avx2(BlockDots):
    def add(self, acc: Sums, rows: int, words: Sequence[tirx.Expr], inputs: Inputs) -> None:
        if self.bits == 8:
            super().add(acc, rows, words, inputs)
            return
        parts = [part for word in words for part in self._parts(word)]
        assert len(parts) * self.together <= CHUNK, "sums of 16 bits hold so many"
        for row in range(rows):
            products = [self._pairs(part, self._bytes(inputs(row, number))) for number, part in enumerate(parts)]
            total = products[0]
            for one in products[1:]:
                total = total + one
            acc.add_to(row, 0, self.width, self._joined(total))

    def _added(self, total: tirx.Expr, weights: tirx.Expr, left: tirx.Expr) -> tirx.Expr:
        given = self._signed(self._bytes(left), weights)
        return total + self._joined(self._pairs(self._signed(weights, weights), given))

    def _pairs(self, unsigned: tirx.Expr, signed: tirx.Expr) -> tirx.Expr:
        return tirx.call_llvm_pure_intrin(f"int16x{2 * self.width}", "llvm.x86.avx2.pmadd.ub.sw", unsigned, signed)

    def _signed(self, value: tirx.Expr, like: tirx.Expr) -> tirx.Expr:
        return tirx.call_llvm_pure_intrin(f"int8x{4 * self.width}", "llvm.x86.avx2.psign.b", value, like)

    def _joined(self, pairs: tirx.Expr) -> tirx.Expr:
        ones = spread(tirx.const(1, "int16"), 2 * self.width)
        return tirx.call_llvm_pure_intrin(f"int32x{self.width}", "llvm.x86.avx2.pmadd.wd", pairs, ones)


class _Sdot(BlockDots):
    def _parts(self, word: tirx.Expr) -> list[tirx.Expr]:
        if self.bits == 8:
            return [T.bind(word)]
        both = T.bind(self._as("uint8", word))
        number = lambda n: spread(tirx.const(n, "uint8"), 4 * self.width)  # noqa: E731
        return [T.bind(self._bytes(part)) for part in (both & number(15), both >> number(4))]

    def _added(self, total: tirx.Expr, weights: tirx.Expr, left: tirx.Expr) -> tirx.Expr:
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return tirx.call_llvm_pure_intrin(f"int32x{self.width}", name, total, weights, self._bytes(left))


class _Smmla(BlockDots):
    """The sums of a pair of rows and four channels are two vectors, of two channels each, in the places of the two rows."""

    together = 8
    spare_rows = 1

    def begin(self, acc: Sums, starts: Sequence[tirx.Expr]) -> None:
        for first, second in _pairs(len(starts)):
            both = T.bind(tirx.Shuffle([spread(starts[first], 2), spread(starts[second], 2)], [0, 1, 2, 3]))
            for place in (first, first + 1):
                acc.assign_to(place, 0, self.width, both)

    def total(self, acc: Sums, rows: int, row: int) -> tirx.Expr:
        first = row // 2 * 2
        places = [acc.get(place, 0, self.width) for place in (first, first + 1)]
        return tirx.Shuffle(places, [0, 1, 4, 5] if row == first else [2, 3, 6, 7])

    def add(self, acc: Sums, rows: int, words: Sequence[tirx.Expr], inputs: Inputs) -> None:
        name = "llvm.aarch64.neon.smmla.v4i32.v16i8"
        halves = [[tirx.Shuffle([word], list(range(16 * half, 16 * half + 16))) for half in range(2)] for word in words]
        parts = [zip(*map(self._parts, pair), strict=True) for pair in halves]
        for number, factors in enumerate(both for part in parts for both in part):
            for first, second in _pairs(rows):
                left = tirx.Shuffle([inputs(first, number), inputs(second, number)], [0, 1])
                left = T.bind(tirx.reinterpret("int8x16", left))
                for place, weights in enumerate(factors, start=first):
                    total = acc.get(place, 0, self.width)
                    acc.assign_to(place, 0, self.width, tirx.call_llvm_pure_intrin("int32x4", name, total, left, weights))

    def _parts(self, word: tirx.Expr) -> list[tirx.Expr]:
        return _Sdot(self.bits, self.width)._parts(word)


def _pairs(rows: int) -> list[tuple[int, int]]:
    """Neighbouring rows; the last of an odd number is its own neighbour."""
    return [(first, min(first + 1, rows - 1)) for first in range(0, rows, 2)]


# By the instruction of a vector unit (`dot.py`), or the one for matrices.
BLOCK_DOTS: dict[str, type[BlockDots]] = {"vpdpbusd": _Vnni, "vpmaddwd": _Avx2, "sdot": _Sdot, "smmla": _Smmla}
