"""Products of integers, several at a time: each lane of int32 gets the sum of its products.

    vpdpbusd   x86 with AVX-512 VNNI or AVX-VNNI: four of unsigned left factors and signed right ones, of 8 bits
    sdot       AArch64 with the dot product extension: four of signed factors; the left ones of a lane, by its number
    vpmaddwd   x86 with AVX2: two of 16 bits; right factors lie in 8 bits and are widened in registers

None saturates with factors of 8 bits, so sums are exact where they fit 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from .emit import Accumulators

_VPDPBUSD = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256", 4: "llvm.x86.avx512.vpdpbusd.128"}
_VPMADDWD = {8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
LEAST_LANES = 4


class _DotAccumulators(Accumulators):
    """A register tile of int32. Left factors are int32 lanes of several integers each, right ones as many times more int8."""

    dtype = "int32"

    def add_product(self, row: int, start: int, lanes: int, left: tirx.Expr, right: tirx.Expr) -> None:
        self.assign_to(row, start, lanes, self._with_dots(lanes, self.get(row, start, lanes), left, right))

    def _with_dots(self, lanes: int, total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
        raise NotImplementedError


class _Unsigned(_DotAccumulators):
    def _with_dots(self, lanes: int, total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
        four = tirx.reinterpret(f"int8x{4 * lanes}", left)
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _VPDPBUSD[lanes], total, four, right)


class _Signed(_DotAccumulators):
    def _with_dots(self, lanes: int, total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
        four = tirx.reinterpret(f"int8x{4 * lanes}", left)
        # The second factor is the one that can be taken from a lane.
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", "llvm.aarch64.neon.sdot.v4i32.v16i8", total, right, four)


class _Pairs(_DotAccumulators):
    def _with_dots(self, lanes: int, total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
        wide = f"int16x{2 * lanes}"
        pair, widened = tirx.reinterpret(wide, left), tirx.Cast(wide, right)
        return total + tirx.call_llvm_pure_intrin(f"int32x{lanes}", _VPMADDWD[lanes], pair, widened)


@dataclass(frozen=True)
class Dots:
    """The operands and the cost of an instruction."""

    together: int  # products of a lane
    kind: str  # of left factors
    lowest: int  # of these: inputs are packed so that their least is this
    itemsize: int  # bytes of one
    flops: float  # at the peak of float32 that take as long as a product
    registers: int  # besides those of a tile of float32: for LLVM's intermediate values
    accumulators: type[Accumulators]


# Costs were fitted on one Zen 4 core to the layers of MobileNetV2 and ResNet-50.
DOTS = {
    "vpdpbusd": Dots(4, "uint8", 0, 1, 0.505, 0, _Unsigned),
    "sdot": Dots(4, "int8", -128, 1, 0.505, 0, _Signed),
    "vpmaddwd": Dots(2, "int16", 0, 2, 1.5, 2, _Pairs),
}
