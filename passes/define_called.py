"""Functions in LLVM's text that kernels call, as parts of their modules."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import ir, tirx

_CALLS = ("tirx.call_pure_extern", "tirx.call_extern")


def DefineCalled(*texts: Callable[[set[str]], str]) -> tvm.transform.Pass:
    """A TIR pass: each of `texts` gives the definitions of those functions that it knows, of the names that a kernel calls."""

    @tirx.transform.prim_func_pass(opt_level=0, name="DefineCalled")
    def define(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        names = called_names(func.body)
        text = "\n".join(filter(None, (text_of(names) for text_of in texts)))
        if not text:
            return func
        return func.with_body(tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", ir.StringImm(text), func.body))

    return define


def called_names(body: tirx.Stmt) -> set[str]:
    """The names of functions that are called from outside of the module."""
    names: set[str] = set()

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name in _CALLS:
            names.add(call.args[0].value)

    tvm_ffi.structural_walk(body, (ir.Call, visit))
    return names
