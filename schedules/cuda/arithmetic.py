"""Arithmetic with the same results on a GPU as on a CPU.

CUDA's max and min of floats forget a NaN that TVM's keep in their second operand, and TVM computes exp, tanh, pow and
others under CUDA by fast approximations of few digits.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

# Operators of float32 for which TVM would choose an approximation, and CUDA's functions with errors of a bit or two.
_FUNCTIONS = {
    f"tirx.{name}": f"{name}f"
    for name in (
        "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "erf", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
        "acos", "atan", "asinh", "acosh", "atanh", "atan2", "hypot", "floor", "ceil", "trunc", "round", "nearbyint", "sqrt",
    )
} | {"tirx.pow": "powf", "tirx.fabs": "fabsf", "tirx.fmod": "fmodf"}  # fmt: skip

# Functions that generated code calls.
PREAMBLE = """\
static __device__ __forceinline__ float larger(float a, float b) { return a > b ? a : b; }
static __device__ __forceinline__ float smaller(float a, float b) { return a < b ? a : b; }
static __device__ __forceinline__ int kept(int value) { asm volatile("" : "+r"(value)); return value; }
"""


def exact(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with maxima and minima of floats as comparisons, and with accurate functions.

    For float32 these are the functions of `PREAMBLE`: expressions would name their operands twice, and nested ones would
    grow exponentially.
    """
    return tvm_ffi.structural_map(kernel, [((tirx.Max, tirx.Min), _compared), (ir.Call, _accurate)])


def _compared(pair: tirx.Max | tirx.Min) -> ir.Expr:
    dtype = str(pair.ty.dtype)
    if dtype == "float32":
        return tirx.call_pure_extern(dtype, "larger" if isinstance(pair, tirx.Max) else "smaller", pair.a, pair.b)
    if not dtype.startswith(("float", "bfloat")):
        return pair
    first = pair.a > pair.b if isinstance(pair, tirx.Max) else pair.a < pair.b
    return tirx.Select(first, pair.a, pair.b)


def _accurate(call: ir.Call) -> ir.Expr:
    if not isinstance(call.op, ir.Op) or not isinstance(call.ty, ir.PrimType) or call.ty.dtype != "float32":
        return call
    name = _FUNCTIONS.get(call.op.name)
    return call if name is None else tirx.call_pure_extern("float32", name, *call.args)
