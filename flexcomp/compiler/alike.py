"""Layers of one network in several shapes that have the same weights: they agree on the forms in which these are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import tvm
from tvm import ir, relax

from flexcomp.deferred import Array, content_digest, told_by
from flexcomp.passes.choose_kernels import Alike, Spec, layers_with_weights
from flexcomp.passes.ir import bindings, num_inputs, operator


def alike_layers(mods: Sequence[tvm.IRModule], weights: Sequence[Sequence[Array]]) -> Alike:
    """By spec all specs of layers with the same weights; of modules of fused layers and the weights of each."""
    told = cache(lambda mod, index: told_by(weights[mod][index]))
    groups: dict[tuple, dict[Spec, None]] = {}  # by the origins of the weights
    for number, mod in enumerate(mods):
        origin = _origins(mod["main"], lambda index, number=number: told(number, index))
        for read, spec in layers_with_weights(mod):
            found = tuple(map(origin, read))
            if None not in found:
                groups.setdefault(found, {})[spec] = None
    result: dict[Spec, dict[Spec, None]] = {}
    for specs in groups.values():
        for spec in specs:
            result.setdefault(spec, {}).update(specs)
    return {spec: tuple(others) for spec, others in result.items() if len(others) > 1}


def _origins(main: relax.Function, told: Callable[[int], tuple]) -> Callable[[ir.Expr], tuple | None]:
    """What a value of main is made of: equal for equal weights; None where that is not known."""
    params = list(main.params[num_inputs(main) :])
    index = {param: number for number, param in enumerate(params)}
    values = {binding.var: binding.value for binding in bindings(main)}
    known: dict[relax.Var, tuple | None] = {}

    def origin(expr: ir.Expr) -> tuple | None:
        if not isinstance(expr, relax.Var):
            return _made(expr)
        if expr not in known:
            known[expr] = told(index[expr]) if expr in index else _made(values.get(expr))
        return known[expr]

    def _made(expr: ir.Expr | None) -> tuple | None:
        if isinstance(expr, ir.GenericConst):
            return (content_digest(expr.value.numpy()),)
        if isinstance(expr, relax.Var):
            return origin(expr)
        if isinstance(expr, relax.ShapeExpr):
            return ("shape", str(expr))
        if not isinstance(expr, relax.Call) or not operator(expr):
            return None
        parts = [_made(arg) if not isinstance(arg, relax.Var) else origin(arg) for arg in expr.args]
        return None if None in parts else (operator(expr), str(expr.attrs), *parts)

    return origin
