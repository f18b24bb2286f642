"""From the final Relax module to layers: operators, their order, their bytes.

After the passes `main` holds calls of kernels, views, and tuples of them. Every kernel call becomes a layer;
a view shares its value; weights get their place in the weights file, in the order of use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx

from flexcomp.deferred import Array, identity
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend import node_name, node_of
from flexcomp.passes import attributes as names
from flexcomp.passes.attributes import with_scratch
from flexcomp.passes.ir import bindings, dtype, num_inputs, operator, shape
from flexcomp.passes.share_weights import LEAST_NBYTES
from flexcomp.program import (
    PAGE,
    Arg,
    CountArg,
    FirstArg,
    Layer,
    Port,
    ScratchArg,
    State,
    TensorType,
    ValidArg,
    Value,
    ValueArg,
    WeightArg,
    Weights,
)
from flexcomp.schedules import machines
from flexcomp.schedules.generic import schedule as generic
from flexcomp.schedules.operators import scatter_rows
from flexcomp.schedules.row_bands import RowKernel

from .lowered import Lowered, align
from .states import VIEWS, Exchange, exchanges, looked_at
from .valid_rows import ValidRows

# Elements of a tensor from which on a 32-bit index overflows.
_MOST_ELEMENTS = 2**31


@dataclass(frozen=True)
class _Seen:
    """A tensor in the arena, seen with a type."""

    value: int
    type: TensorType
    offset: int = 0  # bytes from the start of the value


def lower(
    mod: tvm.IRModule, weights: list[Array], target, input_names: tuple[str, ...], output_names: tuple[str, ...],
    output_nodes: Mapping[str, str] | None = None, state: Mapping[str, str] | None = None, valid: ValidRows | None = None,
) -> Lowered:
    """Lower a module whose `main` is (inputs…, weights…) and calls kernels only.

    `target` is a CompileTarget; `output_nodes` are the ONNX nodes that compute outputs, by output. `state` are the
    outputs that become inputs of the next inference, the latter by the former; both have the same types. Kernels are told how
    many rows are `valid`, if inputs are padded. Raises UnsupportedModelError for an operator without a kernel.
    """
    return _Lowering(mod, weights, target, output_nodes or {}, state or {}, valid).run(input_names, output_names)


class _Lowering:
    def __init__(
        self, mod: tvm.IRModule, weights: list[Array], target, output_nodes: Mapping[str, str], state: Mapping[str, str],
        valid: ValidRows | None,
    ) -> None:  # fmt: skip
        self.valid = valid
        self.mod, self.target, self.output_nodes, self.state = mod, target, output_nodes, state
        self.main = mod["main"]
        params = self.main.params[num_inputs(self.main) :]
        self.arrays: dict[relax.Var, Array] = dict(zip(params, weights, strict=True))
        self.seen: dict[relax.Var, object] = {}  # _Seen, or a list of them for a tuple
        self.scheduled: dict[ir.GlobalVar, generic.Scheduled] = {}
        self.output_names: dict[relax.Expr, str] = {}
        self.states: dict[str, _Seen] = {}  # by input
        self.exchanges: dict[relax.Var, Exchange] = {}
        self.stored: dict[tuple, int] = {}  # by content: places of weights that other layers may read, too
        self.result = Lowered()

    def run(self, input_names: tuple[str, ...], output_names: tuple[str, ...]) -> Lowered:
        result = self.result
        params = dict(zip(input_names, self.main.params[: num_inputs(self.main)], strict=True))
        states = self._place_states({name: _type(params[name]) for name in input_names if name in self.state.values()})
        self.states, self.exchanges = states, exchanges(self.mod, input_names, output_names, self.state)
        exchanged = {exchange.state for exchange in self.exchanges.values()}
        for name, param in params.items():
            if name in states:
                self.seen[param] = states[name]
                continue
            seen = self._new_value(name, _type(param))
            self.seen[param] = seen
            if self.valid:
                self.valid.note_input(name, seen.value)
            result.inputs.append(Port(name, seen.value, seen.type))
        body = self.main.body.body
        fields = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        self.output_names = dict(zip(fields, output_names, strict=False))
        for binding in reversed(list(bindings(self.main))):  # views that are outputs
            if binding.var in self.output_names and (seen := looked_at(binding.value)) is not None:
                self.output_names.setdefault(seen, self.output_names[binding.var])
        for binding in bindings(self.main):
            self._binding(binding)
        returned, staying = self._look_up(self.main.body.body), {place.value for place in states.values()}
        for name, seen in zip(output_names, returned if isinstance(returned, list) else [returned], strict=True):
            if self.state.get(name) == name:  # an input that stays
                continue
            if isinstance(seen, Array):
                seen = self._copy(seen) if seen.size else self._empty(seen)
            elif self.state.get(name) in exchanged:
                pass  # there already
            elif not result.layers or seen.value in staying:
                # A network has at least one step, though all outputs are inputs so far; and states are overwritten.
                seen = self._copy(seen)
            if name in self.state:
                given = self.state[name]
                place = states[given]
                result.states.append(State(given, name, place.type, place.value, place.offset, seen.value))
            else:
                result.outputs.append(Port(name, seen.value, seen.type))
        kept = [(name, states[name]) for made, name in self.state.items() if made == name]
        result.states += [State(name, name, place.type, place.value, place.offset, place.value) for name, place in kept]
        if self.valid:
            result.layers = self.valid.told(result.layers, result.kernels)
        result.states.sort(key=lambda state: state.offset)
        return result

    def _place_states(self, types: Mapping[str, TensorType]) -> dict[str, _Seen]:
        """The places of states, by input: one after the other in one value, in whole pages, so that all move as one."""
        places, end = {}, 0
        for name, type_ in types.items():
            places[name] = _Seen(len(self.result.values), type_, end)
            end += align(type_.nbytes)
        if places:
            self.result.values.append(Value("state", -(-end // PAGE) * PAGE))
        return places

    def _new_value(self, name: str, type_: TensorType) -> _Seen:
        self.result.values.append(Value(name, align(max(type_.nbytes, 1))))
        return _Seen(len(self.result.values) - 1, type_)

    def _look_up(self, expr: ir.Expr):
        if isinstance(expr, relax.Var):
            return self.arrays[expr] if expr in self.arrays else self.seen[expr]
        if isinstance(expr, ir.GenericConst):
            return expr.value.numpy()
        if isinstance(expr, relax.Tuple):
            return [self._look_up(part) for part in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._look_up(expr.tuple_value)[expr.index]
        raise AssertionError(f"lowering met {type(expr).__name__}")

    def _binding(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if not isinstance(value, relax.Call):
            found = self._look_up(value)
            (self.arrays if isinstance(found, Array) else self.seen)[binding.var] = found
        elif operator(value) in VIEWS:
            looked_at = self._look_up(value.args[0])
            if isinstance(looked_at, Array):
                self.arrays[binding.var] = looked_at.reshape(shape(binding.var))
            else:
                self.seen[binding.var] = _Seen(looked_at.value, _type(binding.var), looked_at.offset)
        elif isinstance(binding.var.ty, relax.TensorType) and not math.prod(shape(binding.var)):
            type_ = _type(binding.var)  # there is nothing to compute
            self.arrays[binding.var] = np.empty(type_.shape, type_.dtype)
        elif binding.var in self.exchanges:
            self._exchange(binding.var, value)
        elif operator(value) in ("call_tir", "call_tir_inplace"):
            self._kernel_call(binding.var, value)
        else:
            raise UnsupportedModelError(
                f"{self._place(binding.var)}operator {operator(value) or value.op} has no kernel and TVM cannot lower it: "
                "replace it in the model, or compute it outside"
            )

    def _kernel_call(self, var: relax.Var, call: relax.Call) -> None:
        gv = call.args[0]
        func = self.mod[gv]
        attrs = dict(func.attrs.items()) if func.attrs is not None else {}
        computed = [str(one) for one in attrs.get(names.COMPUTES, (gv.name_hint,))]
        op = str(attrs.get(names.OPERATOR, _together(computed)))
        name = f"{op}.{len(self.result.layers)}"
        code, scratch = self._code(var, gv, func, attrs)
        operands, arrays = self._operands(call, attrs)
        args = [*operands, *self._written(var, call, name, float(attrs.get(names.PART, 1.0)))]
        kernel = gv.name_hint
        if self.valid and operator(call) == "call_tir":
            told = self.valid.of_kernel(len(self.result.layers), kernel, code, attrs, args, self.result.values)
            if told is not None:
                (kernel, code), args = told, [*args, ValidArg()]
        self.result.kernels[kernel] = code
        _refuse_oversize(name, [arg.type for arg in args if isinstance(arg, ValueArg | WeightArg)] + list(scratch))
        offsets = [0, *accumulate(align(type_.nbytes) for type_ in scratch)]
        args += [ScratchArg(offset, type_) for offset, type_ in zip(offsets, scratch, strict=False)]
        layer = Layer(
            name=name,
            op=op,
            kernel=kernel,
            implementation=str(attrs.get(names.IMPLEMENTATION, "generic")),
            description=str(attrs.get(names.DESCRIPTION, _listed(computed))),
            args=tuple(args),
            weights=self._store(name, arrays, int(attrs.get(names.SLICES, 1))),
            scratch_nbytes=offsets[-1],
            flops=int(attrs.get(names.FLOPS, 0)),
        )
        self._note_node(var, name)
        rows = machines.decoded_rows(str(attrs[names.ROWS])) if names.ROWS in attrs else None
        self._add(layer, float(attrs.get(names.WORK, 0.0)), rows, attrs.get(names.SECONDS))

    def _code(
        self, var: relax.Var, gv: ir.GlobalVar, func: tirx.PrimFunc, attrs: Mapping[str, Any]
    ) -> tuple[tirx.PrimFunc, tuple[TensorType, ...]]:
        """A kernel ready to be compiled, and the types of its scratch."""
        scratch = tuple(TensorType(tuple(int(e) for e in s), "float32") for s in attrs.get(names.SCRATCH, ()))
        if names.OPERATOR not in attrs:
            if gv not in self.scheduled:
                self.scheduled[gv] = self._schedule(var, gv, func.without_attr(names.COMPUTES))
            scheduled = self.scheduled[gv]
            func = with_scratch(scheduled.func, [t.shape for t in scheduled.scratch])
            scratch = tuple(TensorType(tuple(t.shape), t.dtype) for t in scheduled.scratch)
        if names.EXCHANGE in attrs:
            spec = scatter_rows.ScatterSpec.decode(str(attrs[names.EXCHANGE]))
            func = machines.writing_rows(func, spec, self.target.machine)
        for name in (names.BY_ROWS, names.EXTENT, names.ANEW, names.TOLD):
            func = func.without_attr(name)
        return machines.bound(func, self.target.gpu), scratch

    def _operands(self, call: relax.Call, attrs: Mapping[str, Any]) -> tuple[list[Arg], list[Array]]:
        """The arguments that a kernel reads, and its weights, which lie one after the other."""
        over = {int(position) for position in attrs.get(names.IN_PLACE, ())}
        operands = call.args[1].fields
        args: list[Arg] = []
        arrays: list[Array] = []
        primitives = iter((FirstArg(), CountArg()))
        offset = 0
        for operand in operands[:-1] if operator(call) == "call_tir_inplace" else operands:
            if isinstance(operand, tirx.IntImm):
                args.append(next(primitives))
                continue
            found = self._look_up(operand)
            if isinstance(found, Array):
                args.append(WeightArg(offset, TensorType(found.shape, str(found.dtype))))
                arrays.append(found)
                offset += align(found.nbytes)
            else:
                bounds = attrs.get(names.BOUNDS, ()) if not args else ()
                pairs = tuple((int(low), int(high)) for low, high in bounds)
                args.append(ValueArg(found.value, found.type, offset=found.offset, over=len(args) in over, bounds=pairs))
        return args, arrays

    def _written(self, var: relax.Var, call: relax.Call, name: str, part: float) -> list[Arg]:
        """The results of a kernel, each written to the `part` of its bytes."""
        outputs = call.ty_args[0]
        several = isinstance(outputs, relax.TupleType)
        types = [_type_of(ty) for ty in (outputs.fields if several else [outputs])]
        if operator(call) == "call_tir_inplace":
            # The operand that is written in place comes last: a concatenation of which this kernel writes another part.
            taken = self._look_up(call.args[1].fields[-1])
            written = [_Seen(taken.value, types[0], taken.offset)]
        else:
            labels = [f"{name}:{i}" if len(types) > 1 else name for i in range(len(types))]
            written = [self._new_value(label, type_) for label, type_ in zip(labels, types, strict=True)]
        self.seen[var] = written if several else written[0]
        return [ValueArg(seen.value, seen.type, written=True, offset=seen.offset, part=part) for seen in written]

    def _add(self, layer: Layer, work: float = 0.0, rows: RowKernel | None = None, seconds: Any = None) -> None:
        self.result.layers.append(layer)
        self.result.work.append(work)
        self.result.rows.append(rows)
        self.result.seconds.append(seconds)

    def _exchange(self, var: relax.Var, call: relax.Call) -> None:
        """Rows of a state change places with rows that would be written into a copy."""
        result, known, func = self.result, self.exchanges[var], self.mod[call.args[0]]
        past, *given = call.args[1].fields
        rows, at = (self._copy(seen) if isinstance(seen, Array) else seen for seen in map(self._look_up, given))
        rows = rows if known.owns_rows else self._copy(rows)
        spec = scatter_rows.ScatterSpec.decode(str(func.attrs[names.EXCHANGE]))
        kernel = f"exchange_{len(result.layers)}"
        code = machines.exchange(spec, (shape(past), rows.type.shape), self.target.machine)
        result.kernels[kernel] = machines.bound(code, self.target.gpu).with_attr(names.EXCHANGED, [0, 1])
        state = replace(self.states[known.state], type=_type(var))
        self.seen[var] = state
        layer = Layer(
            name=f"{func.attrs[names.OPERATOR]}.{len(result.layers)}",
            op=str(func.attrs[names.OPERATOR]),
            kernel=kernel,
            implementation="exchange",
            description=str(func.attrs[names.DESCRIPTION]),
            args=(
                ValueArg(state.value, _type(past), offset=state.offset, part=spec.rows / spec.past, exchanged=True),
                ValueArg(rows.value, rows.type, offset=rows.offset, exchanged=True),
                ValueArg(at.value, at.type, offset=at.offset),
            ),
            weights=None,
            scratch_nbytes=0,
            flops=0,
        )
        self._add(layer, work=float(spec.exchange_work))
        self._note_node(var, layer.name)

    def _note_node(self, var: relax.Var, layer: str) -> None:
        """The ONNX node that a layer is for."""
        node = node_name(var.name) or self.output_nodes.get(self.output_names.get(var, ""))
        if node is not None:
            self.result.nodes[layer] = node

    def _empty(self, array: Array) -> _Seen:
        """An output without elements: nothing of a value that is written anyway, for a network has at least one step."""
        written = [arg.value for layer in self.result.layers for arg in layer.args if isinstance(arg, ValueArg) and arg.written]
        value = written[-1] if written else self._copy(np.zeros(1, array.dtype)).value
        return _Seen(value, TensorType(array.shape, str(array.dtype)))

    def _copy(self, source: Array | _Seen) -> _Seen:
        """A layer that copies a weight, for outputs that no input decides, or a tensor."""
        result, is_weight = self.result, isinstance(source, Array)
        type_ = TensorType(source.shape, str(source.dtype)) if is_weight else source.type
        name = f"copy.{len(result.layers)}"
        kernel = f"{'constant_output' if is_weight else 'copy'}_{len(result.layers)}"
        copy = machines.copy(type_.shape, type_.dtype, self.target.machine)
        result.kernels[kernel] = machines.bound(copy, self.target.gpu)
        written = self._new_value(name, type_)
        layer = Layer(
            name=name,
            op="copy",
            kernel=kernel,
            implementation="vector",
            description=f"copy {'×'.join(map(str, type_.shape))}",
            args=(
                WeightArg(0, type_) if is_weight else ValueArg(source.value, type_, offset=source.offset),
                ValueArg(written.value, type_, written=True),
            ),
            weights=self._store(name, [source] if is_weight else [], 1),
            scratch_nbytes=0,
            flops=0,
        )
        self._add(layer)
        return written

    def _schedule(self, var: relax.Var, gv: ir.GlobalVar, func: tirx.PrimFunc) -> generic.Scheduled:
        try:
            return machines.scheduled(func, self.target, self.target.gpu)
        except generic.UnsupportedKernelError as error:
            raise UnsupportedModelError(
                f"{self._place(var)}operator {gv.name_hint}: {error}: replace it in the model, or compute it outside"
            ) from error

    def _place(self, var: relax.Var) -> str:
        """Where in an ONNX model a variable comes from, at the start of an error message."""
        node = node_of(var.name)
        if node is None and var in self.output_names:
            return f"output {self.output_names[var]!r}: "
        return f"{node}: " if node else ""

    def _store(self, name: str, arrays: list[Array], slices: int) -> Weights | None:
        if not arrays:
            return None
        assert slices == 1 or len(arrays) == 1, f"{name}: a sliced layer has one panel"
        if sum(array.nbytes for array in arrays) < LEAST_NBYTES:
            start = self._store_anew(name, arrays, slices)
        else:
            key = (slices, *map(identity, arrays))
            start = self.stored[key] if key in self.stored else self._store_anew(name, arrays, slices)
            self.stored[key] = start
        return Weights(start, slices, sum(align(array.nbytes) for array in arrays) // slices)

    def _store_anew(self, name: str, arrays: list[Array], slices: int) -> int:
        """Their beginning in the file."""
        result, start = self.result, self.result.weights_nbytes
        for index, array in enumerate(arrays):
            label = f"{name}.panel" if slices > 1 else f"{name}.{index}"
            result.weights.append((label, array, result.weights_nbytes))
            result.weights_nbytes += align(array.nbytes)
        return start


def _together(operators: Sequence[str]) -> str:
    """A short name for operators in one kernel: exp, exp+add, exp+4."""
    return "+".join(operators) if len(operators) <= 2 else f"{operators[0]}+{len(operators) - 1}"


def _listed(operators: Sequence[str]) -> str:
    """All of them, those in a row once: exp, add ×2."""
    runs = ((name, sum(1 for _ in run)) for name, run in groupby(operators))
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in runs)


def _refuse_oversize(name: str, types: list[TensorType]) -> None:
    """Kernels count elements in 32 bits."""
    for type_ in types:
        if math.prod(type_.shape) >= _MOST_ELEMENTS:
            raise UnsupportedModelError(
                f"{name} holds a tensor of {'×'.join(map(str, type_.shape))} = {math.prod(type_.shape):,} elements; "
                f"kernels take fewer than {_MOST_ELEMENTS:,}: build the network for a smaller input"
            )


def _type(var: relax.Var) -> TensorType:
    return TensorType(shape(var), dtype(var))


def _type_of(ty: relax.TensorType) -> TensorType:
    return TensorType(tuple(int(extent) for extent in ty.shape.values), str(ty.dtype))
