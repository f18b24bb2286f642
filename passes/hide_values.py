"""Variables whose values TVM's analyzers do not see.

An analyzer replaces a bound variable by its value wherever it looks at an expression. The transforms of a Winograd kernel are
chains of thousands of bound sums: every pass with an analyzer wrote all of each chain out, and so did the result, in which LLVM
had to find the common sums again, and kept more of them on the stack. Positions that are quotients, remainders or minima grew
in the same way, into every index of a kernel. Here a value becomes the argument of a call with unknown effects, which no
analyzer looks through, until the last pass has run. Sums and products of positions stay, for indices that cancel.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

_CALL = ir.Op.get("tirx.call_extern")
_NAME = "flexcomp.value"
_NOT_LINEAR = (tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)


def HideValues() -> tvm.transform.Pass:
    """A TIR pass: floats that are computed and integers that are divided or compared, where they are bound to variables, are
    hidden, but in kernels with loops that TVM vectorises."""

    @tirx.transform.prim_func_pass(opt_level=0, name="HideValues")
    def hide(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        vectorised: list[tirx.For] = []

        def note(loop: tirx.For) -> tirx.For:
            if loop.kind == tirx.ForKind.VECTORIZED:
                vectorised.append(loop)
            return loop

        body = tvm_ffi.structural_map(func.body, [(tirx.stmt.Bind, _hidden), (tirx.For, note)])
        return func if vectorised else _with(body, func)

    return hide


def ShowValues() -> tvm.transform.Pass:
    """A TIR pass: hidden values are values again."""

    @tirx.transform.prim_func_pass(opt_level=0, name="ShowValues")
    def show(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return _with(tvm_ffi.structural_map(func.body, (ir.Call, _shown)), func)

    return show


def _with(body: tirx.Stmt, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with this body: itself where that is its own, as TVM looks through the body of every new function."""
    return func if body.same_as(func.body) else func.with_body(body)


def _hidden(bind: tirx.stmt.Bind) -> tirx.stmt.Bind:
    kind = bind.value.ty.dtype
    if isinstance(bind.value, ir.TensorLoad):  # of which analyzers know nothing anyway
        return bind
    if not str(kind).startswith("float") and not _divides_or_compares(bind.value):
        return bind
    return tirx.stmt.Bind(bind.var, tirx.call_extern(kind, _NAME, bind.value))


def _divides_or_compares(value: ir.Expr) -> bool:
    found: list[ir.Expr] = []
    tvm_ffi.structural_walk(value, (_NOT_LINEAR, found.append))
    return bool(found)


def _shown(call: ir.Call) -> ir.Expr:
    is_hidden = call.op.same_as(_CALL) and call.args[0].value == _NAME
    return call.args[1] if is_hidden else call
