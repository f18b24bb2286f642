"""Multiply the integers of dynamically quantised operands with weights, before their zero point and scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules import machines
from ..schedules.registry import Machine
from ..schedules.tiles.dot import LEAST_LANES
from ..schedules.tiles.tile import VectorUnit
from .integers import integer_ranges
from .ir import dtype, operator, shape, values_of
from .module_pass import module_pass
from .panels import on_weights
from .rebuild import MainRewriter
from .weights import KeptWeight, WeightType, weight_vars

_MOST = 255  # by which integers of 8 bits differ


@module_pass(opt_level=0)
class MultiplyIntegers:
    """Take a zero point and a scale that are computed out of a product with weights of 8 bits.

    y = matmul((q - zero) · scale, i · s)   →   y = (matmul(q, i) - zero · sum(i)) · (scale · s)

    Integers q and i have 8 bits, s is the scale of each channel of weights. Kernels of integer arithmetic take q as it is, and
    sums are exact up to 2^24. Only for processors with such kernels.
    """

    def __init__(self, unit: Machine, weight_type: WeightType = lambda names, weight: "float32") -> None:
        self.unit, self.weight_type = machines.vectors(unit), weight_type

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        if not self.unit.dots:
            return mod
        rewriter = _Rewriter(mod, self.unit, self.weight_type)
        return rewriter.rewrite() if rewriter.found else mod


@dataclass(frozen=True)
class _Integers:
    """(integers - zero) · scale, in which the numbers are float32 of one element."""

    integers: relax.Var
    zero: relax.Var
    scale: relax.Var | None


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: VectorUnit, weight_type: WeightType) -> None:
        super().__init__(mod)
        self.unit, self.weight_type = unit, weight_type
        self.old = values_of(self.main)
        self.from_weights, self.ranges = weight_vars(self.main), integer_ranges(self.main)
        self.found = {var: found for var, value in self.old.items() if (found := self._integers(var, value)) is not None}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        found = self.found.get(var)
        if found is None:
            return self.substitute(value)
        weight = self.substitute(value.args[1])
        integers, zero = (self.substitute(one) for one in (found.integers, found.zero))
        rows = self.emit(self.reshape(integers, shape(value.args[0])))
        depth, channels = shape(weight)
        by_channel = self.emit(op.permute_dims(weight, (1, 0)))
        whole = on_weights(self.emit, "integers.int8", "float32", (channels, depth), by_channel)
        scales = on_weights(self.emit, "scales.int8", "float32", (channels, 1), by_channel)
        sums = self.emit(op.matmul(whole, relax.const(np.ones((depth, 1), "float32"))))
        products = self.emit(op.matmul(rows, self.emit(op.permute_dims(whole, (1, 0)))))
        sums, factors = (self.emit(op.reshape(one, (channels,))) for one in (sums, scales))
        off = self.emit(op.multiply(sums, self.emit(self.reshape(zero, ()))))
        if found.scale is not None:
            factors = self.emit(op.multiply(factors, self.emit(self.reshape(self.substitute(found.scale), ()))))
        return op.multiply(self.emit(op.subtract(products, off)), factors)

    def _integers(self, var: relax.Var, value: ir.Expr) -> _Integers | None:
        if operator(value) != "matmul":
            return None
        rows, weight = value.args
        if weight not in self.from_weights or len(shape(weight)) != 2 or len(shape(rows)) < 2 or dtype(var) != "float32":
            return None
        if shape(weight)[1] < max(LEAST_LANES, self.unit.width // 2):
            return None
        rows, made = self._made(rows)
        scale = None
        if operator(made) == "multiply" and self._is_number(made.args[1]):
            scale = made.args[1]
            rows, made = self._made(made.args[0])
        if operator(made) != "subtract" or not self._is_number(made.args[1]):
            return None
        integers, zero = made.args
        low, high = self.ranges.get(integers, (0.0, np.inf))
        if not low <= 0 <= high <= low + _MOST:
            return None
        if self.weight_type([var.name], KeptWeight(self.main, self.old, weight, 1, asked_again=True)) != "int8":
            return None
        return _Integers(integers, zero, scale)

    def _made(self, var: ir.Expr) -> tuple[ir.Expr, ir.Expr | None]:
        """What a variable is bound to, before it was reshaped."""
        made = self.old.get(var)
        while operator(made) == "reshape":
            var = made.args[0]
            made = self.old.get(var)
        return var, made

    def _is_number(self, expr: ir.Expr) -> bool:
        """Whether it is one number that inputs decide."""
        single = isinstance(expr, relax.Var) and expr not in self.from_weights and set(shape(expr)) <= {1}
        return single and dtype(expr) == "float32"
