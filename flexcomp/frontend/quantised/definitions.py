"""Operators on quantised tensors are replaced by their definitions, of DequantizeLinear, the operator and QuantizeLinear.

    QLinearConv(x, …, w, …, b)      →  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(b)))

ONNX's own, and those of com.microsoft that ONNX Runtime's quantiser and optimiser write. Weights of 4 bits become ones of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import DEFAULT, title
from flexcomp.frontend.operators.recurrent import QUANTISED_STATE

_MICROSOFT = "com.microsoft"
_WIDENED = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
_AXES_ARE_INPUTS_OF = {"ReduceMean": 18, "ReduceSum": 13, "Unsqueeze": 13}  # opsets from which on they are
_SOFTMAX_CHANGED = 13  # opset from which on it is along one axis


def define_quantised(model: onnx.ModelProto) -> None:
    """Replace quantised operators by their definitions, in subgraphs too. Changes `model`.

    Raises UnsupportedModelError for what has no definition here.
    """
    opset = next((o.version for o in model.opset_import if o.domain in DEFAULT), 1)
    _define(model.graph, opset)


def _define(graph: onnx.GraphProto, opset: int) -> None:
    _widen_four_bits(graph)
    if any(_definition(node) for node in graph.node):
        types = {tensor.name: tensor.data_type for tensor in graph.initializer}
        written = [made for node in graph.node for made in _defined(node, graph, types, opset)]
        del graph.node[:]
        graph.node.extend(written)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _define(inner, opset)


def _definition(node: onnx.NodeProto) -> Callable[[_Definition], None] | None:
    if node.domain in DEFAULT:
        return _ONNX.get(node.op_type)
    return _OF_MICROSOFT.get(node.op_type) if node.domain == _MICROSOFT else None


def _defined(node: onnx.NodeProto, graph: onnx.GraphProto, types: dict[str, int], opset: int) -> list[onnx.NodeProto]:
    define = _definition(node)
    if define is None:
        return [node]
    made = _Definition(node, graph, types, opset)
    define(made)
    return made.nodes


class _Definition:
    """One quantised node, and the nodes that are written in its place."""

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto, types: dict[str, int], opset: int) -> None:
        self.node, self.graph, self.types, self.opset = node, graph, types, opset
        self.name = node.name or next(filter(None, node.output))
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes: list[onnx.NodeProto] = []

    def input(self, i: int) -> str:
        """The name of input `i`, empty if it is left out."""
        return self.node.input[i] if i < len(self.node.input) else ""

    def take(self, attribute: str, default=None):
        """An attribute that the operator in the middle does not have."""
        return self.attributes.pop(attribute, default)

    def emit(self, kind: str, inputs: Sequence[str], out: str | None = None, **attributes) -> str:
        """Write a node; the name of its result."""
        out = out or f"{self.name}/{kind}_{len(self.nodes)}"
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self.nodes.append(helper.make_node(kind, given, [out], f"{self.name}/{kind}_{len(self.nodes)}", **attributes))
        return out

    def constant(self, value: np.ndarray) -> str:
        """An initialiser."""
        name = f"{self.name}/constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def value(self, i: int) -> np.ndarray | None:
        """Of input `i`, if it is a constant."""
        found = next((tensor for tensor in self.graph.initializer if tensor.name == self.input(i)), None)
        return None if found is None else numpy_helper.to_array(found)

    def real(self, i: int, axis: int | None = None, scale: str | None = None) -> str:
        """Input `i` dequantised: its scale and zero point are the inputs behind it."""
        return self.dequantised(self.input(i), self.input(i + 1), self.input(i + 2), axis)

    def dequantised(self, data: str, scale: str, zero: str, axis: int | None = None) -> str:
        return self.emit("DequantizeLinear", [data, scale, zero], **({} if axis is None else {"axis": axis}))

    def quantise(self, data: str, scale: str, zero: str, axis: int | None = None) -> None:
        """The node's result."""
        if not zero:  # of the type of the other zero points, or of unsigned 8 bits, which is the default
            known = {self.types[name] for name in self.node.input if self.types.get(name) in _EIGHT_BITS}
            if known == {TensorProto.INT8}:
                zero = self.constant(np.int8(0))
        axis_given = {} if axis is None else {"axis": axis}
        self.emit("QuantizeLinear", [data, scale, zero], self.node.output[0], **axis_given)

    def refuse(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"node {self.name!r} ({title(self.node)}): {reason}")


_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)


def _convolution(made: _Definition) -> None:
    _require_channels_first(made)
    inputs = [made.real(0), made.real(3, axis=0)]
    if made.input(8):
        scale = made.emit("Mul", [made.input(1), made.input(4)])
        inputs.append(made.dequantised(made.input(8), scale, "", axis=0))
    made.quantise(made.emit("Conv", inputs, **made.attributes), made.input(6), made.input(7))


def _product(made: _Definition) -> None:
    """Scales are one, or one for each row of the left and each column of the right operand."""
    product = made.emit("MatMul", [made.real(0, axis=-2), made.real(3, axis=-1)])
    made.quantise(product, made.input(6), made.input(7))


def _gemm(made: _Definition) -> None:
    """QGemm: its bias has the scale alpha · a_scale · b_scale; without a scale of the result it is real."""
    transposed = made.attributes.get("transB", 0)
    inputs = [made.real(0), made.real(3, axis=0 if transposed else 1)]
    if made.input(6):
        scale = made.emit("Mul", [made.input(1), made.input(4)])
        alpha = made.attributes.get("alpha", 1.0)
        if alpha != 1.0:
            scale = made.emit("Mul", [scale, made.constant(np.float32(alpha))])
        inputs.append(made.dequantised(made.input(6), scale, "", axis=-1))
    if made.input(7):
        made.quantise(made.emit("Gemm", inputs, **made.attributes), made.input(7), made.input(8))
    else:
        made.emit("Gemm", inputs, made.node.output[0], **made.attributes)


def _of_two(kind: str) -> Callable[[_Definition], None]:
    def define(made: _Definition) -> None:
        made.quantise(made.emit(kind, [made.real(0), made.real(3)]), made.input(6), made.input(7))

    return define


def _of_one(kind: str, **defaults) -> Callable[[_Definition], None]:
    def define(made: _Definition) -> None:
        _require_channels_first(made)
        attributes = {**defaults, **made.attributes}
        made.quantise(made.emit(kind, [made.real(0)], **attributes), made.input(3), made.input(4))

    return define


def _require_channels_first(made: _Definition) -> None:
    if made.take("channels_last", 0):
        raise made.refuse(
            "its channels are last, and only images with channels first can be compiled; export the network as ONNX has it"
        )


def _softmax(made: _Definition) -> None:
    meant, axis = made.take("opset", made.opset), made.attributes.get("axis", -1)
    if (meant < _SOFTMAX_CHANGED) != (made.opset < _SOFTMAX_CHANGED) and axis != -1:
        raise made.refuse(
            f"it is the Softmax of opset {meant} in a network of opset {made.opset}; export the network for one of them"
        )
    made.attributes["axis"] = axis
    _of_one("Softmax")(made)


def _concat(made: _Definition) -> None:
    parts = [made.real(i) for i in range(2, len(made.node.input), 3)]
    made.quantise(made.emit("Concat", parts, **made.attributes), made.input(0), made.input(1))


def _where(made: _Definition) -> None:
    chosen = made.emit("Where", [made.input(0), made.real(1), made.real(4)])
    made.quantise(chosen, made.input(7), made.input(8))


def _product_to_real(made: _Definition) -> None:
    """MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)."""
    left, right = (made.dequantised(made.input(i), made.input(i + 2), made.input(i + 4), axis=i - 2) for i in range(2))
    _with_bias(made, left, right, 6)


def _dynamic_product(made: _Definition) -> None:
    """DynamicQuantizeMatMul(A, B, b_scale, b_zero_point, bias): A is real and is quantised by its own range."""
    data, scale, zero = (f"{made.name}/{part}" for part in ("quantised", "scale", "zero_point"))
    made.nodes.append(helper.make_node("DynamicQuantizeLinear", [made.input(0)], [data, scale, zero], f"{made.name}/quantise"))
    right = made.dequantised(made.input(1), made.input(2), made.input(3), axis=-1)
    _with_bias(made, made.dequantised(data, scale, zero), right, 4)


def _dynamic_lstm(made: _Definition) -> None:
    """DynamicQuantizeLSTM: weights [directions, inputs, gates · hidden]; X is quantised by its own range, the state in each step.

    ONNX Runtime takes the range of as many rows as a thread has: that of all is that of one thread.
    """
    if made.input(4):
        raise made.refuse("with sequence_lens the range of X depends on them; export it without, or as an LSTM")
    data, scale, zero = (f"{made.name}/{part}" for part in ("quantised", "scale", "zero_point"))
    made.nodes.append(helper.make_node("DynamicQuantizeLinear", [made.input(0)], [data, scale, zero], f"{made.name}/quantise"))
    real = made.dequantised(data, scale, zero)
    weights = [_weights_of_all_directions(made, *given) for given in ((1, 8, 9), (2, 10, 11))]
    inputs = [real, *weights, *(made.input(i) for i in range(3, 8))]
    while not inputs[-1]:
        inputs.pop()
    attributes = {**made.attributes, QUANTISED_STATE: 1}
    made.nodes.append(helper.make_node("LSTM", inputs, made.node.output, made.name, **attributes))


def _weights_of_all_directions(made: _Definition, weight: int, scale: int, zero: int) -> str:
    """W or R as numbers, in an LSTM's shape; one scale and zero point for a direction, or one for each of its columns."""
    known = [made.value(i) for i in (weight, scale, zero)]
    if any(one is None for one in known):
        raise made.refuse("its weights, scales and zero points must be constants of the model: export it with them")
    values, scales, zeros = known
    if scales.shape != zeros.shape or scales.ndim not in (1, 2) or scales.shape[0] != values.shape[0]:
        raise made.refuse(f"scales of {scales.shape} and zero points of {zeros.shape} do not fit weights of {values.shape}")
    parts = []
    for each in range(values.shape[0]):
        names = [made.constant(one[each]) for one in (values.transpose(0, 2, 1), scales, zeros)]
        parts.append(made.dequantised(*names, axis=0))
    if made.opset >= _AXES_ARE_INPUTS_OF["Unsqueeze"]:
        opened = [made.emit("Unsqueeze", [part, made.constant(np.int64([0]))]) for part in parts]
    else:
        opened = [made.emit("Unsqueeze", [part], axes=[0]) for part in parts]
    return opened[0] if len(opened) == 1 else made.emit("Concat", opened, axis=0)


def _with_bias(made: _Definition, left: str, right: str, bias: int) -> None:
    if made.input(bias):
        made.emit("Add", [made.emit("MatMul", [left, right]), made.input(bias)], made.node.output[0])
    else:
        made.emit("MatMul", [left, right], made.node.output[0])


def _integers(made: _Definition, data: str, zero: str) -> str:
    """data - zero, in int32."""
    whole = made.emit("Cast", [data], to=TensorProto.INT32)
    return made.emit("Sub", [whole, made.emit("Cast", [zero], to=TensorProto.INT32)]) if zero else whole


def _integer_product(made: _Definition) -> None:
    """MulInteger(A, A_zero_point, B, B_zero_point), element by element."""
    made.emit("Mul", [_integers(made, made.input(i), made.input(i + 1)) for i in (0, 2)], made.node.output[0])


def _integer_sum(made: _Definition) -> None:
    """ReduceSumInteger."""
    _reduced(made, "ReduceSum", _integers(made, made.input(0), ""), made.node.output[0])


def _mean(made: _Definition) -> None:
    made.quantise(_reduced(made, "ReduceMean", made.real(0)), made.input(3), made.input(4))


def _reduced(made: _Definition, kind: str, data: str, out: str | None = None) -> str:
    axes, keepdims = made.take("axes"), made.take("keepdims", 1)
    if axes is None:
        return made.emit(kind, [data], out, keepdims=keepdims)
    if made.opset >= _AXES_ARE_INPUTS_OF[kind]:
        return made.emit(kind, [data, made.constant(np.int64(axes))], out, keepdims=keepdims)
    return made.emit(kind, [data], out, axes=axes, keepdims=keepdims)


def _product_with_blocks(made: _Definition) -> None:
    """MatMulNBits(A, B, scales, zero_points, g_idx, bias): B has 4 or 8 bits, a scale for each block of a column.

    With any accuracy_level it is computed as with 1, in float32.
    """
    rows, columns, size = (made.take(name) for name in ("N", "K", "block_size"))
    bits = made.take("bits", 4)
    packed, scales, zeros = (made.value(i) for i in (1, 2, 3))
    if made.input(4) or bits not in (4, 8):
        raise made.refuse("it has g_idx, or weights of other than 4 or 8 bits; export the network with float32 weights")
    if packed is None or scales is None or (made.input(3) and zeros is None) or scales.dtype != np.float32:
        raise made.refuse("its weights, scales (float32) and zero points must be constants of the model: export it with them")
    if zeros is not None and zeros.dtype != np.uint8:
        raise made.refuse("its zero points are no integers; export the network with zero points of its weights' bits")
    blocks = -(-columns // size)
    weights = _unpacked(packed.reshape(rows, -1), bits)[:, :columns]
    middle = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    zero = middle if zeros is None else _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
    given = [made.constant(one) for one in (weights, scales.reshape(rows, blocks), zero)]
    real = made.emit("DequantizeLinear", given, axis=1, block_size=size)
    _with_bias(made, made.input(0), made.emit("Transpose", [real], perm=[1, 0]), 5)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """uint8[rows, numbers]: of 4 bits, the lower half of a byte comes first."""
    return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)


def _same(kind: str) -> Callable[[_Definition], None]:
    """An operator of com.microsoft that ONNX took over."""

    def define(made: _Definition) -> None:
        made.emit(kind, made.node.input, made.node.output[0], **made.attributes)

    return define


_ONNX: dict[str, Callable[[_Definition], None]] = {"QLinearConv": _convolution, "QLinearMatMul": _product}
_OF_MICROSOFT: dict[str, Callable[[_Definition], None]] = {
    "DequantizeLinear": _same("DequantizeLinear"),
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulIntegerToFloat": _product_to_real,
    "MatMulNBits": _product_with_blocks,
    "MulInteger": _integer_product,
    "QGemm": _gemm,
    "QLinearAdd": _of_two("Add"),
    "QLinearAveragePool": _of_one("AveragePool"),
    "QLinearConcat": _concat,
    "QLinearConv": _convolution,
    "QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
    "QLinearLeakyRelu": _of_one("LeakyRelu"),
    "QLinearMul": _of_two("Mul"),
    "QLinearReduceMean": _mean,
    "QLinearSigmoid": _of_one("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _same("QuantizeLinear"),
    "ReduceSumInteger": _integer_sum,
}


def _widen_four_bits(graph: onnx.GraphProto) -> None:
    """Weights of 4 bits that are only dequantised become ones of 8."""
    for tensor in graph.initializer:
        if tensor.data_type in _WIDENED and all(
            node.op_type == "DequantizeLinear" for node in _readers(graph, tensor.name)
        ):
            wide = numpy_helper.to_array(tensor).astype(_WIDENED[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _readers(graph: onnx.GraphProto, name: str) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        if name in node.input:
            yield node


def defined() -> Iterator[onnx.NodeProto]:
    """A node of each operator that is defined here."""
    for domain, kinds in (("", _ONNX), (_MICROSOFT, _OF_MICROSOFT)):
        for kind in kinds:
            yield onnx.NodeProto(domain=domain, op_type=kind)
