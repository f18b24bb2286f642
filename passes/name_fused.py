"""Give calls of fused operators a name that tells where they come from."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import module_pass

from .ir import bindings, with_functions


@module_pass(opt_level=0)
class NameFused:
    """Call the result of fused operators as the first of them; TVM's fusion calls it anything.

    lv = fused_exp_add(x)   →   exp_3 = fused_exp_add(x)      where fused_exp_add holds exp_3 = exp(x)
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        mutator = _Mutator(mod)
        main = mutator.visit_expr(mod["main"])
        functions = dict(mod.functions_items())
        return with_functions(mod, {**functions, mod.get_global_var("main"): main})


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        fused = self.mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar) else None
        # Outputs keep the variables that they have: a dataflow block knows them from its own.
        if not isinstance(fused, relax.Function) or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        first = next(bindings(fused)).var
        self.set_var_remap(binding.var, self.builder_.emit(self.visit_expr(value), name_hint=first.name))
