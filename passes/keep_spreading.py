"""Constants that are far larger than their operands stay operators, computed by their readers."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax
from tvm.relax.op.builtin import stop_lift_params

from .ir import BROADCASTING, LOGICAL, UNARY, bindings, dtype, operator, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

# A smaller result is read faster than computed.
_LEAST_NBYTES = 1 << 16
# A result has to be so many times its operands: below that, a file hardly grows.
_FAR_LARGER = 8
# Operators that spread numbers, and operators that cost no more than reading their result.
_SPREADING = BROADCASTING | LOGICAL | {
    "broadcast_to", "tile", "repeat", "full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "triu", "tril", "one_hot",
    "astype", "reshape", "permute_dims", "negative", "abs", "logical_not", "concat",
}  # fmt: skip
_READERS = BROADCASTING | LOGICAL | UNARY | {"concat"}


@module_pass(opt_level=0)
class KeepSpreading:
    """Let weights that elementwise operators read, and that are far larger than their sources, be computed in the network.

    m = triu(broadcast_to(w, (512, 512)))         s = stop_lift_params(w)
    y = add(x, m)                            →    m = triu(broadcast_to(s, (512, 512)))
                                                  y = add(x, m)

    LiftTransformParams lifts neither; FuseGeneric computes them in the kernel that reads them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        kept = _spreading(mod["main"])
        return _Keeper(mod, kept).rewrite() if kept else mod


class _Keeper(MainRewriter):
    def __init__(self, mod: tvm.IRModule, kept: set[relax.Var]) -> None:
        super().__init__(mod)
        self.kept = kept
        self.from_weights = weight_vars(self.main)
        self.stopped: dict[relax.Var, relax.Var] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        if var not in self.kept:
            return self.substitute(value)
        return relax.Call(value.op, [self._stopped(arg) for arg in value.args], value.attrs, value.ty_args)

    def _stopped(self, arg: ir.Expr) -> ir.Expr:
        """An operand of an operator that stays; a weight of the network is not lifted any further."""
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._stopped(field) for field in arg.fields])
        new = self.substitute(arg)
        if not isinstance(arg, relax.Var) or arg in self.kept or arg not in self.from_weights:
            return new
        if arg not in self.stopped:
            self.stopped[arg] = self.emit(stop_lift_params(new))
        return self.stopped[arg]


def _spreading(main: relax.Function) -> set[relax.Var]:
    """The variables that stay in the network: those at its border that are far larger than their sources, and all in between."""
    from_weights = weight_vars(main)
    values = {binding.var: binding.value for binding in bindings(main)}
    read: set[relax.Var] = set()
    needed: set[relax.Var] = {*relax.analysis.free_vars(main.body.body), main.body.body}  # in the file, whoever else reads them
    for var, value in values.items():
        if var not in from_weights:
            (read if operator(value) in _READERS else needed).update(relax.analysis.free_vars(value))
    kept: set[relax.Var] = set()
    for var in (read - needed) & from_weights & values.keys():
        between, sources = _made_of(var, values, needed)
        nbytes = sum(map(_nbytes, sources))
        if between and _nbytes(var) >= _LEAST_NBYTES and _nbytes(var) > _FAR_LARGER * nbytes:
            kept |= between
    return kept


def _made_of(var: relax.Var, values: dict[relax.Var, ir.Expr], needed: set[relax.Var]) -> tuple[set[relax.Var], set[ir.Expr]]:
    """The variables from `var` on that only spread numbers, and the numbers that they spread."""
    between: set[relax.Var] = set()
    sources: set[ir.Expr] = set()
    ahead: list[ir.Expr] = [var]
    while ahead:
        expr = ahead.pop()
        value = values.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(expr, relax.Tuple):
            ahead.extend(expr.fields)
        elif operator(value) in _SPREADING and expr not in needed:
            if expr not in between:
                between.add(expr)
                ahead.extend(value.args)
        elif isinstance(expr.ty, relax.TensorType):
            sources.add(expr)
    return between, sources


def _nbytes(expr: ir.Expr) -> int:
    if not static_tensor(expr):
        return 0
    return math.prod(shape(expr)) * tvm.DataType(dtype(expr)).itemsize
