"""Integers of 4 bits, two in a byte, as float32: the same numbers by the instructions that take least.

    shifts     a byte to 32 bits with its sign, its halves to the bottom of these, and a conversion
    look-up    AVX-512: a permutation of a table takes the lower half from 32 bits as they are (vpermps)
    sums       AVX2 and SSE: the lower half becomes the last bits of 2^23 + 8 + n, from which the rest is subtracted
    fractions  AArch64: halves stay at the top of 32 bits, and the conversion divides by 2^28 (scvtf with fraction bits);
               16 bytes are separated together, and look-ups move them (tbl), where these are fast

Both halves of a byte are signed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import spread
from .tile import VectorUnit

Load = Callable[[int, int], tirx.Expr]  # (first, count): int8 of a row of bytes
Pair = tuple[tirx.Expr, tirx.Expr]  # of lower and upper halves, float32
_HALF, _TOP = 4, 28  # bits of a half; bits below it at the top of 32
_LANES, _TOGETHER = 4, 16  # of AArch64: of a vector, and bytes of a register
_PERMUTE, _DIVIDE = "llvm.x86.avx512.permvar.sf.512", "llvm.aarch64.neon.vcvtfxs2fp.v4f32.v4i32"
_SUM, _SUM_BITS = float(1 << 23), 0x4B000000  # a number whose last bit is 1, and its bits
_NUMBERS = (*range(8), *range(-8, 0))  # by the unsigned value of their bits


def floats(load: Load, pieces: Sequence[tuple[int, int]], unit: VectorUnit) -> Iterator[tuple[int, int, Pair]]:
    """(start, lanes, pair) for each piece of a row of bytes."""
    whole = [piece for piece in pieces if piece[1] == unit.width]
    if unit.by_lane and unit.looks_up:
        for first in range(0, len(whole), _TOGETHER // _LANES):
            yield from _moved(load, whole[first : first + _TOGETHER // _LANES])
        pieces = pieces[len(whole) :]
    for start, lanes in pieces:
        by = shifted
        if lanes == unit.width:
            by = _divided if unit.by_lane else _looked_up if unit.looks_up else _summed
        yield start, lanes, by(T.bind(tirx.Cast(_vector("int32", lanes), load(start, lanes))), lanes)


def shifted(both: tirx.Expr, lanes: int) -> Pair:
    """Of bytes that are int32."""
    up = spread(tirx.const(_TOP, "int32"), lanes)
    return tirx.Cast(_vector("float32", lanes), (both << up) >> up), _high(both, lanes)


def _looked_up(both: tirx.Expr, lanes: int) -> Pair:
    """Look-ups and shifts run on different ports, so one half is looked up and the other one shifted."""
    table = tirx.Shuffle([tirx.const(float(one), "float32") for one in _NUMBERS], list(range(lanes)))
    return tirx.call_llvm_pure_intrin(_vector("float32", lanes), _PERMUTE, table, both), _high(both, lanes)


def _summed(both: tirx.Expr, lanes: int) -> Pair:
    """Shifts and conversions share the ports of multiply-adds, and logic has one more: one half each."""
    low, flipped = (spread(tirx.const(one, "int32"), lanes) for one in (15, _SUM_BITS | 8))
    total = tirx.reinterpret(_vector("float32", lanes), (both & low) ^ flipped)
    return total - spread(tirx.const(_SUM + 8, "float32"), lanes), _high(both, lanes)


def _divided(both: tirx.Expr, lanes: int) -> Pair:
    return _fraction(both << spread(tirx.const(_TOP, "int32"), lanes)), _high(both, lanes)


def _moved(load: Load, pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, Pair]]:
    """Of up to 16 bytes."""
    count = len(pieces) * _LANES
    both = T.bind(load(pieces[0][0], count))
    low = T.bind(both << spread(tirx.const(_HALF, "int8"), count))
    high = T.bind(both & spread(tirx.const(-1 << _HALF, "int8"), count))
    zeros = spread(tirx.const(0, "int8"), count)
    for part, (start, lanes) in enumerate(pieces):
        index = [i for lane in range(lanes) for i in (count, count, count, part * lanes + lane)]
        at_top = [tirx.reinterpret(_vector("int32", lanes), tirx.Shuffle([half, zeros], index)) for half in (low, high)]
        yield start, lanes, (_fraction(at_top[0]), _fraction(at_top[1]))


def _fraction(at_top: tirx.Expr) -> tirx.Expr:
    return tirx.call_llvm_pure_intrin(_vector("float32", _LANES), _DIVIDE, at_top, tirx.const(_TOP, "int32"))


def _high(both: tirx.Expr, lanes: int) -> tirx.Expr:
    return tirx.Cast(_vector("float32", lanes), both >> spread(tirx.const(_HALF, "int32"), lanes))


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
