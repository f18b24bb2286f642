"""A small builder of ONNX graphs with seeded random weights.

Weights keep the variance of their inputs, and filters sum to zero per output channel, so that
deep networks neither explode nor answer alike to every input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
CLASSES = 1000  # of pictures
Kernel = int | tuple[int, int]  # its extent, or height and width
RECTIFIED_GAIN = math.sqrt(1.0 / (0.5 - 0.5 / math.pi))  # a ReLU leaves this part of a normal variable's variance


class Graph:
    """Nodes and weights of one network; methods add an operator and return its output's name."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.channels: dict[str, int] = {}  # of 4-D values (axis 1) and of matrices (last axis)

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        """Declare an input: pictures in NCHW, or whatever else has its channels in axis 1."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        self.channels[name] = shape[1]
        return name

    def weight(self, value: np.ndarray) -> str:
        """Add an initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def normal(self, shape: Sequence[int], deviation: float) -> str:
        """Add a normally distributed initializer."""
        return self.weight(self.rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(deviation))

    def integers(self, *values: int) -> str:
        """Add an int64 vector."""
        return self.weight(np.array(values, dtype=np.int64))

    def floats(self, *values: float) -> str:
        """Add a vector of float32."""
        return self.weight(np.array(values, dtype=np.float32))

    def number(self, value: float) -> str:
        """Add a scalar of float32."""
        return self.weight(np.float32(value))

    def op(self, kind: str, *inputs: str, channels: int | None = None, **attributes) -> str:
        """Add a node with one output, which has the first input's channels unless told otherwise."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        self.channels[name] = channels or self.channels.get(inputs[0], 0)
        return name

    def split(self, x: str, parts: int, axis: int) -> list[str]:
        """Cut a value into equal parts along an axis that holds its channels."""
        channels = self.channels[x] // parts
        names = [f"split{len(self.nodes)}_{i}" for i in range(parts)]
        sizes = self.integers(*[channels] * parts)
        self.nodes.append(helper.make_node("Split", [x, sizes], names, name=f"split{len(self.nodes)}", axis=axis))
        self.channels |= dict.fromkeys(names, channels)
        return names

    def filters(self, shape: tuple[int, ...], axes: tuple[int, ...], gain: float) -> str:
        """Zero-sum random weights; `axes` are summed over by the operator that reads them."""
        fan_in = math.prod(shape[a] for a in axes)
        value = self.rng.standard_normal(shape, dtype=np.float32)
        if fan_in > 16:
            value -= value.mean(axis=axes, keepdims=True)
        return self.weight(value * np.float32(gain / math.sqrt(fan_in)))

    def conv(
        self, x: str, channels: int, kernel: Kernel, stride: int = 1, padding: Kernel | None = None, groups: int = 1,
        bias: bool = True, gain: float = RECTIFIED_GAIN,
    ) -> str:
        """A convolution, padded to keep the image's size unless told otherwise; kernel and padding (height, width)."""
        taps = _pair(kernel)
        pads = tuple(tap // 2 for tap in taps) if padding is None else _pair(padding)
        weights = self.filters((channels, self.channels[x] // groups, *taps), (1, 2, 3), gain)
        biases = [self.normal((channels,), 0.05)] if bias else []
        return self.op(
            "Conv", x, weights, *biases, channels=channels, group=groups,
            kernel_shape=list(taps), strides=[stride] * 2, pads=[*pads, *pads], dilations=[1, 1],
        )  # fmt: skip

    def batch_norm(self, x: str, gain: float = 1.0) -> str:
        """Batch normalisation with statistics near those of a normalised activation."""
        count = self.channels[x]
        scale = self.weight((gain * self.rng.uniform(0.9, 1.1, count)).astype(np.float32))
        bias, mean = self.normal((count,), 0.05), self.normal((count,), 0.05)
        variance = self.weight(self.rng.uniform(0.8, 1.2, count).astype(np.float32))
        return self.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5)

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self.op("Relu", x)

    def relu6(self, x: str) -> str:
        """min(max(x, 0), 6)."""
        low, high = self.weight(np.float32(0.0)), self.weight(np.float32(6.0))
        return self.op("Clip", x, low, high)

    def unit(
        self, x: str, channels: int, kernel: Kernel = 1, stride: int = 1, padding: Kernel | None = None,
        groups: int = 1, gain: float = 1.0,
    ) -> str:  # fmt: skip
        """A convolution and its batch normalisation."""
        return self.batch_norm(self.conv(x, channels, kernel, stride, padding, groups, bias=False), gain)

    def rectified(
        self, x: str, channels: int, kernel: Kernel = 1, stride: int = 1, padding: Kernel | None = None, groups: int = 1
    ) -> str:
        """A convolution, its batch normalisation, and max(x, 0)."""
        return self.relu(self.unit(x, channels, kernel, stride, padding, groups))

    def max_pool(self, x: str, kernel: int, stride: int, padding: int = 0, ceil: bool = False) -> str:
        """A square maximum pooling."""
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
        return self.op("MaxPool", x, **sizes, ceil_mode=int(ceil))

    def average_pool(self, x: str, kernel: int, stride: int, padding: int = 0) -> str:
        """A square average pooling that counts padding as zeros."""
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [padding] * 4}
        return self.op("AveragePool", x, **sizes, count_include_pad=1)

    def global_pool(self, x: str) -> str:
        """The average of each channel as a row of a matrix."""
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)

    def concat(self, *parts: str, axis: int = 1) -> str:
        """Parts side by side, along an axis that holds their channels."""
        return self.op("Concat", *parts, axis=axis, channels=sum(self.channels[part] for part in parts))

    def layer_norm(self, x: str, epsilon: float = 1e-5) -> str:
        """Layer normalisation over the last axis, which holds the channels."""
        width = self.channels[x]
        scale = self.weight(self.rng.uniform(0.9, 1.1, width).astype(np.float32))
        return self.op("LayerNormalization", x, scale, self.normal((width,), 0.05), axis=-1, epsilon=epsilon)

    def gelu(self, x: str) -> str:
        """GELU with the error function, in elementary operators."""
        error = self.op("Erf", self.op("Div", x, self.number(math.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", error, self.number(1.0))), self.number(0.5))

    def dense(self, x: str, channels: int, gain: float = 1.0) -> str:
        """Gemm with transposed weights, for matrices."""
        weights = self.filters((channels, self.channels[x]), (1,), gain)
        return self.op("Gemm", x, weights, self.normal((channels,), 0.05), channels=channels, transB=1)

    def linear(self, x: str, channels: int, gain: float = 1.0) -> str:
        """MatMul and bias, for sequences [batch, length, channels]."""
        weights = self.filters((self.channels[x], channels), (0,), gain)
        product = self.op("MatMul", x, weights, channels=channels)
        return self.op("Add", self.normal((channels,), 0.05), product, channels=channels)

    def doubled(self, x: str) -> str:
        """Twice as high and wide, each pixel four times."""
        way = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return self.op("Resize", x, "", self.floats(1, 1, 2, 2), **way)

    def attention(self, x: str, tokens: int, heads: int, gain: float = 1.0) -> str:
        """Attention of `tokens` rows in elementary operators; `gain` is that of queries and keys."""
        width = self.channels[x]

        def by_heads(gain: float, order: list[int]) -> str:
            return self.op("Transpose", self.reshape(self.linear(x, width, gain), 1, tokens, heads, width // heads), perm=order)

        query, key, value = by_heads(gain, [0, 2, 1, 3]), by_heads(gain, [0, 2, 3, 1]), by_heads(1.0, [0, 2, 1, 3])
        scores = self.op("Mul", self.op("MatMul", query, key), self.number((width // heads) ** -0.5))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        joined = self.reshape(self.op("Transpose", mixed, perm=[0, 2, 1, 3]), 1, tokens, width, channels=width)
        return self.linear(joined, width)

    def reshape(self, x: str, *shape: int, channels: int | None = None) -> str:
        """Reshape; 0 keeps an extent, -1 takes the rest."""
        return self.op("Reshape", x, self.integers(*shape), channels=channels)

    def classify(self, x: str) -> onnx.ModelProto:
        """The network that ends with averages of the channels and a dense layer."""
        return self.model(self.dense(self.global_pool(x), CLASSES), (1, CLASSES))

    def model(self, output: str, shape: Sequence[int]) -> onnx.ModelProto:
        """The finished network with the value `output`, renamed to "output"."""
        self.nodes.append(helper.make_node("Identity", [output], ["output"], name="output"))
        outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, list(shape))]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, outputs, self.weights)
        domains = sorted({node.domain for node in self.nodes} - {""})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def _pair(extent: Kernel) -> tuple[int, int]:
    return extent if isinstance(extent, tuple) else (extent, extent)
