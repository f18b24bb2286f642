"""Conversions between bfloat16 and float32 as instructions, in kernels whose vectors are made."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..schedules.tiles import bfloat16
from ..schedules.tiles.panel_reader import widened

_NARROW, _WIDE = "bfloat16", "float32"


def LowerBFloat16() -> tvm.transform.Pass:
    """A TIR pass, for processors with AVX512_BF16: words of 16 bits take the place of what is bfloat16 in registers, and the
    functions that kernels call for its instructions are part of their module.

    y[i] = bfloat16(f(float32(x[i])))   →   y[i] = reinterpret(narrowed(f(reinterpret(words(x[i]) << 16))))
    """

    @tirx.transform.prim_func_pass(opt_level=0, name="LowerBFloat16")
    def lower(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        body = tvm_ffi.structural_map(func.body, (tirx.Cast, _lowered))
        text = bfloat16.text_of(called_names(body))
        if text:
            body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", ir.StringImm(text), body)
        return func.with_body(body)

    return lower


def _lowered(cast: tirx.Cast) -> ir.Expr:
    given, made = cast.value.ty.dtype, cast.ty.dtype
    source, target = (str(kind.with_lanes(1)) for kind in (given, made))
    if (source, target) == (_NARROW, _WIDE):
        return widened(cast.value, _NARROW, made.lanes)
    if (source, target) == (_WIDE, _NARROW):
        return tirx.reinterpret(str(made), bfloat16.narrowed(cast.value, made.lanes))
    return cast


def called_names(body: tirx.Stmt) -> set[str]:
    """The names of functions that are called from outside of the module."""
    names: set[str] = set()

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name == "tirx.call_pure_extern":
            names.add(call.args[0].value)

    tvm_ffi.structural_walk(body, (ir.Call, visit))
    return names
