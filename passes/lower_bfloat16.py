"""Conversions between bfloat16 and float32 as instructions, in kernels whose vectors are made."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..schedules.tiles import bfloat16
from ..schedules.tiles.panel_reader import widened

_NARROW, _WIDE = "bfloat16", "float32"


def LowerBFloat16() -> tvm.transform.Pass:
    """A TIR pass, for processors with instructions for bfloat16: words of 16 bits take its place in registers.

    y[i] = bfloat16(f(float32(x[i])))   →   y[i] = reinterpret(narrowed(f(reinterpret(words(x[i]) << 16))))
    """

    @tirx.transform.prim_func_pass(opt_level=0, name="LowerBFloat16")
    def lower(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Cast, _lowered)))

    return lower


def _lowered(cast: tirx.Cast) -> ir.Expr:
    given, made = cast.value.ty.dtype, cast.ty.dtype
    source, target = (str(kind.with_lanes(1)) for kind in (given, made))
    if (source, target) == (_NARROW, _WIDE):
        return widened(cast.value, _NARROW, made.lanes)
    if (source, target) == (_WIDE, _NARROW):
        return tirx.reinterpret(str(made), bfloat16.narrowed(cast.value, made.lanes))
    return cast
