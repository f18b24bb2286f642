"""Operators on quantised tensors are replaced by their definitions, of DequantizeLinear, the operator and QuantizeLinear.

    QLinearConv(x, …, w, …, b)      →  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(b)))

ONNX's own, and those of com.microsoft that ONNX Runtime's quantiser and optimiser write. Weights of 4 bits become ones of 8.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flexcomp.frontend.definition import Define, Definition
from flexcomp.frontend.quantised.dynamic_lstm import define as _dynamic_lstm
from flexcomp.frontend.quantised.four_bits import WIDENED
from flexcomp.frontend.quantised.rows_in_blocks import define as _rows_in_blocks
from flexcomp.frontend.quantised.weights_in_blocks import define as _product_with_blocks

_SOFTMAX_CHANGED = 13  # opset from which on it is along one axis


def _convolution(made: Definition) -> None:
    _require_channels_first(made)
    inputs = [made.real(0), made.real(3, axis=0)]
    if made.input(8):
        scale = made.emit("Mul", [made.input(1), made.input(4)])
        inputs.append(made.dequantised(made.input(8), scale, "", axis=0))
    made.quantise(made.emit("Conv", inputs, **made.attributes), made.input(6), made.input(7))


def _product(made: Definition) -> None:
    """Scales are one, or one for each row of the left and each column of the right operand."""
    product = made.emit("MatMul", [made.real(0, axis=-2), made.real(3, axis=-1)])
    made.quantise(product, made.input(6), made.input(7))


def _gemm(made: Definition) -> None:
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


def _of_two(kind: str) -> Define:
    def define(made: Definition) -> None:
        made.quantise(made.emit(kind, [made.real(0), made.real(3)]), made.input(6), made.input(7))

    return define


def _of_one(kind: str, **defaults) -> Define:
    def define(made: Definition) -> None:
        _require_channels_first(made)
        attributes = {**defaults, **made.attributes}
        made.quantise(made.emit(kind, [made.real(0)], **attributes), made.input(3), made.input(4))

    return define


def _require_channels_first(made: Definition) -> None:
    if made.take("channels_last", 0):
        raise made.refuse(
            "its channels are last, and only images with channels first can be compiled; export the network as ONNX has it"
        )


def _softmax(made: Definition) -> None:
    meant, axis = made.take("opset", made.opset), made.attributes.get("axis", -1)
    if (meant < _SOFTMAX_CHANGED) != (made.opset < _SOFTMAX_CHANGED) and axis != -1:
        raise made.refuse(
            f"it is the Softmax of opset {meant} in a network of opset {made.opset}; export the network for one of them"
        )
    made.attributes["axis"] = axis
    _of_one("Softmax")(made)


def _concat(made: Definition) -> None:
    parts = [made.real(i) for i in range(2, len(made.node.input), 3)]
    made.quantise(made.emit("Concat", parts, **made.attributes), made.input(0), made.input(1))


def _where(made: Definition) -> None:
    chosen = made.emit("Where", [made.input(0), made.real(1), made.real(4)])
    made.quantise(chosen, made.input(7), made.input(8))


def _product_to_real(made: Definition) -> None:
    """MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)."""
    left, right = (made.dequantised(made.input(i), made.input(i + 2), made.input(i + 4), axis=i - 2) for i in range(2))
    made.product(left, right, 6)


def _dynamic_product(made: Definition) -> None:
    """DynamicQuantizeMatMul(A, B, b_scale, b_zero_point, bias): A is real and is quantised by its own range."""
    data, scale, zero = (f"{made.name}/{part}" for part in ("quantised", "scale", "zero_point"))
    made.nodes.append(helper.make_node("DynamicQuantizeLinear", [made.input(0)], [data, scale, zero], f"{made.name}/quantise"))
    right = made.dequantised(made.input(1), made.input(2), made.input(3), axis=-1)
    made.product(made.dequantised(data, scale, zero), right, 4)


def _integers(made: Definition, data: str, zero: str) -> str:
    """data - zero, in int32."""
    whole = made.emit("Cast", [data], to=TensorProto.INT32)
    return made.emit("Sub", [whole, made.emit("Cast", [zero], to=TensorProto.INT32)]) if zero else whole


def _integer_product(made: Definition) -> None:
    """MulInteger(A, A_zero_point, B, B_zero_point), element by element."""
    made.emit("Mul", [_integers(made, made.input(i), made.input(i + 1)) for i in (0, 2)], made.node.output[0])


def _integer_sum(made: Definition) -> None:
    """ReduceSumInteger."""
    axes, keepdims = made.take("axes"), made.take("keepdims", 1)
    made.reduced("ReduceSum", _integers(made, made.input(0), ""), axes, made.output(0), keepdims)


def _mean(made: Definition) -> None:
    axes, keepdims = made.take("axes"), made.take("keepdims", 1)
    made.quantise(made.reduced("ReduceMean", made.real(0), axes, keepdims=keepdims), made.input(3), made.input(4))


def _same(kind: str) -> Define:
    """An operator of com.microsoft that ONNX took over."""

    def define(made: Definition) -> None:
        made.emit(kind, made.node.input, made.node.output[0], **made.attributes)

    return define


OF_ONNX: dict[str, Define] = {"QLinearConv": _convolution, "QLinearMatMul": _product}
OF_MICROSOFT: dict[str, Define] = {
    "DequantizeLinear": _same("DequantizeLinear"),
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "DynamicQuantizeMatMul": _dynamic_product,
    "GatherBlockQuantized": _rows_in_blocks,
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


def widen_four_bits(graph: onnx.GraphProto) -> None:
    """Weights of 4 bits that are only dequantised become ones of 8."""
    for tensor in graph.initializer:
        readers = [node for node in graph.node if tensor.name in node.input] if tensor.data_type in WIDENED else []
        if tensor.data_type in WIDENED and all(node.op_type == "DequantizeLinear" for node in readers):
            wide = numpy_helper.to_array(tensor).astype(WIDENED[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
