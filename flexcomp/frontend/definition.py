"""Definitions of operators: the nodes that replace a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flexcomp.deferred import Array, Deferred
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import title

MICROSOFT = "com.microsoft"
_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)
_AXES_ARE_INPUTS_OF = {"ReduceMean": 18, "ReduceSum": 13}  # opsets from which on they are
_SIZES_ARE_AN_INPUT = 13  # opset from which on sizes of Split and axes of Unsqueeze are


class Definition:
    """One node, and the nodes that replace it.

    `types`: of constants. `shapes`: as far as the definition asks. `large`: weights that are no initialisers of the graph;
    where the definition `defers`, those that it makes of them are not made before they are needed.
    """

    def __init__(
        self, node: onnx.NodeProto, graph: onnx.GraphProto, types: Mapping[str, int], opset: int,
        shapes: Mapping[str, tuple[int, ...]] | None = None, large: Mapping[str, Array] | None = None, defers: bool = False,
    ) -> None:  # fmt: skip
        self.node, self.graph, self.types, self.opset, self.shapes = node, graph, types, opset, shapes or {}
        self.large, self.defers = large or {}, defers
        self.deferred: dict[str, Deferred] = {}
        self.name = node.name or next(filter(None, node.output))
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes: list[onnx.NodeProto] = []

    def input(self, i: int) -> str:
        """The name of input `i`; empty if the input is left out."""
        return self.node.input[i] if i < len(self.node.input) else ""

    def output(self, i: int) -> str:
        """The name of result `i`; empty if no node reads the result."""
        return self.node.output[i] if i < len(self.node.output) else ""

    def shape(self, i: int) -> tuple[int, ...]:
        """The shape of input `i`; () if the input is left out."""
        return self.shapes.get(self.input(i), ())

    def take(self, attribute: str, default=None):
        """An attribute, which the operator in the middle then lacks."""
        return self.attributes.pop(attribute, default)

    def emit(self, kind: str, inputs: Sequence[str], out: str | None = None, **attributes) -> str:
        """Write a node; returns the name of its result."""
        out = out or f"{self.name}/{kind}_{len(self.nodes)}"
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self.nodes.append(helper.make_node(kind, given, [out], f"{self.name}/{kind}_{len(self.nodes)}", **attributes))
        return out

    def result(self, kind: str, inputs: Sequence[str], **attributes) -> None:
        """Write the node of the first result under the operator's own name, which errors of an inference then name."""
        self.emit(kind, inputs, self.node.output[0], **attributes)
        self.nodes[-1].name = self.name

    def reduced(self, kind: str, data: str, axes: Sequence[int] | None, out: str | None = None, keepdims: int = 1) -> str:
        """ReduceMean or ReduceSum over axes, or over all axes."""
        if axes is None:
            return self.emit(kind, [data], out, keepdims=keepdims)
        if self.opset >= _AXES_ARE_INPUTS_OF[kind]:
            return self.emit(kind, [data, self.constant(np.int64(axes))], out, keepdims=keepdims)
        return self.emit(kind, [data], out, axes=list(axes), keepdims=keepdims)

    def reshape(self, data: str, shape: Sequence[int], out: str | None = None) -> str:
        """A reshape; an extent of 0 stays, and -1 follows from the others."""
        return self.emit("Reshape", [data, self.constant(np.int64(shape))], out)

    def unsqueezed(self, data: str, axis: int) -> str:
        if self.opset >= _SIZES_ARE_AN_INPUT:
            return self.emit("Unsqueeze", [data, self.constant(np.int64([axis]))])
        return self.emit("Unsqueeze", [data], axes=[axis])

    def split(self, data: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Parts with these extents."""
        name = f"{self.name}/Split_{len(self.nodes)}"
        outs = [f"{name}_{i}" for i in range(len(sizes))]
        if self.opset >= _SIZES_ARE_AN_INPUT:
            self.nodes.append(helper.make_node("Split", [data, self.constant(np.int64(sizes))], outs, name, axis=axis))
        else:
            self.nodes.append(helper.make_node("Split", [data], outs, name, axis=axis, split=list(sizes)))
        return outs

    def constant(self, value: Array) -> str:
        """An initialiser, or one of the `deferred` weights."""
        name = f"{self.name}/constant_{len(self.graph.initializer) + len(self.large) + len(self.deferred)}"
        if isinstance(value, Deferred):
            self.deferred[name] = value
        else:
            self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def value(self, i: int) -> np.ndarray | None:
        """The value of input `i`, if the input is a constant."""
        found = self.weight(i)
        return None if found is None else np.asarray(found)

    def weight(self, i: int) -> Array | None:
        """As `value`, not made where the definition defers."""
        if self.input(i) in self.large:
            found = self.large[self.input(i)]
            return found if self.defers else np.asarray(found)
        tensor = next((tensor for tensor in self.graph.initializer if tensor.name == self.input(i)), None)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def real(self, i: int, axis: int | None = None, scale: str | None = None) -> str:
        """Input `i` dequantised by the next two inputs, its scale and zero point."""
        return self.dequantised(self.input(i), self.input(i + 1), self.input(i + 2), axis)

    def dequantised(self, data: str, scale: str, zero: str, axis: int | None = None) -> str:
        return self.emit("DequantizeLinear", [data, scale, zero], **({} if axis is None else {"axis": axis}))

    def quantise(self, data: str, scale: str, zero: str, axis: int | None = None) -> None:
        """The quantised result of the node."""
        if not zero:  # of the type of the other zero points, or of unsigned 8 bits, which is the default
            known = {self.types[name] for name in self.node.input if self.types.get(name) in _EIGHT_BITS}
            if known == {TensorProto.INT8}:
                zero = self.constant(np.int8(0))
        axis_given = {} if axis is None else {"axis": axis}
        self.emit("QuantizeLinear", [data, scale, zero], self.node.output[0], **axis_given)

    def product(self, left: str, right: str, bias: int) -> None:
        """The result of the node: a product of matrices, plus input `bias` if there is one."""
        if self.input(bias):
            self.emit("Add", [self.emit("MatMul", [left, right]), self.input(bias)], self.node.output[0])
        else:
            self.emit("MatMul", [left, right], self.node.output[0])

    def refuse(self, reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"node {self.name!r} ({title(self.node)}): {reason}")


# Writes the nodes of a definition.
Define = Callable[[Definition], None]
