"""Let layers with weights in blocks multiply activations in 8 bits."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules import machines
from ..schedules.operators import quantise_rows
from ..schedules.operators.quantise_rows import QuantiseSpec
from ..schedules.registry import Machine
from ..schedules.tiles.blocks import blocks_of
from ..schedules.tiles.byte_rows import ByteRows
from .attributes import DTYPE, WEIGHTS, kernel_attributes
from .ir import bindings, shape
from .layers import FROM_BYTES, is_layer, read
from .module_pass import module_pass
from .rebuild import MainRewriter

QUANTISE = "quantise"


@module_pass(opt_level=0)
class QuantiseActivations:
    """Give layers rows of 8 bits that have weights in blocks whose taps lie together.

    y = layer(x, w)          q = call_tir(quantise_rows_0, x)       int8[rows, bytes], of schedules/tiles/byte_rows.py
    z = layer_1(x, v)   →    y = layer'(q, w)                       layer' converts q to float32, and computes y
                             z = layer_1'(q, v)

    As with NarrowActivations, only the types say so: kernels multiply rows of 8 bits as they are.
    """

    def __init__(self, unit: Machine) -> None:
        self.unit = unit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        found = any(is_layer(func) and _kept_together(func) for func in mod.functions.values())
        return _Rewriter(mod, self.unit).rewrite() if found else mod


def _kept_together(layer: relax.Function) -> str:
    """The type of a layer's weights, if their taps lie together; empty for others."""
    kept = str(layer.attrs.get(DTYPE, ""))
    form = blocks_of(kept)
    return kept if form and form.together > 1 else ""


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: Machine) -> None:
        super().__init__(mod)
        self.unit = unit
        self.kernels: dict[QuantiseSpec, ir.GlobalVar] = {}
        self.rows: dict[tuple[ir.Expr, QuantiseSpec], relax.Var] = {}
        self.layers: dict[ir.GlobalVar, ir.GlobalVar] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        layer = self.mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) else None
        kept = _kept_together(layer) if layer is not None and is_layer(layer) else ""
        if not kept:
            return self.substitute(value)
        (data,) = read(layer, tuple(map(int, layer.attrs[WEIGHTS]))).data
        x = value.args[data]
        spec = QuantiseSpec(math.prod(shape(x)[:-1]), shape(x)[-1], blocks_of(kept).size)
        if value.op not in self.layers:
            made = _of_bytes(layer, data, spec)
            self.layers[value.op] = self.builder.add_func(made, f"{value.op.name_hint}_bytes")
        changed = self.layers[value.op]
        args = [self._quantised(x, spec) if i == data else self.substitute(arg) for i, arg in enumerate(value.args)]
        if _reads_again(layer, data):
            args.append(self.substitute(x))
        return relax.Call(changed, args)

    def _quantised(self, x: ir.Expr, spec: QuantiseSpec) -> relax.Var:
        if (x, spec) not in self.rows:
            flat = self.emit(self.reshape(self.substitute(x), (spec.rows, spec.inputs)))
            type_ = relax.TensorType((spec.rows, spec.layout.nbytes), "int8")
            self.rows[x, spec] = self.emit(relax.call_tir(self._kernel(spec), [flat], type_))
        return self.rows[x, spec]

    def _kernel(self, spec: QuantiseSpec) -> ir.GlobalVar:
        if spec not in self.kernels:
            name = f"quantise_rows_{len(self.kernels)}"
            described = kernel_attributes(QUANTISE, "rows in 8 bits", str(spec), spec.flops)
            func = machines.operator(spec, quantise_rows.kernel, self.unit).with_attrs(described)
            self.kernels[spec] = self.builder.add_func(func.with_attr("global_symbol", name), name)
        return self.kernels[spec]


def _reads_again(layer: relax.Function, data: int) -> bool:
    """Whether the epilogue reads what the anchor multiplies, too."""
    _, *rest = bindings(layer)
    return any(arg.same_as(layer.params[data]) for binding in rest for arg in binding.value.args)


def _of_bytes(layer: relax.Function, data: int, spec: QuantiseSpec) -> relax.Function:
    """The layer function of rows in 8 bits; its epilogue reads the numbers of a parameter of its own."""
    old = layer.params[data]
    layout = ByteRows(spec.inputs, spec.size)
    rows = relax.Var(old.name, relax.TensorType((spec.rows, layout.nbytes), "int8"))
    params = [rows if i == data else relax.Var(one.name, one.ty) for i, one in enumerate(layer.params)]
    inner: dict[ir.Expr, ir.Expr] = dict(zip(layer.params, params, strict=True))
    if _reads_again(layer, data):
        params.append(relax.Var(f"p{len(params)}", old.ty))
        inner[old] = params[-1]
    builder = relax.BlockBuilder()
    with builder.function("layer", params, private=True, attrs=dict(layer.attrs.items())):
        with builder.dataflow():
            wide = builder.emit(op.call_pure_packed(FROM_BYTES, rows, ty_args=old.ty))
            for number, binding in enumerate(bindings(layer)):
                call = binding.value
                args = [wide if not number and arg.same_as(old) else inner.get(arg, arg) for arg in call.args]
                made = relax.Call(call.op, args, call.attrs, call.ty_args)
                is_result = binding.var.same_as(layer.body.body)
                inner[binding.var] = builder.emit_output(made) if is_result else builder.emit(made)
        builder.emit_func_output(inner[layer.body.body])
    return builder.get()["layer"]
