"""Nodes in the place of others, in the outermost graph of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.inference import StaticType, infer, static_types


class Writer:
    """What is known of a graph, and `nodes` that are written instead of its own, named after the one they stand for."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.opset = next(o.version for o in model.opset_import if o.domain in DEFAULT)
        self.types: dict[str, StaticType] = static_types(infer(model))
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.name = ""

    def value(self, name: str) -> np.ndarray | None:
        """A constant's; None if it is none."""
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def emit(self, kind: str, inputs: Sequence[str], **attributes) -> str:
        """Write a node; the name of its result."""
        out = f"{self.name}/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], out, **attributes))
        return out

    def constant(self, value: np.ndarray) -> str:
        """The name of a new constant."""
        name = f"{self.name}/constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name
