"""Keep activations in float16 where layers compute in it."""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules.registry import Machine, candidates
from ..schedules.tiles.tile import VectorUnit
from .attributes import DTYPE, WEIGHTS
from .choose_kernels import layer_spec
from .integers import MOVING
from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .layers import is_layer
from .lower_operators import has_kernel
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

_HALF, _FLOAT = "float16", "float32"
_MOVING = MOVING | {"split"}
_POOLS = ("avg_pool2d", "adaptive_avg_pool2d", "mean")  # whose kernels add up in float32


@module_pass(opt_level=0)
class NarrowActivations:
    """Let layers with weights of float16 take and give activations of float16, on a machine that computes in it.

    y = layer(x, w, b)           h = astype(x, "float16")
    p = max_pool2d(y)      →     g = layer'(h, w, b)       layer' converts h to float32, computes y, and converts it to float16
    z = tanh(p)                  p = max_pool2d(g)
                                 z = tanh(astype(p, "float32"))

    Only the types say so: kernels need not convert what they multiply. Operators that move elements, and those with a kernel for
    float16, take narrow operands as they are. All others compute in float32, between conversions that TVM fuses with them; their
    results are narrow where something narrow went in, unless a single operator that computes in float32 reads them. Inputs,
    outputs, and what is computed of inputs alone keep their types.
    """

    def __init__(self, unit: Machine) -> None:
        self.unit = unit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        if not isinstance(self.unit, VectorUnit) or not self.unit.computes_half:
            return mod
        return _Rewriter(mod, self.unit).rewrite()


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: VectorUnit) -> None:
        super().__init__(mod)
        self.unit = unit
        self.readers, self.from_weights = uses(self.main), weight_vars(self.main)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.narrow: dict[relax.Var, ir.Expr] = {}  # variable of the old main → float16 in the new one
        narrow = {gv: func for gv, func in mod.functions_items() if is_layer(func) and self._computes_half(func)}
        self.layers = {gv: self.builder.add_func(_converting(func), f"{gv.name_hint}_half") for gv, func in narrow.items()}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        if var in self.from_weights:
            return self.substitute(value)
        if isinstance(value, relax.TupleGetItem):
            return self._known(var, self.substitute(value))
        if not isinstance(value, relax.Call):
            return self.substitute(value)
        if value.op in self.layers:
            args = [self.substitute(arg) if arg in self.from_weights else self._narrow_operand(arg) for arg in value.args]
            return self._known(var, relax.Call(self.layers[value.op], args))
        is_narrow = any(operand in self.narrow for operand in _variables(value))
        if is_narrow and operator(value) and self._takes_half(value):
            return self._known(var, relax.Call(value.op, list(map(self._narrow_operand, value.args)), value.attrs, value.ty_args))
        wide = self.substitute(value)
        if is_narrow and _is_float(var) and not self._is_wanted_wide(var):
            return self._known(var, op.astype(self.emit(wide), _HALF))
        return wide

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """`expr` over variables of the new main, of the old types: each reader converts, so that nothing wide lives long."""
        if isinstance(expr, relax.Var) and expr in self.narrow and expr not in self.replaced:
            return self.emit(op.astype(self.narrow[expr], _FLOAT))
        return super().substitute(expr)

    def _known(self, var: relax.Var, new: ir.Expr) -> ir.Expr | None:
        """Bind what takes the place of `var`; returns it if that has the type of `var`."""
        new = self.emit(new)
        if isinstance(new.ty, relax.TensorType) and dtype(new) == _HALF and dtype(var) == _FLOAT:
            self.narrow[var] = new
            return None
        return new

    def _narrow_operand(self, expr: ir.Expr) -> ir.Expr:
        """An operand in float16; shapes and indices as they are."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._narrow_operand(field) for field in expr.fields])
        if not _is_float(expr):
            return self.substitute(expr)
        if isinstance(expr, ir.GenericConst):
            return relax.const(expr.value.numpy().astype(_HALF), _HALF)
        if expr not in self.narrow:
            self.narrow[expr] = self.emit(op.astype(self.substitute(expr), _HALF))
        return self.narrow[expr]

    def _is_wanted_wide(self, var: relax.Var) -> bool:
        """Whether a result is an output, or only one operator reads it, which computes in float32."""
        readers = set(self.readers.get(var, []))
        if var in readers:
            return True
        return len(readers) == 1 and not self._takes_half(self.old.get(next(iter(readers))))

    def _takes_half(self, value: ir.Expr | None) -> bool:
        """Whether a call gives with operands of float16 what it gives with float32, but for a rounding of its result."""
        if not isinstance(value, relax.Call):
            return False
        name = operator(value)
        return value.op in self.layers or name in _MOVING or (name in _POOLS and has_kernel(value, self.unit))

    def _computes_half(self, layer: relax.Function) -> bool:
        """Whether a layer has weights of float16, and some family a kernel for such activations."""
        if DTYPE not in layer.attrs or str(layer.attrs[DTYPE]) != _HALF:
            return False
        return bool(candidates(replace(layer_spec(layer), dtype=_HALF), self.unit))


def _converting(layer: relax.Function) -> relax.Function:
    """The layer function of activations in float16."""
    weights = {int(i) for i in layer.attrs[WEIGHTS]}
    types = [p.ty if i in weights else relax.TensorType(shape(p), _HALF) for i, p in enumerate(layer.params)]
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
            result = builder.emit_output(op.astype(inner[layer.body.body], _HALF))
        builder.emit_func_output(result)
    return builder.get()["layer"]


def _is_float(expr: ir.Expr) -> bool:
    return isinstance(expr.ty, relax.TensorType) and static_tensor(expr) and dtype(expr) == _FLOAT


def _variables(call: relax.Call) -> list[relax.Var]:
    parts = [part for arg in call.args for part in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    return [part for part in parts if isinstance(part, relax.Var)]
