"""Fuse operators that no family takes, and say which a kernel computes."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from .attributes import COMPUTES, OPERATOR
from .ir import bindings, operator, with_functions
from .module_pass import module_pass
from .name_fused import NameFused


@module_pass(opt_level=0)
class FuseGeneric:
    """Fuse operators into one loop, as TVM does, and note on every kernel without a name its operators.

    a = call_tir(tir_exp, x); b = call_tir(add1, a, y)   →   b = call_tir(fused_tir_exp_add1, x, y)   COMPUTES: exp, add

    TVM's name of a fused kernel cannot be taken apart again, and its fusion drops attributes: these are set afterwards.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        # Operators that became part of others are still there; TVM would warn of them.
        mod = relax.transform.DeadCodeElimination()(mod)
        mod = NameFused()(relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(mod)))
        computes = {gv.name_hint: _operators(gv, func) for gv, func in mod.functions_items()}
        mod = relax.transform.FuseTIR()(mod)

        def named(gv: tvm.ir.GlobalVar, func: tvm.ir.BaseFunc) -> tvm.ir.BaseFunc:
            ours = func.attrs is not None and OPERATOR in func.attrs
            return func.with_attr(COMPUTES, computes[gv.name_hint]) if isinstance(func, tirx.PrimFunc) and not ours else func

        return with_functions(mod, {gv: named(gv, func) for gv, func in mod.functions_items()})


def _operators(gv: tvm.ir.GlobalVar, func: tvm.ir.BaseFunc) -> list[str]:
    """The operators of a function, in order."""
    if not isinstance(func, relax.Function):
        return [_plain(gv.name_hint)]
    calls = [binding.value for binding in bindings(func) if operator(binding.value) in ("call_tir", "call_tir_inplace")]
    return [_plain(call.args[0].name_hint) for call in calls]


def _plain(name: str) -> str:
    """tir_exp1 → exp: legalised operators have their own names, and numbers that tell several of one name apart."""
    name = name.removeprefix("tir_")
    return name if name in _NUMBERED else name.rstrip("0123456789").rstrip("_")


_NUMBERED = {name.rpartition(".")[2] for name in tvm.ir.Op.list_op_names() if name.startswith("relax.") and name[-1].isdigit()}
