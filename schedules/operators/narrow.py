"""Conversions between float32 and the 16-bit floats, in integer arithmetic.

Every processor gives the same bits, and none needs an instruction for them, or a library. To 16 bits is to the nearest, ties to
even; too large numbers become infinite, too small ones a float16 subnormal or 0. NaN stays NaN.

Where 16-bit floats come in or go out: a network computes in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import loop, vector
from ..tiles.rows import cover
from ..tiles.vector_math import lanes as lanes_of
from ..tiles.vector_math import let

NARROW = ("float16", "bfloat16")
# Cost of an element in operations, for the decision whether threads pay.
_FLOPS = 8


@dataclass(frozen=True)
class NarrowSpec:
    """Of two element types, one is float32, the other one of NARROW."""

    shape: tuple[int, ...]
    source: str
    target: str

    @property
    def flops(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.source} to {self.target}, {'×'.join(map(str, self.shape))}"


def kernel(spec: NarrowSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (source, target) for vectors of `width` 32-bit elements."""
    size = math.prod(spec.shape)
    row = cover(size, width)
    vectors = row.full + bool(row.overlap)
    words = {"float32": "uint32", "float16": "uint16", "bfloat16": "uint16"}
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        source = T.arg("source", T.buffer(spec.shape, spec.source))
        target = T.arg("target", T.buffer(spec.shape, spec.target))
        source = T.decl_buffer((size,), words[spec.source], data=source.data)
        target = T.decl_buffer((size,), words[spec.target], data=target.data)
        with loop(vectors, size * _FLOPS) as i:
            at = tirx.min(i * row.lanes, row.last) if vectors > 1 else i * row.lanes
            place = vector(at, row.lanes)
            T.buffer_store(target, _CONVERSIONS[spec.source, spec.target](source[place]), [place])
    return builder.get()


def _typed(kind: str, like: ir.Expr) -> str:
    count = lanes_of(like)
    return kind if count == 1 else f"{kind}x{count}"


def _word(value: int, like: ir.Expr) -> ir.Expr:
    return tirx.const(value, _typed("uint32", like))


def _float(value: float, like: ir.Expr) -> ir.Expr:
    return tirx.const(value, _typed("float32", like))


def _as_float(bits: ir.Expr) -> ir.Expr:
    return tirx.reinterpret(_typed("float32", bits), bits)


def _as_word(value: ir.Expr) -> ir.Expr:
    return tirx.reinterpret(_typed("uint32", value), value)


def _wide(bits: ir.Expr) -> ir.Expr:
    return tirx.Cast(_typed("uint32", bits), bits)


def _short(bits: ir.Expr) -> ir.Expr:
    return tirx.Cast(_typed("uint16", bits), bits)


def _from_bfloat16(bits: ir.Expr) -> ir.Expr:
    return tirx.shift_left(_wide(bits), _word(16, bits))


def _to_bfloat16(bits: ir.Expr) -> ir.Expr:
    def of(word: ir.Expr) -> ir.Expr:
        # Half of the last place that stays, less a bit where that place is even: ties go to even. Too large carries to infinity.
        odd = tirx.bitwise_and(tirx.shift_right(word, _word(16, word)), _word(1, word))
        rounded = tirx.shift_right(word + _word(0x7FFF, word) + odd, _word(16, word))
        quiet = tirx.bitwise_or(tirx.shift_right(word, _word(16, word)), _word(0x40, word))
        is_nan = tirx.bitwise_and(word, _word(0x7FFFFFFF, word)) > _word(0x7F800000, word)
        return _short(tirx.Select(is_nan, quiet, rounded))

    return let(bits, of)


def _from_float16(bits: ir.Expr) -> ir.Expr:
    def of(word: ir.Expr) -> ir.Expr:
        sign = tirx.shift_left(tirx.bitwise_and(word, _word(0x8000, word)), _word(16, word))
        magnitude = tirx.shift_left(tirx.bitwise_and(word, _word(0x7FFF, word)), _word(13, word))

        def of_magnitude(moved: ir.Expr) -> ir.Expr:
            # The exponent is 112 less than a float32's; that of infinity and NaN is the largest in both.
            special = moved >= _word(0x1F << 23, word)
            normal = tirx.Select(special, moved + _word(0x70000000, word), moved + _word(112 << 23, word))
            # A subnormal is a count of 2^-24: below 2^10, so the float of the count is exact, and of one sign.
            count = tirx.Cast(_typed("int32", word), tirx.shift_right(moved, _word(13, word)))
            small = _as_word(tirx.Cast(_typed("float32", word), count) * _float(2.0**-24, word))
            return tirx.bitwise_or(sign, tirx.Select(moved < _word(1 << 23, word), small, normal))

        return let(magnitude, of_magnitude)

    return let(_wide(bits), of)


def _to_float16(bits: ir.Expr) -> ir.Expr:
    def of(word: ir.Expr) -> ir.Expr:
        sign = tirx.shift_right(tirx.bitwise_and(word, _word(0x80000000, word)), _word(16, word))

        def of_magnitude(size: ir.Expr) -> ir.Expr:
            odd = tirx.bitwise_and(tirx.shift_right(size, _word(13, word)), _word(1, word))
            # 112 less in the exponent; a carry out of the mantissa, to infinity at the end, is right.
            rounded = tirx.shift_right(size - _word(112 << 23, word) + _word(0xFFF, word) + odd, _word(13, word))
            # 0.5 has an ulp of 2^-24, that of subnormals: the sum rounds to that, and holds the count in its last bits.
            small = _as_word(_as_float(size) + _float(0.5, word)) - _word(0x3F000000, word)
            finite = tirx.Select(size < _word(113 << 23, word), small, rounded)
            large = tirx.Select(size > _word(0x7F800000, word), _word(0x7E00, word), _word(0x7C00, word))
            # From 65520 on, the nearest is infinity.
            return _short(tirx.bitwise_or(sign, tirx.Select(size >= _word(0x477FF000, word), large, finite)))

        return let(tirx.bitwise_and(word, _word(0x7FFFFFFF, word)), of_magnitude)

    return let(bits, of)


_CONVERSIONS = {
    ("bfloat16", "float32"): _from_bfloat16,
    ("float32", "bfloat16"): _to_bfloat16,
    ("float16", "float32"): _from_float16,
    ("float32", "float16"): _to_float16,
}

__all__ = ["NARROW", "NarrowSpec", "kernel"]
