"""Products of 8-bit integers, four at a time: each lane of int32 gets the sum of the four that lie in it.

    x86        vpdpbusd, of AVX-512 VNNI and of AVX-VNNI: unsigned left factors, signed right ones
    AArch64    sdot, of the dot product extension: both signed; the left ones of a lane, by its number

Neither saturates, so sums are exact where they fit 32 bits.
"""

from __future__ import annotations

from tvm import tirx

from .emit import Accumulators

TOGETHER = 4
_UNSIGNED = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256", 4: "llvm.x86.avx512.vpdpbusd.128"}
_SIGNED = {4: "llvm.aarch64.neon.sdot.v4i32.v16i8"}
LEAST_LANES = 4


class DotAccumulators(Accumulators):
    """A register tile of int32; left factors are int32 lanes of four integers each, right ones four times as many int8."""

    dtype = "int32"

    def add_product(self, row: int, start: int, lanes: int, left: tirx.Expr, right: tirx.Expr) -> None:
        four = tirx.reinterpret(f"int8x{TOGETHER * lanes}", left)
        self.assign_to(row, start, lanes, self._with_dots(lanes, self.get(row, start, lanes), four, right))

    def _with_dots(self, lanes: int, total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _UNSIGNED[lanes], total, left, right)


class SignedDotAccumulators(DotAccumulators):
    """With signed left factors."""

    def _with_dots(self, lanes: int, total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
        # The second factor is the one that can be taken from a lane.
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _SIGNED[lanes], total, right, left)
