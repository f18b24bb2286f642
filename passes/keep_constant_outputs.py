"""Outputs that no input decides: `main` returns them as weights or constants."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.op.builtin import stop_lift_params

from .ir import bindings, num_inputs
from .module_pass import module_pass
from .rebuild import MainRewriter, returned


@module_pass(opt_level=0)
class KeepConstantOutputs:
    """Let `main` return outputs that depend on weights only, such as a detector's anchors.

    main(x, w) { a = add(w, w); return relu(x), a }   →   … b = stop_lift_params(a); return relu(x), b

    LiftTransformParams loses a returned value that it lifts. So it lifts `a`, and returns that parameter for `b`;
    lowering copies it. Shapes become tensors.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        from_inputs = _from_inputs(mod["main"])
        if all(isinstance(one.ty, relax.TensorType) and _reads(one, from_inputs) for one in returned(mod["main"])):
            return mod
        return _Keeper(mod, from_inputs).rewrite()


def _from_inputs(main: relax.Function) -> set[relax.Var]:
    """The inputs of `main` and every variable that depends on one."""
    result = set(main.params[: num_inputs(main)])
    for binding in bindings(main):
        if _reads(binding.value, result):
            result.add(binding.var)
    return result


def _reads(expr: ir.Expr, some: set[relax.Var]) -> bool:
    return not some.isdisjoint(relax.analysis.free_vars(expr))


class _Keeper(MainRewriter):
    def __init__(self, mod: tvm.IRModule, from_inputs: set[relax.Var]) -> None:
        super().__init__(mod)
        self.from_inputs = from_inputs

    def result(self, old: ir.Expr) -> ir.Expr:
        new = self.substitute(old)
        if isinstance(old.ty, relax.ShapeType):
            return stop_lift_params(relax.const(np.array([int(extent) for extent in old.ty.values]), "int64"))
        if isinstance(new, tirx.IntImm | tirx.FloatImm):
            return stop_lift_params(relax.const(new.value, str(new.ty.dtype)))
        return new if _reads(old, self.from_inputs) else stop_lift_params(new)
