"""Keep activations in float16 or bfloat16 where layers compute in it."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes  # noqa: F401, NumPy's bfloat16
import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules.conv import PARTIAL_TERMS
from ..schedules.registry import Machine, candidates
from ..schedules.tiles.tile import VectorUnit
from .attributes import DTYPE, VALUES_OF, WEIGHTS
from .choose_kernels import layer_spec
from .integers import MOVING
from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .layers import is_layer
from .lower_operators import has_kernel
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

_FLOAT = "float32"
_MOVING = MOVING | {"split"}
_POOLS = ("avg_pool2d", "adaptive_avg_pool2d", "mean")  # whose kernels add up in float32


@module_pass(opt_level=0)
class NarrowActivations:
    """Let layers with weights of 16 bits take and give activations of these, on a machine that computes in such a type.

    y = layer(x, w, b)           h = astype(x, "float16")                     or bfloat16
    p = max_pool2d(y)      →     g = layer'(h, w, b)       layer' converts h to float32, computes y, and converts it to float16
    z = tanh(p)                  p = max_pool2d(g)
                                 z = tanh(astype(p, "float32"))

    Only the types say so: kernels need not convert what they multiply. Operators that move elements, and those with a kernel for
    that type, take narrow operands as they are. All others compute in float32, between conversions that TVM fuses with them;
    their results are narrow where something narrow went in, unless a single operator that computes in float32 reads them. Inputs,
    outputs, results of layers whose weights are kept in float32, and what is computed of inputs alone keep their types.

    With `rounded` everything stays float32, and what would be narrow is rounded, so that any machine errs as `unit` would. Layers
    are those whose weights have the values of that type. Sums in float16 are rounded once, and the error is multiplied: of n
    products added up one after the other, sqrt(n / 2) is the standard deviation in that of one rounding, and among the normal
    errors of many sums some are twice as far out, in their deviations, as the uniform error of one rounding ever is.
    """

    def __init__(self, unit: Machine, *, rounded: bool = False) -> None:
        self.unit, self.rounded = unit, rounded

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        if not isinstance(self.unit, VectorUnit) or not self.unit.half:
            return mod
        return _Rewriter(mod, self.unit, self.rounded).rewrite()


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: VectorUnit, rounded: bool) -> None:
        super().__init__(mod)
        self.unit, self.rounded, self.half = unit, rounded, unit.half
        self.readers, self.from_weights = uses(self.main), weight_vars(self.main)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.narrow: dict[relax.Var, ir.Expr] = {}  # variable of the old main → narrow, or rounded, in the new one
        self.narrow_tuples: set[ir.Expr] = set()  # variables of the old main
        narrow = {gv: func for gv, func in mod.functions_items() if is_layer(func) and self._computes_half(func)}
        self.wide = {gv for gv, func in mod.functions_items() if is_layer(func) and self._is_kept_wide(func)}
        self.layers = {
            gv: gv if rounded else self.builder.add_func(_converting(func, self.half), f"{gv.name_hint}_half")
            for gv, func in narrow.items()
        }

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        if var in self.from_weights:
            return self.substitute(value)
        if isinstance(value, relax.TupleGetItem):
            new = self.substitute(value)
            return self._known(var, new) if value.tuple_value in self.narrow_tuples else new
        if not isinstance(value, relax.Call):
            return self.substitute(value)
        if value.op in self.layers:
            args = [self.substitute(arg) if arg in self.from_weights else self._narrow_operand(arg) for arg in value.args]
            call = relax.Call(self.layers[value.op], args)
            return self._known(var, self._summed(call, self.mod[value.op]) if self.rounded else call)
        is_narrow = any(operand in self.narrow for operand in _variables(value))
        if is_narrow and operator(value) and self._takes_half(value):
            new = relax.Call(value.op, list(map(self._narrow_operand, value.args)), value.attrs, value.ty_args)
            return self._known(var, self._half(new) if self.rounded and operator(value) not in _MOVING else new)
        wide = self.substitute(value)
        if is_narrow and _is_float(var) and value.op not in self.wide and not self._is_wanted_wide(var):
            return self._known(var, self._half(wide))
        return wide

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """`expr` over variables of the new main, of the old types: each reader converts, so that nothing wide lives long."""
        if isinstance(expr, relax.Var) and expr in self.narrow and expr not in self.replaced:
            return self.narrow[expr] if self.rounded else self.emit(op.astype(self.narrow[expr], _FLOAT))
        return super().substitute(expr)

    def _known(self, var: relax.Var, new: ir.Expr) -> ir.Expr | None:
        """Bind what takes the place of `var`; returns it if that has the type of `var`."""
        new = self.emit(new)
        if not isinstance(new.ty, relax.TensorType):
            self.narrow_tuples.add(var)
        elif dtype(var) == _FLOAT:
            self.narrow[var] = new
            return None
        return new

    def _half(self, expr: ir.Expr) -> ir.Expr:
        """A tensor of float32 in 16 bits, or rounded to these."""
        narrow = op.astype(self.emit(expr), self.half)
        return op.astype(self.emit(narrow), _FLOAT) if self.rounded else narrow

    def _summed(self, call: relax.Call, layer: relax.Function) -> ir.Expr:
        """A layer's result, as far from that in float32 as sums in its type may be."""
        exact = self.emit(call)
        once = self.emit(self._half(exact))
        if self.half != "float16":  # others are added up in float32
            return once
        times = 2 * math.sqrt(min(layer_spec(layer).taps, PARTIAL_TERMS[self.half]) / 2)
        apart = self.emit(op.multiply(self.emit(op.subtract(once, exact)), relax.const(times - 1, _FLOAT)))
        return op.add(once, apart)

    def _narrow_operand(self, expr: ir.Expr) -> ir.Expr:
        """An operand in 16 bits; shapes and indices as they are."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._narrow_operand(field) for field in expr.fields])
        if not _is_float(expr):
            return self.substitute(expr)
        if isinstance(expr, ir.GenericConst):
            values = expr.value.numpy().astype(np.dtype(self.half))
            return relax.const(values.astype(_FLOAT), _FLOAT) if self.rounded else relax.const(values, self.half)
        if expr not in self.narrow:
            self.narrow[expr] = self.emit(self._half(self.substitute(expr)))
        return self.narrow[expr]

    def _is_wanted_wide(self, var: relax.Var) -> bool:
        """Whether a result is an output, or only one operator reads it, which computes in float32."""
        readers = set(self.readers.get(var, []))
        if var in readers:
            return True
        return len(readers) == 1 and not self._takes_half(self.old.get(next(iter(readers))))

    def _takes_half(self, value: ir.Expr | None) -> bool:
        """Whether a call gives with operands of 16 bits what it gives with float32, but for a rounding of its result."""
        if not isinstance(value, relax.Call):
            return False
        name = operator(value)
        return value.op in self.layers or name in _MOVING or (name in _POOLS and has_kernel(value, self.unit))

    def _computes_half(self, layer: relax.Function) -> bool:
        """Whether a layer has weights of that type, and some family a kernel for such activations."""
        if not self._has_half_weights(layer):
            return False
        return bool(candidates(replace(layer_spec(layer), dtype=self.half, weights=self.half), self.unit))

    def _is_kept_wide(self, layer: relax.Function) -> bool:
        """Whether a layer has weights of another type, by wish or for their range: its results may need that type, too."""
        return 1 in map(int, layer.attrs[WEIGHTS]) and not self._has_half_weights(layer)

    def _has_half_weights(self, layer: relax.Function) -> bool:
        return str(layer.attrs.get(DTYPE, _FLOAT)) == (VALUES_OF + self.half if self.rounded else self.half)


def _converting(layer: relax.Function, half: str) -> relax.Function:
    """The layer function of activations in a type of 16 bits."""
    weights = {int(i) for i in layer.attrs[WEIGHTS]}
    types = [p.ty if i in weights else relax.TensorType(shape(p), half) for i, p in enumerate(layer.params)]
    params = [relax.Var(param.name, ty) for param, ty in zip(layer.params, types, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("layer", params, private=True, attrs=dict(layer.attrs.items())):
        with builder.dataflow():
            inner: dict[ir.Expr, ir.Expr] = {}
            for i, (old, new) in enumerate(zip(layer.params, params, strict=True)):
                inner[old] = new if i in weights else builder.emit(op.astype(new, _FLOAT))
            for binding in bindings(layer):
                call = binding.value
                args = [inner.get(arg, arg) if isinstance(arg, relax.Var) else arg for arg in call.args]
                inner[binding.var] = builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
            result = builder.emit_output(op.astype(inner[layer.body.body], half))
        builder.emit_func_output(result)
    return builder.get()["layer"]


def _is_float(expr: ir.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and static_tensor(expr) and dtype(expr) == _FLOAT


def _variables(call: relax.Call) -> list[relax.Var]:
    parts = [part for arg in call.args for part in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    return [part for part in parts if isinstance(part, relax.Var)]
