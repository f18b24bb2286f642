"""Random numbers that make no difference become zeros: exporters of speech leave them in with a noise scale of 0.

    Add(m, Mul(Mul(RandomNormalLike(m), Exp(s)), 0))    →    Add(m, Mul(Mul(0, Exp(s)), 0))
    RandomNormal(mean=m, scale=0)                       →    m
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from flexcomp.frontend.domains import DEFAULT, RANDOM, all_nodes
from flexcomp.frontend.quantised.writer import Writer

# Operator → the inputs that may be random: the result is 0 where they are, and finite where they are.
_LINEAR: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Cast", "Identity", "Neg", "Transpose"), (0,)),
    **dict.fromkeys(("Div", "Expand", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"), (0,)),
    "Mul": (0, 1),
}
_ONLY_SHAPE = ("Shape", "Size")


def silence_noise(model: onnx.ModelProto) -> bool:
    """Replace random numbers of the outermost graph that are always the same or multiplied by 0; whether there were any."""
    if not any(node.op_type in RANDOM and node.domain in DEFAULT for node in model.graph.node):
        return False
    return _Silencer(model).rewrite()


class _Silencer(Writer):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in {*node.input}:
                self.readers.setdefault(name, []).append(node)
        inner = [g for node in self.graph.node for a in node.attribute for g in (a.g, *a.graphs)]
        # Read where no rule looks.
        self.open = {output.name for graph in (self.graph, *inner) for output in graph.output}
        self.open |= {name for graph in inner for node in all_nodes(graph) for name in node.input}

    def rewrite(self) -> bool:
        changed = False
        for node in self.graph.node:
            value = self._always(node) if node.domain in DEFAULT and node.op_type in RANDOM else None
            if value is None or node.output[0] not in self.types:
                self.nodes.append(node)
                continue
            element, shape = self.types[node.output[0]]
            self.name, changed = node.output[0], True
            fill = self.constant(np.array(value, helper.tensor_dtype_to_np_dtype(element)))
            self.nodes.append(helper.make_node("Expand", [fill, self.constant(np.int64(shape))], node.output, self.name))
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        return changed

    def _always(self, node: onnx.NodeProto) -> float | None:
        """A value that a random operator may as well give every time."""
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type.startswith("RandomNormal") and given.get("scale", 1.0) == 0:
            return given.get("mean", 0.0)
        if node.op_type.startswith("RandomUniform") and given.get("low", 0.0) == given.get("high", 1.0):
            return given.get("low", 0.0)
        return 0.0 if node.op_type.startswith("Random") and self._is_silent(node.output[0]) else None

    def _is_silent(self, name: str) -> bool:
        """Whether it reaches no result but through a product with 0."""
        if name in self.open:
            return False
        for node in self.readers.get(name, []):
            at = [i for i, given in enumerate(node.input) if given == name]
            if node.domain not in DEFAULT or not set(at) <= set(_LINEAR.get(node.op_type, ())):
                if node.domain in DEFAULT and node.op_type in _ONLY_SHAPE:
                    continue
                return False
            if node.op_type == "Mul" and any(self._is_zero(other) for other in node.input if other != name):
                continue
            if not all(self._is_silent(out) for out in node.output if out):
                return False
        return True

    def _is_zero(self, name: str) -> bool:
        value = self.value(name)
        return value is not None and not value.any()
