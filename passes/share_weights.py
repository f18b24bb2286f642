"""Compute equal functions of the same weights once."""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import ir, relax

from .ir import bindings, dtype, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

# A weight of fewer bytes is read again with its neighbours in the time that a load of its own would take.
LEAST_NBYTES = 1 << 14


@module_pass(opt_level=0)
class ShareWeights:
    """Let layers that read the same weights read the same variable.

    a = permute_dims(w); y = matmul(x, a)            a = permute_dims(w); y = matmul(x, a)
    b = permute_dims(w); z = matmul(y, b)     →      z = matmul(y, a)

    Two values are the same if the same operators make them of the same weights. A module without large ones is not
    changed.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        same = same_values(mod["main"])
        return _Sharer(mod, same).rewrite() if any(_nbytes(var) >= LEAST_NBYTES for var in same) else mod


class _Sharer(MainRewriter):
    def __init__(self, mod: tvm.IRModule, same: dict[relax.Var, relax.Var]) -> None:
        super().__init__(mod)
        self.same = same

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        first = self.same.get(var)
        return self.substitute(value if first is None else first)


def same_values(main: relax.Function) -> dict[relax.Var, relax.Var]:
    """By variable that weights alone decide, the first one that holds the same."""
    from_weights = weight_vars(main)
    first: dict[int, list[tuple[relax.Var, ir.Expr]]] = {}  # by the hashes of their values
    same: dict[relax.Var, relax.Var] = {}
    for binding in bindings(main):
        if binding.var not in from_weights:
            continue
        value = _over(binding.value, same)
        if isinstance(value, relax.Var):
            same[binding.var] = value
            continue
        known = first.setdefault(tvm_ffi.structural_hash(value), [])
        equal = next((var for var, other in known if tvm_ffi.structural_equal(value, other)), None)
        if equal is None:
            known.append((binding.var, value))
        else:
            same[binding.var] = equal
    return same


def _over(expr: ir.Expr, same: dict[relax.Var, relax.Var]) -> ir.Expr:
    """`expr` over the first variables with the values that it reads."""
    if isinstance(expr, relax.Var):
        return same.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_over(field, same) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_over(expr.tuple_value, same), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [_over(arg, same) for arg in expr.args], expr.attrs, expr.ty_args)
    return expr


def _nbytes(var: relax.Var) -> int:
    """Bytes of a tensor; 0 of anything else."""
    if not static_tensor(var):
        return 0
    return math.prod(shape(var)) * (tvm_ffi.dtype(dtype(var)).bits + 7) // 8
