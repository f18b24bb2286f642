"""Let layers write their part of a concatenation in place."""

from __future__ import annotations

import tvm
from tvm import ir, relax

from ..schedules.operators.concat import ConcatSpec
from ..schedules.tiles.place import Place
from ..schedules.tiles.spec import ARITHMETIC, ConvSpec
from .attributes import PLACE, encode_place
from .choose_kernels import layer_spec
from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .layers import is_layer
from .module_pass import module_pass
from .rebuild import MainRewriter


@module_pass(opt_level=0)
class PlaceParts:
    """Mark layers whose results are needed only as parts of a concatenation with their places in it.

    a = layer_a(x)                      a = layer_a'(x)     layer_a': flexcomp.place = channels [0, 64) of 128
    b = layer_b(x)             →        b = layer_b'(x)     layer_b': flexcomp.place = channels [64, 128) of 128
    y = concat(a, b, axis=3)            y = concat(a, b, axis=3)

    Only reshapes may lie between a layer and the concatenation, and nothing else may read the layer's result. The layer's
    pixels must be the same distance apart in the concatenation, and its epilogue must read no tensor.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        places = _places(mod)
        return _Rewriter(mod, places).rewrite() if places else mod


def _places(mod: tvm.IRModule) -> dict[relax.Var, tuple[int, Place]]:
    """For each layer's result that is a part: the number of its concatenation, and its place there."""
    main = mod["main"]
    values = {binding.var: binding.value for binding in bindings(main)}
    readers = uses(main)
    result: dict[relax.Var, tuple[int, Place]] = {}
    for number, (whole, call) in enumerate(values.items()):
        if operator(call) != "concat" or not static_tensor(whole) or dtype(whole) not in ARITHMETIC:
            continue
        fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else ()
        if not fields or not all(map(static_tensor, fields)):
            continue
        spec = ConcatSpec(tuple(map(shape, fields)), int(call.attrs.axis) % len(shape(whole)))
        for part, field in enumerate(fields):
            layer = _layer_behind(field, values, readers) if list(fields).count(field) == 1 else None
            place = _place(mod, values[layer], spec, part) if layer is not None else None
            if place is not None:
                result[layer] = (number, place)
    return result


def _place(mod: tvm.IRModule, call: ir.Expr, spec: ConcatSpec, part: int) -> Place | None:
    """Where a layer can write a part; None if there is no layer, or no way."""
    if not isinstance(call, relax.Call) or not isinstance(call.op, ir.GlobalVar) or not is_layer(mod[call.op]):
        return None
    computed = layer_spec(mod[call.op])
    if not isinstance(computed, ConvSpec) or computed.tensors:
        return None
    return spec.place_of(part, computed.out_channels)


def _layer_behind(part: ir.Expr, values: dict, readers: dict) -> relax.Var | None:
    """The variable from which only reshapes lead to `part`, if neither has another reader."""
    while isinstance(part, relax.Var) and len(readers[part]) == 1:
        value = values.get(part)
        if operator(value) != "reshape":
            return part if value is not None else None
        part = value.args[0]
    return None


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, places: dict[relax.Var, tuple[int, Place]]) -> None:
        super().__init__(mod)
        self.places = places

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        new = self.substitute(value)
        if var not in self.places:
            return new
        layer = self.mod[value.op].with_attr(PLACE, encode_place(*self.places[var]))
        number = list(self.places).index(var)
        return relax.Call(self.builder.add_func(layer, f"{value.op.name_hint}_part_{number}"), new.args)
