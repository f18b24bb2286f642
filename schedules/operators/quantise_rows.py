"""Rows of activations in 8 bits (`../tiles/byte_rows.py`): one kernel for all layers that multiply the same rows.

Rounding adds 3 · 2^22 to products of at most 127, in one multiply-add: the float32 ends in the integer that is nearest to the
exact product, ties to even. A block with a number that is infinite or none has such a scale, so its products are no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles.blocks import BIAS
from ..tiles.byte_rows import MOST, ByteRows
from ..tiles.emit import flat, loop, spread, vector

_ROUND = 12582912.0  # 3 · 2^22
_ROUND_BITS = 0x4B400000
_MAGNITUDE = 0x7FFFFFFF
_FLOPS = 4  # of an element, for the decision whether threads pay


@dataclass(frozen=True)
class QuantiseSpec:
    """Of float32[rows, inputs]."""

    rows: int
    inputs: int
    size: int  # inputs of a block
    sums: bool = True  # with sums of blocks

    @classmethod
    def of_cache(cls, rows: int, depth: int) -> QuantiseSpec:
        """Of keys or values, a block each."""
        return cls(rows, depth, ByteRows.of_cache(depth).size, sums=False)

    @property
    def layout(self) -> ByteRows:
        return ByteRows(self.inputs, self.size, self.sums)

    @property
    def flops(self) -> int:
        return _FLOPS * self.rows * self.inputs

    def __str__(self) -> str:
        return f"{self.rows}×{self.inputs} to int8 in blocks of {self.size}"


def kernel(spec: QuantiseSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (x, rows) for vectors of `width` float32."""
    layout = spec.layout
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        given = T.arg("x", T.buffer((spec.rows, spec.inputs), "float32"))
        made = T.arg("rows", T.buffer((spec.rows, layout.nbytes), "int8"))
        x = flat(given, spec.rows * spec.inputs)
        q = flat(made, spec.rows * layout.nbytes, "int8")
        words, numbers = (T.decl_buffer((spec.rows * layout.nbytes // 4,), kind, data=made.data) for kind in ("int32", "float32"))
        whole, rest = divmod(spec.inputs, spec.size)
        with loop(spec.rows, spec.flops) as row:

            def quantised(block, count: int) -> None:
                source = T.bind(row * spec.inputs + block * spec.size)
                target = T.bind(row * layout.nbytes + block * spec.size)
                scale, total = _quantise(x, q, source, target, count, width)
                for i in range(count, spec.size):
                    T.buffer_store(q, tirx.const(0, "int8"), [target + i])
                at = T.bind(row * (layout.nbytes // 4) + layout.scale_at(block))
                T.buffer_store(numbers, scale, [at])
                if layout.sums:
                    T.buffer_store(words, total * -BIAS, [at + 1])

            with T.serial(whole) as block:
                quantised(block, spec.size)
            if rest:
                quantised(whole, rest)
    return builder.get()


def _quantise(x: tirx.Buffer, q: tirx.Buffer, source, target, count: int, width: int) -> tuple[tirx.Expr, tirx.Expr]:
    """Write a block of so many elements; its scale, and the sum of its integers."""

    def magnitudes(at, lanes: int) -> tirx.Expr:
        return _bits(x[vector(source + at, lanes)], lanes) & _all(_MAGNITUDE, lanes)

    largest = _Total("smax", count, width, magnitudes)
    top = T.bind(tirx.reinterpret("float32", largest.value))
    back = T.bind(tirx.Select(top > 0, tirx.const(MOST, "float32") / top, tirx.const(0.0, "float32")))

    def integers(at, lanes: int) -> tirx.Expr:
        rounded = x[vector(source + at, lanes)] * spread(back, lanes) + spread(tirx.const(_ROUND, "float32"), lanes)
        return _bits(rounded, lanes) - _all(_ROUND_BITS, lanes)

    def written(at, lanes: int) -> tirx.Expr:
        value = T.bind(integers(at, lanes))
        T.buffer_store(q, tirx.Cast("int8" if lanes == 1 else f"int8x{lanes}", value), [vector(target + at, lanes)])
        return value

    return top / tirx.const(MOST, "float32"), _Total("add", count, width, written).value


class _Total:
    """The largest, or the sum, of int32 that `of(at, lanes)` gives for `count` elements."""

    def __init__(self, kind: str, count: int, width: int, of: Callable[[object, int], tirx.Expr]) -> None:
        self.kind = kind
        vectors, rest = divmod(count, width)
        found = T.alloc_buffer((1,), "int32", scope="global")
        T.buffer_store(found, tirx.const(0, "int32"), [0])
        if vectors:
            sums = T.alloc_buffer((width,), "int32", scope="global")
            T.buffer_store(sums, _all(0, width), [vector(0, width)])
            with T.serial(vectors) as i:
                T.buffer_store(sums, self._joined(sums[vector(0, width)], of(i * width, width)), [vector(0, width)])
            name = f"llvm.vector.reduce.{kind}"
            T.buffer_store(found, tirx.call_llvm_pure_intrin("int32", name, sums[vector(0, width)]), [0])
        if rest:
            with T.serial(rest) as i:
                T.buffer_store(found, self._joined(found[0], of(vectors * width + i, 1)), [0])
        self.value = T.bind(found[0])

    def _joined(self, a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return a + b if self.kind == "add" else tirx.max(a, b)


def _bits(value: tirx.Expr, lanes: int) -> tirx.Expr:
    return tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)


def _all(number: int, lanes: int) -> tirx.Expr:
    return spread(tirx.const(number, "int32"), lanes)
