"""Outputs that no input decides: `main` returns them as weights or constants."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.op.builtin import stop_lift_params

from .ir import num_inputs
from .module_pass import module_pass
from .rebuild import MainRewriter


@module_pass(opt_level=0)
class KeepConstantOutputs:
    """Let `main` return outputs that depend on weights only, such as a detector's anchors.

    main(x, w) { a = add(w, w); return relu(x), a }   →   … b = stop_lift_params(a); return relu(x), b

    LiftTransformParams loses a returned value that it lifts. So it lifts `a`, and returns that parameter for `b`;
    lowering copies it. Shapes become tensors.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Keeper(mod).rewrite()


class _Keeper(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.from_inputs = set(self.main.params[: num_inputs(self.main)])

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        new = self.substitute(value)
        if not self.from_inputs.isdisjoint(relax.analysis.free_vars(value)):
            self.from_inputs.add(var)
        return new

    def result(self, old: ir.Expr) -> ir.Expr:
        new = self.substitute(old)
        if isinstance(old.ty, relax.ShapeType):
            return stop_lift_params(relax.const(np.array([int(extent) for extent in old.ty.values]), "int64"))
        if isinstance(new, tirx.IntImm | tirx.FloatImm):
            return stop_lift_params(relax.const(new.value, str(new.ty.dtype)))
        return new if not self.from_inputs.isdisjoint(relax.analysis.free_vars(old)) else stop_lift_params(new)
