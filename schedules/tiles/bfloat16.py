"""Instructions for bfloat16, in LLVM's text: TVM's code generator has no bfloat16, so words of 16 bits stand for it.

    dot        vdpbf16ps (x86): each lane of float32 gets the sum of two products; a lane of a factor is a pair of bfloat16
    matrix     bfmmla (AArch64): sums of two rows × two columns get those of four products; a factor is two words of four
    narrowed   vcvtneps2bf16, bfcvtn: float32 in bfloat16, to the nearest, ties to even; on x86 subnormal numbers become 0

Calls of these functions are inlined, each to its instruction, where the text is part of a kernel's module (`DefineCalled`).
"""

from __future__ import annotations

import re

from tvm import tirx

_BITS = {16: 512, 8: 256, 4: 128}  # of the vector, by lanes
_LEAST = 4
_NAME = re.compile(r"flexcomp_bfloat16_(dot|matrix|narrow)_(\d+)")


def dot(total: tirx.Expr, left: tirx.Expr, right: tirx.Expr, lanes: int) -> tirx.Expr:
    """float32 sums with the products of pairs, int32 lanes, added."""
    return tirx.call_pure_extern(_vector("float32", lanes), f"flexcomp_bfloat16_dot_{lanes}", total, left, right)


def matrix(total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
    """Four float32 sums, [row][column], with products added of two rows and two columns, int32x4 each."""
    return tirx.call_pure_extern("float32x4", "flexcomp_bfloat16_matrix_4", total, left, right)


def narrowed(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """float32 as words of bfloat16."""
    return tirx.call_pure_extern(_vector("uint16", lanes), f"flexcomp_bfloat16_narrow_{lanes}", value)


def text_of(names: set[str]) -> str:
    """The definitions of all functions of these names that are among the above; empty if none is."""
    found = sorted((kind, int(lanes)) for kind, lanes in (match.groups() for match in map(_NAME.fullmatch, names) if match))
    declared = sorted({_BITS[max(lanes, _LEAST)] for kind, lanes in found if kind == "dot"})
    made = {"dot": _dot, "matrix": lambda lanes: _MATRIX, "narrow": _narrow}
    return "\n".join([*map(_declaration, declared), *(made[kind](lanes) for kind, lanes in found)])


_MATRIX = """declare <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float>, <8 x bfloat>, <8 x bfloat>)
define internal <4 x float> @flexcomp_bfloat16_matrix_4(<4 x float> %total, <4 x i32> %a, <4 x i32> %b) alwaysinline {
  %x = bitcast <4 x i32> %a to <8 x bfloat>
  %y = bitcast <4 x i32> %b to <8 x bfloat>
  %sum = call <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float> %total, <8 x bfloat> %x, <8 x bfloat> %y)
  ret <4 x float> %sum
}"""


def _declaration(bits: int) -> str:
    sums, pairs = f"<{bits // 32} x float>", f"<{bits // 16} x bfloat>"
    return f"declare {sums} @llvm.x86.avx512bf16.dpbf16ps.{bits}({sums}, {pairs}, {pairs})"


def _dot(lanes: int) -> str:
    """Of fewer than four lanes, the first of four."""
    if lanes < _LEAST:
        return _dot_of_few(lanes)
    sums, words, pairs = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    return f"""define internal {sums} @flexcomp_bfloat16_dot_{lanes}({sums} %total, {words} %a, {words} %b) alwaysinline {{
  %x = bitcast {words} %a to {pairs}
  %y = bitcast {words} %b to {pairs}
  %sum = call {sums} @llvm.x86.avx512bf16.dpbf16ps.{_BITS[lanes]}({sums} %total, {pairs} %x, {pairs} %y)
  ret {sums} %sum
}}"""


def _dot_of_few(lanes: int) -> str:
    kinds = {"float": "float", "i32": "i32"} if lanes == 1 else {kind: f"<{lanes} x {kind}>" for kind in ("float", "i32")}
    mask = ", ".join(f"i32 {i}" if i < lanes else "i32 poison" for i in range(_LEAST))
    lines = []
    for name, kind in (("total", "float"), ("a", "i32"), ("b", "i32")):
        wide = f"<{_LEAST} x {kind}>"
        if lanes == 1:
            lines.append(f"  %{name}.4 = insertelement {wide} zeroinitializer, {kind} %{name}, i32 0")
        else:
            narrow = kinds[kind]
            lines.append(f"  %{name}.4 = shufflevector {narrow} %{name}, {narrow} zeroinitializer, <{_LEAST} x i32> <{mask}>")
    few = (
        "  %few = extractelement <4 x float> %sum, i32 0" if lanes == 1
        else "  %few = shufflevector <4 x float> %sum, <4 x float> poison, <2 x i32> <i32 0, i32 1>"
    )  # fmt: skip
    sums, words = kinds["float"], kinds["i32"]
    return "\n".join([
        f"define internal {sums} @flexcomp_bfloat16_dot_{lanes}({sums} %total, {words} %a, {words} %b) alwaysinline {{",
        *lines,
        "  %x = bitcast <4 x i32> %a.4 to <8 x bfloat>",
        "  %y = bitcast <4 x i32> %b.4 to <8 x bfloat>",
        "  %sum = call <4 x float> @llvm.x86.avx512bf16.dpbf16ps.128(<4 x float> %total.4, <8 x bfloat> %x, <8 x bfloat> %y)",
        few,
        f"  ret {sums} %few",
        "}",
    ])  # fmt: skip


def _narrow(lanes: int) -> str:
    kinds = "float", "bfloat", "i16"
    wide, narrow, words = kinds if lanes == 1 else (f"<{lanes} x {kind}>" for kind in kinds)
    return f"""define internal {words} @flexcomp_bfloat16_narrow_{lanes}({wide} %value) alwaysinline {{
  %narrow = fptrunc {wide} %value to {narrow}
  %words = bitcast {narrow} %narrow to {words}
  ret {words} %words
}}"""


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
