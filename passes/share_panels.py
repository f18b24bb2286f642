"""Let layers that differ in nothing but their vectors take the same panel of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax

from .attributes import DTYPE, INTEGERS, LAYER, VECTORS, WEIGHTS
from .ir import bindings, shape
from .layers import LayerReading, is_layer, read
from .module_pass import module_pass
from .rebuild import MainRewriter
from .share_weights import LEAST_NBYTES
from .weights import weights_first

# Rows of vectors for other readers that are loaded with a reader's own weights, as a part of the rows of weights.
_WORTHWHILE = 1 / 8


@module_pass(opt_level=0)
class SharePanels:
    """Put the channel vectors of all layers that have the same weights into one panel.

    y = layer_a(x, w, b)              y = layer_a(x, w, b, c)     layer_a, layer_b: flexcomp.vectors = b, c
    z = layer_b(y, w, c)        →     z = layer_b(y, w, b, c)

    A panel holds a layer's weights with its bias and the channel vectors of its epilogue. Where one weight has readers with
    different ones, such as a head over the levels of a pyramid with a batch norm for each level, each layer takes the vectors
    of all readers, and reads its own. Biases that differ are added by the epilogue. Weights of few rows are left alone.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        groups = [group for group in _readers(mod).values() if _pays(group)]
        return _Rewriter(weights_first(mod), groups).rewrite() if groups else mod


@dataclass(frozen=True)
class _Reader:
    """A call of a layer function."""

    var: relax.Var
    call: relax.Call
    layer: relax.Function
    reading: LayerReading

    @property
    def bias(self) -> relax.Var | None:
        return None if self.reading.bias is None else self.call.args[self.reading.bias]

    @property
    def own(self) -> list[relax.Var]:
        """Its channel vectors."""
        return [self.call.args[i] for i in self.reading.vectors]


def _readers(mod: tvm.IRModule) -> dict[tuple, list[_Reader]]:
    """The layers that could take one panel, in lists."""
    result: dict[tuple, list[_Reader]] = {}
    for binding in bindings(mod["main"]):
        call = binding.value
        if not isinstance(call, relax.Call) or not isinstance(call.op, ir.GlobalVar) or not is_layer(layer := mod[call.op]):
            continue
        reading = read(layer, tuple(int(i) for i in layer.attrs[WEIGHTS]))
        if reading.weight is None:
            continue
        weight = call.args[reading.weight]
        if 4 * math.prod(shape(weight)) >= LEAST_NBYTES:
            kind = [layer.attrs[LAYER], reading.spec.groups, *(layer.attrs.get(name) for name in (DTYPE, INTEGERS))]
            result.setdefault((weight, *map(str, kind)), []).append(_Reader(binding.var, call, layer, reading))
    return result


def _pays(group: Sequence[_Reader]) -> bool:
    if len({(one.bias, *one.own) for one in group}) == 1:
        return False
    more = len(_all_vectors(group)) - min(len(one.own) for one in group)
    return more <= _WORTHWHILE * group[0].reading.spec.taps


def _all_vectors(group: Sequence[_Reader]) -> list[relax.Var]:
    """The vectors of all readers; biases, too, if different."""
    biases = [one.bias for one in group] if len({one.bias for one in group}) > 1 else []
    vectors = [*(bias for bias in biases if bias is not None), *(vector for one in group for vector in one.own)]
    return list(dict.fromkeys(vectors))


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, groups: Sequence[Sequence[_Reader]]) -> None:
        super().__init__(mod)
        self.readers = {one.var: (one, _all_vectors(group)) for group in groups for one in group}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        if var not in self.readers:
            return self.substitute(value)
        reader, vectors = self.readers[var]
        layer = relax.utils.copy_with_new_vars(reader.layer)
        params = dict(zip(value.args, layer.params, strict=True))
        others = [arg for arg in value.args if arg not in vectors]
        args = [*others, *vectors]  # in one order for all readers
        params = [params[arg] if arg in params else relax.Var(arg.name, arg.ty) for arg in args]
        weights = {value.args[int(i)] for i in layer.attrs[WEIGHTS]} | {*vectors}
        attrs = {
            **dict(layer.attrs.items()),
            WEIGHTS: [i for i, arg in enumerate(args) if arg in weights],
            VECTORS: [*range(len(others), len(args))],
        }
        made = relax.Function(params, layer.body, layer.ret_ty, layer.is_pure).with_attrs(attrs)
        gv = self.builder.add_func(made, f"shared_{attrs[LAYER]}")
        return relax.Call(gv, [self.substitute(arg) for arg in args])
