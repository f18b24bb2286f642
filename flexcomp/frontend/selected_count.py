"""The number of boxes that a NonMaxSuppression selects, for networks that return this number. Here the result has a fixed shape,
with rows of -1 after the selected boxes.

    y = NonMaxSuppression(…)            y = NonMaxSuppression(…)
    s = Shape(y)                  →     s = Concat(ReduceSum(Cast(Not(Less(y[:, :1], 0)))), [3])
    count = Gather(s, 0)                count = Gather(s, 0)

This is done for outputs of the network that are made of the shape only by choosing and moving its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.writer import Writer

_SUPPRESSION = "NonMaxSuppression"
_CHOOSING = ("Cast", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")  # of their first input
_AXES_ARE_INPUTS = 13  # opset from which on those of ReduceSum are
_LEAST_OPSET = 10  # the first with NonMaxSuppression, and Slice whose bounds are inputs


def count_selected(model: onnx.ModelProto) -> None:
    """Replace such shapes of the outermost graph. Changes `model`."""
    if any(node.domain in DEFAULT and node.op_type == _SUPPRESSION for node in model.graph.node):
        _Counter(model).rewrite()


class _Counter(Writer):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.makers = {name: node for node in self.graph.node for name in node.output if name}

    def rewrite(self) -> None:
        chains = {output.name: chain for output in self.graph.output if (chain := self._chain(output.name))}
        replaced = [chain[0].output[0] for chain in chains.values()]
        for node in self.graph.node:
            if node.output[0] not in replaced:
                self.nodes.append(node)
        for output, chain in chains.items():
            self.name = f"{output}/selected"
            value = self._shape(chain[-1])
            for link in reversed(chain[:-1]):
                copy = onnx.NodeProto.FromString(link.SerializeToString())
                copy.input[0], value = value, f"{self.name}/{len(self.nodes)}"
                copy.name = copy.output[0] = value
                self.nodes.append(copy)
            self.nodes.append(helper.make_node("Identity", [value], [output], f"{self.name}/count"))
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def _chain(self, output: str) -> list[onnx.NodeProto]:
        """The nodes from the one that makes an output back to the Shape of a NonMaxSuppression; none if an output is made
        otherwise.
        """
        found = []
        for node in self._back(output):
            found.append(node)
            if node.op_type == "Shape":
                maker = self.makers.get(node.input[0])
                return found if maker is not None and maker.op_type == _SUPPRESSION and self.opset >= _LEAST_OPSET else []
        return []

    def _back(self, name: str) -> Iterator[onnx.NodeProto]:
        while (node := self.makers.get(name)) is not None and node.domain in DEFAULT and node.op_type in (*_CHOOSING, "Shape"):
            yield node
            name = node.input[0]

    def _shape(self, node: onnx.NodeProto) -> str:
        """The result of the Shape node `node`, counted from the selected boxes."""
        first = self.emit("Slice", [node.input[0], *(self.constant(np.int64([n])) for n in (0, 1, 1))])
        is_padding = self.emit("Less", [first, self.constant(np.int64(0))])
        ones = self.emit("Cast", [self.emit("Not", [is_padding])], to=TensorProto.INT64)
        if self.opset >= _AXES_ARE_INPUTS:
            count = self.emit("ReduceSum", [ones, self.constant(np.int64([0, 1]))], keepdims=0)
        else:
            count = self.emit("ReduceSum", [ones], axes=[0, 1], keepdims=0)
        count = self.emit("Reshape", [count, self.constant(np.int64([1]))])
        bounds = {a.name: a.i for a in node.attribute}
        parts = [count, self.constant(np.int64([3]))][bounds.get("start", 0) : bounds.get("end")]
        return self.emit("Concat", parts, axis=0)
