"""Give calls of fused operators a name that tells their origin, and fused operators none."""

from __future__ import annotations

import tvm
from tvm import relax

from .ir import bindings, with_functions
from .module_pass import module_pass


@module_pass(opt_level=0)
class NameFused:
    """Name the result of fused operators like the first of them, in place of TVM's name, and their parameters by number.

    lv = fused_exp_add(x)                     exp_3 = fused_exp_add(x)
    def fused_exp_add(exp_2):             →   def fused_exp_add(p0):
        exp_3 = exp(exp_2) …                      exp_3 = exp(p0) …

    Parameters become those of machine code, which must not hold the names of a network's nodes: it is cached for other networks.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        functions = {}
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function):
                func = _Main(mod).visit_expr(func) if gv.name_hint == "main" else _with_numbered_parameters(func)
            functions[gv] = func
        return with_functions(mod, functions)


def _with_numbered_parameters(func: relax.Function) -> relax.Function:
    params = [relax.Var(f"p{i}", param.ty) for i, param in enumerate(func.params)]
    body = _Renamer(dict(zip(func.params, params, strict=True))).visit_expr(func.body)
    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    def __init__(self, by: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.by = by

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.by.get(var, var)


@relax.expr_functor.mutator
class _Main(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = binding.value
        fused = self.mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar) else None
        # Outputs keep their variables: a dataflow block tells outputs from its own variables.
        if not isinstance(fused, relax.Function) or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        first = next(bindings(fused)).var
        self.set_var_remap(binding.var, self.builder_.emit(self.visit_expr(value), name_hint=first.name))
