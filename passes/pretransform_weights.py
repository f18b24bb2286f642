"""Replace layer functions by kernels, and their weights by packed panels."""

from __future__ import annotations

import math

import tvm
from tvm import relax

from ..schedules import machines
from ..schedules.operators import concat, embedding
from ..schedules.operators.concat import ConcatSpec
from ..schedules.operators.embedding import EmbeddingSpec
from ..schedules.preparation import WeightForm
from ..schedules.registry import Candidate, Machine, candidates, family
from ..schedules.tiles.place import Place
from ..schedules.tiles.spec import ConvSpec, MatmulSpec
from . import attributes as names
from .choose_kernels import chosen
from .ir import bindings, dtype, operator, shape, with_functions
from .layers import is_layer, operator_of, read
from .module_pass import module_pass
from .packing import pack
from .tied_tables import Tied, embedding_of, tied_tables
from .weights import weights_first


@module_pass(opt_level=0)
class PretransformWeights:
    """Call the chosen kernels directly, with weights packed by operators on the weight side.

    y = layer(x, w, b, r)   →   p = concat(b packed, w packed, …)            float32[blocks, rows, block]
                                y = call_tir(kernel, (x, r, p, 0, blocks))

    A layer with a place in a concatenation writes into that tensor: the first part makes the tensor, the others take and
    return the tensor (call_tir_inplace), and the rest of the concatenation copies parts that no layer writes.

    Weights of a Winograd kernel are transformed before they are packed: G w Gᵀ in float64, rounded once. Weights of a
    fast matrix product are combined block by block, likewise.

    An embedding whose table is the weights of a dense layer takes the layer's panel.

    Where inputs are `padded`, kernels that can be told how many rows are valid come with that variant.

    The rest of the weight side depends on weights only; LiftTransformParams moves the rest to build time.
    """

    def __init__(self, unit: Machine, padded: bool = False) -> None:
        self.unit, self.padded = unit, padded
        self.built: dict[tuple, tvm.tirx.PrimFunc] = {}  # by spec and candidate: kernels of modules that were seen before

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Mutator(mod, self.unit, self.built, self.padded).transform()


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, unit: Machine, built: dict[tuple, tvm.tirx.PrimFunc], padded: bool) -> None:
        ties = tied_tables(mod, unit)
        mod = weights_first(mod) if ties else mod
        super().__init__(mod)
        self.mod, self.unit, self.built, self.ties, self.padded = mod, unit, built, ties, padded
        self.kernels: dict[tuple, tvm.ir.GlobalVar] = {}
        self.parts = _parts(mod)
        self.begun: dict[int, relax.Var] = {}  # by number of a concatenation: the tensor, as far as written
        self.name = ""  # of the visited binding; bindings in its place have the same name

    def transform(self) -> tvm.IRModule:
        gv = self.mod.get_global_var("main")
        self.builder_.update_func(gv, self.visit_expr(self.mod["main"]))
        result = self.builder_.get()
        kept = {gv: func for gv, func in result.functions_items() if not is_layer(func)}
        return with_functions(self.mod, kept)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.name = binding.var.name
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if operator(call) == "concat" and isinstance(call.args[0], relax.Tuple):
            numbers = [self.parts.get(field) for field in call.args[0].fields]
            if any(number is not None for number in numbers):
                return self._complete(call, numbers)
        if operator(call) == "reshape" and call.args[0] in self.parts:
            return self.visit_expr(call.args[0])
        if (spec := embedding_of(self.mod, call)) is not None and (tied := self.ties.get(call.args[1].fields[1])) is not None:
            return self._look_up(call, tied.spec(spec), tied)
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.GlobalVar):
            return call
        layer = self.mod[call.op]
        if not is_layer(layer):
            return call
        reading = read(layer, tuple(int(i) for i in layer.attrs[names.WEIGHTS]))
        candidate = chosen(layer, self.unit)
        kernel = self._kernel(layer, reading.spec, candidate)
        args = [self._view(call.args[i], s) for i, s in zip(reading.data, data_shapes(reading.spec), strict=True)]
        out = out_shape(reading.spec)
        args += [self._view(call.args[i], out) for i in reading.tensors]
        if candidate.panel is not None:
            panel = pack(self.builder_.emit, call.args, layer, reading, candidate, self.builder_.lookup_binding)
            args += [panel, relax.prim_value(0), relax.prim_value(candidate.panel.blocks)]
        if names.PLACE in layer.attrs:
            return self._write_part(*names.decode_place(layer.attrs[names.PLACE]), kernel, args, reading.spec.dtype)
        result = relax.call_tir(kernel, args, relax.TensorType(out, reading.spec.dtype))
        return self._view(self._emit(result), shape(call))

    def _look_up(self, call: relax.Call, spec: EmbeddingSpec, tied: Tied) -> relax.Call:
        """An embedding of rows that are channels of a layer's panel."""
        key = (spec,)
        if key not in self.kernels:
            described = names.kernel_attributes("take", "embedding", str(spec), 0, spec.blocks)
            func = machines.operator(spec, embedding.kernel, self.unit).with_attrs({**described, names.FETCH: spec.encode()})
            name = f"embedding_tied_{len(self.kernels)}"
            self.kernels[key] = self.builder_.add_func(func.with_attr("global_symbol", name), name)
        weights = {tied.reading.weight, tied.reading.bias, *tied.reading.vectors}
        args = [self.visit_expr(arg) if i in weights else arg for i, arg in enumerate(tied.call.args)]
        panel = pack(self.builder_.emit, args, tied.layer, tied.reading, tied.candidate, self.builder_.lookup_binding)
        numbers = self.visit_expr(call.args[1].fields[0])
        operands = [numbers, panel, relax.prim_value(0), relax.prim_value(spec.blocks)]
        return relax.call_tir(self.kernels[key], operands, call.ty_args[0])

    def _write_part(
        self, number: int, place: Place, kernel: tvm.ir.GlobalVar, args: list[relax.Expr], kind: str
    ) -> relax.Var:
        """The concatenation after a kernel has written its part: the first one makes the tensor."""
        type_ = relax.TensorType(place.shape, kind)
        if number in self.begun:
            result = relax.op.call_tir_inplace(kernel, [*args, self.begun[number]], len(args), type_)
        else:
            result = relax.call_tir(kernel, args, type_)
        self.begun[number] = self._emit(result)
        return self.begun[number]

    def _complete(self, call: relax.Call, numbers: list[int | None]) -> relax.Var:
        """A concatenation some parts of which are written, those with a number: the others are copied."""
        fields = call.args[0].fields
        number = next(number for number in numbers if number is not None)
        placed = tuple(i for i, known in enumerate(numbers) if known is not None)
        spec = ConcatSpec(tuple(map(shape, fields)), int(call.attrs.axis) % len(shape(call)), dtype(call), placed)
        if not spec.copied:
            return self.begun[number]
        if (spec,) not in self.kernels:
            described = names.kernel_attributes(
                "concat", "vector", str(spec), 0, rows=machines.rows(spec, self.unit)
            )
            described[names.PART] = sum(math.prod(spec.shapes[i]) for i in spec.copied) / math.prod(spec.out_shape)
            name = f"concat_placed_{len(self.kernels)}"
            func = machines.operator(spec, concat.kernel, self.unit).with_attrs(described).with_attr("global_symbol", name)
            self.kernels[(spec,)] = self.builder_.add_func(func, name)
        args = [self.visit_expr(fields[i]) for i in spec.copied]
        type_ = relax.TensorType(spec.out_shape, spec.dtype)
        whole = relax.op.call_tir_inplace(self.kernels[(spec,)], [*args, self.begun[number]], len(args), type_)
        return self._emit(whole)

    def _view(self, value: relax.Expr, wanted: tuple[int, ...]) -> relax.Expr:
        return value if shape(value) == wanted else self._emit(relax.op.reshape(value, wanted))

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value, name_hint=self.name)

    def _kernel(self, layer: relax.Function, spec, candidate: Candidate) -> tvm.ir.GlobalVar:
        key = (spec, str(candidate))
        if key not in self.kernels:
            described = names.kernel_attributes(
                operator_of(layer), str(candidate), str(spec), spec.flops, int(layer.attrs[names.BLOCKS]),
                candidate.scratch, candidate.work,
                candidate.rows,
                layer.attrs.get(names.SECONDS),
            )  # fmt: skip
            offered = candidates(spec, self.unit)
            offers = {str(c): c for c in (*offered, candidate)}  # a tuner knows more than is on offer
            described[names.CANDIDATES] = [
                [name, c.scratch_nbytes, c.weight_nbytes, float(c.work)] for name, c in offers.items()
            ]
            if candidate.panel is not None:
                described[names.FORM] = _form(spec, candidate).encode()
            if isinstance(spec, ConvSpec) and spec.place:
                described[names.PART] = math.prod(spec.out_shape) / math.prod(spec.y_shape)
            if isinstance(spec, ConvSpec) and spec.pointwise and self.padded:
                described |= {names.BY_ROWS: [0], names.EXTENT: math.prod(spec.out_shape[:-1])}
            if candidate.in_place:
                operands = len(data_shapes(spec))
                described[names.IN_PLACE] = list(range(operands, operands + spec.tensors))
            if (found := family(candidate.family)) is not None and found.anew:
                described[names.ANEW] = 1
            if key not in self.built:
                self.built[key] = self._built(spec, candidate)
            func = self.built[key].with_attrs(described)
            name = f"{operator_of(layer)}_{candidate.family}_{len(self.kernels)}"
            self.kernels[key] = self.builder_.add_func(func.with_attr("global_symbol", name), name)
        return self.kernels[key]

    def _built(self, spec, candidate: Candidate) -> tvm.tirx.PrimFunc:
        func = candidate.build()
        if self.padded and candidate.told is not None:
            func = names.with_told(func, candidate.told(), math.prod(spec.out_shape[:-1]), [0])
        return func


def _form(spec: ConvSpec, candidate: Candidate) -> WeightForm:
    """The weights that a kernel takes."""
    return WeightForm(candidate.panel, spec.kernel, spec.group_in, candidate.transform)


def _parts(mod: tvm.IRModule) -> dict[relax.Var, int]:
    """The variables of main that hold a part of a concatenation or look at one, and the concatenation's number."""
    result: dict[relax.Var, int] = {}
    for binding in bindings(mod["main"]):
        value = binding.value
        if not isinstance(value, relax.Call):
            continue
        if isinstance(value.op, tvm.ir.GlobalVar):
            layer = mod[value.op]
            if is_layer(layer) and names.PLACE in layer.attrs:
                result[binding.var], _ = names.decode_place(layer.attrs[names.PLACE])
        elif operator(value) == "reshape" and value.args[0] in result:
            result[binding.var] = result[value.args[0]]
    return result


def data_shapes(spec: ConvSpec | MatmulSpec) -> list[tuple[int, ...]]:
    """The shapes in which a kernel sees its anchor's activations."""
    if isinstance(spec, ConvSpec):
        return [spec.x_shape]
    return [
        (1 if spec.left_shared else spec.batch, spec.m, spec.k),
        (1 if spec.right_shared else spec.batch, spec.k, spec.n),
    ]


def out_shape(spec: ConvSpec | MatmulSpec) -> tuple[int, ...]:
    """The shape in which a kernel sees its output, and the tensors of its epilogue."""
    return spec.out_shape if isinstance(spec, ConvSpec) else (spec.batch, spec.m, spec.n)
