"""Reading a layer function back: from Relax operators to the spec that kernels are offered for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm import ir, relax, tirx

from ..schedules.tiles.epilogue import Epilogue
from ..schedules.tiles.first_taps import FirstTaps
from ..schedules.tiles.spec import ConvSpec, MatmulSpec
from .attributes import DTYPE, FIRST_TAPS, INTEGERS, LAYER, PLACE, VALUES_OF, VECTORS, decode_place
from .ir import bindings, dtype, operator, shape

# Relax operator (without prefix) → epilogue operator. Operands that are no tensors are handled by name below.
ELEMENTWISE = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "maximum": "maximum", "minimum": "minimum", "negative": "negative", "abs": "abs", "relu": "relu",
    "relu6": "relu6", "clip": "clip", "leakyrelu": "leakyrelu", "prelu": "prelu", "sigmoid": "sigmoid",
    "silu": "silu", "tanh": "tanh", "exp": "exp", "erf": "erf", "gelu": "gelu", "round": "round",
}  # fmt: skip

# Converts rows of 8 bits (QuantiseActivations).
FROM_BYTES = "flexcomp.from_bytes"

# Anchor operators and the index of their weight operand.
ANCHORS = {"conv2d": 1, "matmul": 1}


@dataclass(frozen=True)
class LayerReading:
    """The spec of a layer function, and which parameter plays which part (indices into its parameters)."""

    spec: ConvSpec | MatmulSpec
    data: tuple[int, ...]  # the anchor's activations
    weight: int | None
    bias: int | None
    vectors: tuple[int, ...]  # per-channel vectors of the epilogue, in its numbering
    tensors: tuple[int, ...]  # activations of the output's shape that the epilogue reads, in its numbering


def is_layer(func: ir.BaseFunc) -> bool:
    """Whether a function is a layer: an anchor with its epilogue."""
    return isinstance(func, relax.Function) and func.attrs is not None and LAYER in func.attrs


def read(func: relax.Function, weights: tuple[int, ...]) -> LayerReading:
    """Read a layer function; `weights` are the indices of the parameters that come from weights."""
    return _Reader(func, frozenset(weights)).read()


class _Reader:
    def __init__(self, func: relax.Function, weights: frozenset[int]) -> None:
        self.index = {param: i for i, param in enumerate(func.params)}
        order = [binding for binding in bindings(func) if not self._converts_parameter(binding)]
        # What a layer of narrow activations computes is converted from them and back: see NarrowActivations.
        self.anchor, *self.rest = order[:-1] if operator(order[-1].value) == "astype" else order
        self.computed = dtype(order[-1].var)
        self.weights = weights
        self.dtype = str(func.attrs[DTYPE]) if DTYPE in func.attrs else "float32"
        self.integers = INTEGERS in func.attrs
        self.first_taps = FirstTaps(*map(int, func.attrs[FIRST_TAPS])) if FIRST_TAPS in func.attrs else None
        self.place = decode_place(func.attrs[PLACE])[1] if PLACE in func.attrs else None
        self.vectors = [int(i) for i in func.attrs.get(VECTORS, ())]
        self.shared = frozenset(self.vectors)
        self.tensors: list[int] = []

    def _converts_parameter(self, binding: relax.VarBinding) -> bool:
        """Whether a binding only converts a parameter, which it then stands for."""
        value = binding.value
        from_bytes = operator(value) == "call_pure_packed" and value.args[0].global_symbol == FROM_BYTES
        source = value.args[1] if from_bytes else value.args[0] if operator(value) == "astype" else None
        converts = source in self.index
        if converts:
            self.index[binding.var] = self.index[source]
        return converts

    def read(self) -> LayerReading:
        call = self.anchor.value
        left, right = self.index[call.args[0]], self.index[call.args[1]]
        weighted = right in self.weights
        values: dict[relax.Var, Epilogue] = {self.anchor.var: ("acc",)}
        plain = {self.anchor.var}  # the anchor's result, or a view of it
        bias = None
        for position, binding in enumerate(self.rest):
            name, args = operator(binding.value), binding.value.args
            if name == "reshape":
                values[binding.var] = values[args[0]]
                if args[0] in plain:
                    plain.add(binding.var)
                continue
            if weighted and bias is None and name == "add" and self._replaces(binding, plain, position):
                bias = next((self.index[arg] for arg in args if self.index.get(arg) in self.weights - self.shared), None)
                if bias is not None:
                    values[binding.var] = ("acc",)
                    continue
            values[binding.var] = self._expression(name, binding.value, values)
        epilogue = values[self.rest[-1].var] if self.rest else ("acc",)
        spec = self._conv(epilogue) if operator(call) == "conv2d" else self._matmul(epilogue, weighted)
        spec = replace(spec, dtype=self.computed)
        if self.place is not None:
            spec = replace(spec, place=self.place)
        if isinstance(spec, ConvSpec):
            spec = replace(spec, weights="float32" if self.dtype.startswith(VALUES_OF) else self.dtype)
            spec = replace(spec, integers=self.integers and spec.weights == "int8", vectors=len(self.shared))
            spec = replace(spec, first_taps=self.first_taps)
        return LayerReading(
            spec,
            data=(left,) if weighted else (left, right),
            weight=right if weighted else None,
            bias=bias,
            vectors=tuple(self.vectors),
            tensors=tuple(self.tensors),
        )

    def _replaces(self, binding: relax.VarBinding, plain: set[relax.Var], position: int) -> bool:
        """The sum takes the anchor's result, and nothing later does: accumulators can start from the sum's other operand."""
        later = [binding_.value.args for binding_ in self.rest[position + 1 :]]
        return any(arg in plain for arg in binding.value.args) and not any(var in args for var in plain for args in later)

    def _expression(self, name: str, call: relax.Call, values: dict[relax.Var, Epilogue]) -> Epilogue:
        operands = tuple(self._operand(arg, values) for arg in call.args)
        if name == "leakyrelu":
            operands += (("const", float(call.attrs.alpha)),)
        return (ELEMENTWISE[name], *operands)

    def _operand(self, arg: ir.Expr, values: dict[relax.Var, Epilogue]) -> Epilogue:
        constant = scalar(arg)
        if constant is not None:
            return ("const", constant)
        if arg in values:
            return values[arg]
        param = self.index[arg]
        kind, known = ("channel", self.vectors) if param in self.weights else ("tensor", self.tensors)
        if param not in known:
            known.append(param)
        return (kind, known.index(param))

    def _conv(self, epilogue: Epilogue) -> ConvSpec:
        call = self.anchor.value
        batch, height, width, channels = shape(call.args[0])
        out_channels, *kernel, _ = shape(call.args[1])
        attrs = call.attrs
        return ConvSpec(
            batch, height, width, channels, out_channels,
            kernel=tuple(kernel),
            stride=tuple(int(s) for s in attrs.strides),
            padding=tuple(int(p) for p in attrs.padding),
            dilation=tuple(int(d) for d in attrs.dilation),
            groups=int(attrs.groups),
            epilogue=epilogue,
        )  # fmt: skip

    def _matmul(self, epilogue: Epilogue, weighted: bool) -> ConvSpec | MatmulSpec:
        call = self.anchor.value
        left, right = shape(call.args[0]), shape(call.args[1])
        if weighted:
            return ConvSpec(1, 1, math.prod(left[:-1]), left[-1], right[-1], epilogue=epilogue)
        batch = math.prod(shape(call)[:-2])
        return MatmulSpec(
            batch, m=left[-2], n=right[-1], k=left[-1],
            left_shared=batch > 1 and math.prod(left[:-2]) == 1,
            right_shared=batch > 1 and math.prod(right[:-2]) == 1,
            epilogue=epilogue,
        )  # fmt: skip


def scalar(arg: ir.Expr) -> float | None:
    """The value of a scalar constant; None if `arg` is none."""
    if isinstance(arg, tirx.FloatImm | tirx.IntImm):
        return float(arg.value)
    if isinstance(arg, ir.GenericConst) and math.prod(arg.value.shape) == 1:
        return float(arg.value.numpy().reshape(-1)[0])
    return None


def operator_of(layer: relax.Function) -> str:
    """The anchor of a layer function."""
    return str(layer.attrs[LAYER])
