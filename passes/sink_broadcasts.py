"""Elementwise operators broadcast constants themselves: a broadcast of weights is no tensor, and no bytes of a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import BROADCASTING, LOGICAL, UNARY, operator, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter, permuted_axes
from .weights import weight_vars

_MANY = BROADCASTING | LOGICAL


@module_pass(opt_level=0)
class SinkBroadcasts:
    """Take operands of elementwise operators from before broadcasts, where the result stays the same.

    b = broadcast_to(w, (1, 64, 240, 320))
    y = multiply(x, b)                         →   y = multiply(x, w)

    Functions of broadcast weights are computed before the broadcast: casts, arithmetic, permutations.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Sinker(mod).rewrite()


class _Sinker(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.from_weights = weight_vars(self.main)
        self.cores: dict[relax.Var, ir.Expr] = {}  # new variable → a smaller one of the same rank that broadcasts to the variable

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        new = self.substitute(value)
        if not isinstance(new, relax.Call) or not static_tensor(var):
            return new
        if var not in self.from_weights:
            return self._with_cores(new, shape(var)) if operator(new) in _MANY else new
        core = self._core(new, shape(var))
        if core is None or shape(core) == shape(var):
            return new if core is None else core
        result = self.emit(new)
        self.cores[result] = core
        return result

    def _with_cores(self, call: relax.Call, result: tuple[int, ...]) -> relax.Call:
        """The call, of operands that are as small as its result allows."""
        args = list(call.args)
        for i, arg in enumerate(args):
            others = [shape(other) for j, other in enumerate(args) if j != i and static_tensor(other)]
            core = self.cores.get(arg) if isinstance(arg, relax.Var) else None
            if core is not None and np.broadcast_shapes(shape(core), *others) == result:
                args[i] = core
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _core(self, call: relax.Call, result: tuple[int, ...]) -> ir.Expr | None:
        """A value that broadcasts to the call's result, if there is a smaller one."""
        name = operator(call)
        if name == "broadcast_to":
            data = self.cores.get(call.args[0], call.args[0])
            return self._shaped(data, (1,) * (len(result) - len(shape(data))) + shape(data))
        if name in _MANY | UNARY and any(arg in self.cores for arg in call.args if isinstance(arg, relax.Var)):
            args = [self.cores.get(arg, arg) if isinstance(arg, relax.Var) else arg for arg in call.args]
            return self.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        data = self.cores.get(call.args[0]) if call.args and isinstance(call.args[0], relax.Var) else None
        if data is None:
            return None
        if name == "permute_dims":
            return self.emit(op.permute_dims(data, permuted_axes(call)))
        axes = _kept_axes(shape(call.args[0]), result) if name in ("reshape", "expand_dims", "squeeze") else None
        return None if axes is None else self._shaped(data, tuple(1 if axis is None else shape(data)[axis] for axis in axes))

    def _shaped(self, data: ir.Expr, extents: tuple[int, ...]) -> ir.Expr:
        return self.emit(self.reshape(data, extents))


def _kept_axes(before: Sequence[int], after: Sequence[int]) -> list[int | None] | None:
    """For every axis after a reshape its axis before, None for a new one of extent 1; None if axes are merged."""
    kept = [axis for axis, extent in enumerate(before) if extent != 1]
    if [before[axis] for axis in kept] != [extent for extent in after if extent != 1]:
        return None
    left = iter(kept)
    return [None if extent == 1 else next(left) for extent in after]
