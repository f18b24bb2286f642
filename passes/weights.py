"""Which values of `main` depend on weights only: the weight side, evaluated at build time."""

from __future__ import annotations

from tvm import ir, relax

from .ir import bindings, num_inputs


def weight_vars(main: relax.Function) -> set[relax.Var]:
    """The weight parameters of `main` and every variable computed from them and constants alone."""
    result = set(main.params[num_inputs(main) :])
    for binding in bindings(main):
        value = binding.value
        operands = value.args if isinstance(value, relax.Call) else [value]
        if isinstance(value, relax.Call) and not isinstance(value.op, ir.Op):
            continue
        if all(_from_weights(operand, result) for operand in operands):
            result.add(binding.var)
    return result


def _from_weights(expr: ir.Expr, known: set[relax.Var]) -> bool:
    if isinstance(expr, relax.Var):
        return expr in known
    if isinstance(expr, relax.Tuple):
        return all(_from_weights(part, known) for part in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return _from_weights(expr.tuple_value, known)
    return not isinstance(expr, relax.Call)
