"""A graph on its way: nodes, inputs with values, initialisers, and the types of all tensors as far as they are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flexcomp.errors import ModelError
from flexcomp.frontend.schemas import require_nodes

DOMAINS = {"ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "ai.onnx.training": 1}


@dataclass
class Tensor:
    """A value of the graph; its shape is None where it is not known."""

    name: str
    kind: int  # element type
    shape: tuple[int, ...] | None


@dataclass
class Graph:
    """What is drawn: `model` makes ONNX of it."""

    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)  # element types of inputs and initialisers
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)

    def add(self, kind: int, value: np.ndarray, constant: bool) -> Tensor:
        """A new input or initialiser."""
        name = f"v{len(self.kinds)}"
        (self.constants if constant else self.inputs)[name] = value
        self.kinds[name] = kind
        return Tensor(name, kind, value.shape)

    def model(self) -> onnx.ModelProto:
        """The graph as a model; outputs are of unknown shape."""
        inputs = [helper.make_tensor_value_info(n, self.kinds[n], v.shape) for n, v in self.inputs.items()]
        outputs = [helper.make_tensor_value_info(t.name, t.kind, None) for t in self.outputs]
        constants = [as_tensor(n, self.kinds[n], v) for n, v in self.constants.items()]
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(*item) for item in DOMAINS.items())]
        graph = helper.make_graph(self.nodes, "drawn", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def as_tensor(name: str, kind: int, value: np.ndarray) -> TensorProto:
    """An initialiser."""
    if kind == TensorProto.STRING:
        return helper.make_tensor(name, kind, value.shape, [b"text"] * value.size)
    return numpy_helper.from_array(np.asarray(value), name)


def is_safe(graph: onnx.GraphProto) -> bool:
    """Whether ONNX's inference, which does not look at all attributes, reads no memory of others."""
    try:
        require_nodes(graph)
    except ModelError:
        return False
    return True


def inferred(graph: Graph, node: onnx.NodeProto, schema: onnx.defs.OpSchema, given: list[Tensor]) -> list[Tensor] | None:
    """The node's results, by ONNX's own inference; None where it finds the node wrong, or should."""
    if not is_safe(helper.make_graph([node], "", [], [])):
        return None
    types = {t.name: helper.make_tensor_type_proto(t.kind, t.shape) for t in given}
    data = {t.name: as_tensor(t.name, t.kind, graph.constants[t.name]) for t in given if t.name in graph.constants}
    imports = [helper.make_opsetid("", graph.opset), *(helper.make_opsetid(*item) for item in DOMAINS.items())]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except (RuntimeError, ValueError, TypeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    results = []
    for name in node.output:
        kind = found.get(name)
        if not name or kind is None or not kind.HasField("tensor_type"):
            continue
        tensor = kind.tensor_type
        if any(d.dim_value < 0 for d in tensor.shape.dim):  # ONNX's inference ends the process at a Slice of it
            return None
        known = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
        results.append(Tensor(name, tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim) if known else None))
    return results
