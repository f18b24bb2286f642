"""Compute recurrent layers by kernels of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import tvm
from tvm import ir, relax
from tvm.relax import op

from ..schedules import machines
from ..schedules.decide import decide
from ..schedules.recurrent import kernel, ways
from ..schedules.recurrent.spec import RecurrentSpec
from ..schedules.recurrent.ways import Phase, Recurrent
from ..schedules.registry import Machine
from .attributes import RECURRENCE, VALUES_OF, kernel_attributes
from .ir import bindings, operator, shape, values_of
from .module_pass import module_pass
from .panels import assemble, on_weights
from .rebuild import MainRewriter
from .weights import KeptWeight, WeightType, weight_vars

_FUNCTION = "flexcomp.recurrence"
_RESULTS = ("y", "h", "c")


def recurrence(spec: RecurrentSpec, args: Sequence[ir.Expr]) -> relax.Call:
    """The recurrence as an operator that passes carry on; the result is (y, h), of an LSTM (y, h, c).

    `args` are the products of the inputs float32[rows, columns], R float32[columns, hidden], Rb float32[columns], of an LSTM
    with peepholes P float32[columns], and then lengths, initial h and initial c, as far as given; shapes as in RecurrentSpec.
    """
    types = [relax.TensorType((rows, spec.hidden), "float32") for rows in (spec.steps * spec.batch, spec.batch, spec.batch)]
    count = 3 if spec.cell == "LSTM" else 2
    return op.call_pure_packed(_FUNCTION, *args, ir.StringImm(spec.encode()), ty_args=relax.TupleType(types[:count]))


@module_pass(opt_level=0)
class LowerRecurrence:
    """Call a kernel for every recurrence, with recurrent weights in panels of hidden units.

    s = recurrence(x, r, b)   →   p = concat(take(b), take(r))       float32[blocks, rows, block]
    y = s[0]                      y = call_tir(lstm_0, (x, p))

    Results that nothing reads are not computed. `weight_type` says in which element type recurrent weights are kept, if these
    are weights of the network. The kernel is the fastest by prediction, or by `measured` times.
    """

    def __init__(
        self,
        unit: Machine,
        weight_type: WeightType = lambda names, weight: "float32",
        measured: Callable[[RecurrentSpec], Mapping[str, float]] = lambda spec: {},
    ) -> None:
        self.unit, self.weight_type, self.measured = unit, weight_type, measured

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        found = any(_is_recurrence(binding.value) for binding in bindings(mod["main"]))
        return _Lowerer(mod, self).rewrite() if found else mod


def _is_recurrence(value: ir.Expr) -> bool:
    return operator(value) == "call_pure_packed" and value.args[0].global_symbol == _FUNCTION


class _Lowerer(MainRewriter):
    def __init__(self, mod: tvm.IRModule, given: LowerRecurrence) -> None:
        super().__init__(mod)
        self.unit, self.weight_type, self.measured = machines.vectors(given.unit), given.weight_type, given.measured
        self.from_weights, self.old = weight_vars(self.main), values_of(self.main)
        self.kernels: dict[RecurrentSpec, ir.GlobalVar] = {}
        self.read: dict[ir.Expr, set[int]] = {}  # by variable of a tuple: its elements that are read
        for binding in bindings(self.main):
            if isinstance(binding.value, relax.TupleGetItem):
                self.read.setdefault(binding.value.tuple_value, set()).add(int(binding.value.index))

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        return self._lower(var, value) if _is_recurrence(value) else self.substitute(value)

    def _lower(self, var: relax.Var, call: relax.Call) -> ir.Expr:
        _, inputs, weights, bias, *others, text = call.args
        read = self.read.get(var, set())
        outputs = tuple(name for i, name in enumerate(_RESULTS) if i in read)
        spec = replace(RecurrentSpec.decode(text.value), outputs=outputs)
        kept = "float32"
        if all(one in self.from_weights for one in (weights, bias, *others[: spec.peepholes])):  # all of the panel
            kept = self.weight_type([var.name], KeptWeight(self.main, self.old, weights, 0))
        table = self.substitute(weights)
        if kept.startswith(VALUES_OF):
            table = on_weights(self.emit, f"round.{kept.removeprefix(VALUES_OF)}", "float32", shape(table), table)
        else:
            spec = replace(spec, weights=kept)
        vectors = [self.substitute(others.pop(0))] if spec.peepholes else []
        way, _ = self._chosen(spec)
        panels = [self._pack(spec, phase, table, self.substitute(bias), vectors) for phase in way.phases]
        args = [self.substitute(inputs), *panels, *map(self.substitute, others)]
        types = [field for i, field in enumerate(call.ty_args[0].fields) if i in read]
        result = self.emit(relax.call_tir(self._kernel(spec), args, types if len(types) > 1 else types[0]))
        found = iter([relax.TupleGetItem(result, i) for i in range(len(types))] if len(types) > 1 else [result])
        return relax.Tuple([next(found) if i in read else relax.Tuple([]) for i in range(len(call.ty_args[0].fields))])

    def _pack(
        self, spec: RecurrentSpec, phase: Phase, table: ir.Expr, bias: ir.Expr, vectors: Sequence[ir.Expr]
    ) -> relax.Var:
        panel, emit = phase.panel, self.emit
        order = relax.const(ways.channels(spec, phase))

        def vector(value: ir.Expr) -> relax.Var:
            return emit(op.reshape(emit(op.take(value, order, axis=0)), (panel.blocks, 1, panel.block)))

        taken = emit(op.reshape(emit(op.take(table, order, axis=0)), (panel.blocks, panel.block, spec.hidden)))
        taps = emit(op.permute_dims(taken, (0, 2, 1)))
        if missing := panel.taps - spec.hidden:
            taps = emit(op.concat([taps, emit(op.zeros((panel.blocks, missing, panel.block), "float32"))], axis=1))
        # Where states are packed, the zero point decides in every step what sums begin with: so many sums of weights.
        return assemble(emit, panel, vector(bias), taps, [vector(value) for value in vectors], least=panel.lowest + 1)

    def _chosen(self, spec: RecurrentSpec) -> tuple[Recurrent, float | None]:
        """The way to compute a layer, and its time if that was measured."""
        offers = {str(one): one for one in reversed(ways.candidates(spec, self.unit))}
        default = str(ways.way(spec, self.unit))
        seconds = {name: time for name, time in self.measured(spec).items() if name in offers}
        name = decide(seconds, default)
        return offers[name], seconds.get(name)

    def _kernel(self, spec: RecurrentSpec) -> ir.GlobalVar:
        if spec not in self.kernels:
            name = f"{spec.cell.lower()}_{len(self.kernels)}"
            way, seconds = self._chosen(spec)
            described = kernel_attributes(
                spec.cell.lower(), str(way), str(spec), spec.flops, scratch=way.scratch, work=way.work, seconds=seconds
            )
            func = kernel.kernel(way, self.unit.width).with_attrs({**described, RECURRENCE: spec.encode()})
            self.kernels[spec] = self.builder.add_func(func.with_attr("global_symbol", name), name)
        return self.kernels[spec]
