"""Keep weights that kernels of custom operators read in fewer bits."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules.operators.narrow_weights import widening
from ..schedules.tiles.panel import SCALED_BFLOAT16, is_scaled
from .attributes import NARROW, VALUES_OF
from .ir import dtype, operator, shape, values_of, with_functions
from .module_pass import module_pass
from .panels import on_weights
from .rebuild import MainRewriter
from .weights import KeptWeight, WeightType, weight_vars


@module_pass(opt_level=0)
class NarrowWeights:
    """Let kernels that say so read weights in the types that `weight_type` gives, and widen each element that is read.

    y = call_tir(f, (x, w))   →   q = astype(w, "float16")
                                  y = call_tir(f_1, (x, q))
    """

    def __init__(self, weight_type: WeightType = lambda names, weight: "float32") -> None:
        self.weight_type = weight_type

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        if not any(map(_is_marked, mod.functions.values())):
            return mod
        mod = _Narrower(mod, self.weight_type).rewrite()
        done = {gv: func.without_attr(NARROW) for gv, func in mod.functions_items() if _is_marked(func)}
        return with_functions(mod, {**dict(mod.functions_items()), **done})


def _is_marked(func: ir.BaseFunc) -> bool:
    return func.attrs is not None and NARROW in func.attrs


class _Narrower(MainRewriter):
    def __init__(self, mod: tvm.IRModule, weight_type: WeightType) -> None:
        super().__init__(mod)
        self.weight_type = weight_type
        self.from_weights, self.old = weight_vars(self.main), values_of(self.main)

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        func = self.mod[value.args[0]] if operator(value) == "call_tir" else None
        if func is None or not _is_marked(func):
            return self.substitute(value)
        given = list(value.args[1].fields)
        operands, kinds = [self.substitute(one) for one in given], {}
        scales = []
        for position in map(int, func.attrs[NARROW]):
            weight = given[position]
            if weight not in self.from_weights or dtype(weight) != "float32" or len(shape(weight)) < 2:
                continue  # vectors are float32 in every layer
            kept = self.weight_type([var.name], KeptWeight(self.main, self.old, weight, 0))
            if kept in ("float32", SCALED_BFLOAT16):
                continue
            if kept.startswith(VALUES_OF):
                kind = kept.removeprefix(VALUES_OF)
                operands[position] = on_weights(
                    self.emit, f"round.{kind}", "float32", shape(weight), operands[position]
                )
                continue
            kinds[position] = kept
            operands[position], scale = self._narrow(operands[position], kept)
            scales += [] if scale is None else [scale]
        kernel = value.args[0]
        if kinds:
            kernel = self.builder.add_func(widening(func, len(given), kinds), f"{kernel.name_hint}_narrow")
        made = value.ty_args[0]
        types = list(made.fields) if isinstance(made, relax.TupleType) else made
        return relax.call_tir(kernel, [*operands, *scales], types)

    def _narrow(self, weight: relax.Var, kind: str) -> tuple[relax.Var, relax.Var | None]:
        """The weight in a type, and the scales of that."""
        if not is_scaled(kind):
            return self.emit(op.astype(weight, kind)), None
        extents = shape(weight)
        rows = self.emit(self.reshape(weight, (extents[0], math.prod(extents[1:]))))
        whole = on_weights(self.emit, f"integers.{kind}", "float32", shape(rows), rows)
        scales = on_weights(self.emit, f"scales.{kind}", "float32", (extents[0], 1), rows)
        narrow = self.emit(op.astype(self.emit(self.reshape(whole, extents)), kind))
        return narrow, self.emit(self.reshape(scales, (extents[0],)))
