"""What a quantised node is defined by: the nodes in its place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import title

_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)


class Definition:
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

    def product(self, left: str, right: str, bias: int) -> None:
        """The node's result: a product of matrices, and input `bias` added if there is one."""
        if self.input(bias):
            self.emit("Add", [self.emit("MatMul", [left, right]), self.input(bias)], self.node.output[0])
        else:
            self.emit("MatMul", [left, right], self.node.output[0])

    def refuse(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"node {self.name!r} ({title(self.node)}): {reason}")
