"""Ranges of constants: simplification and import write them out, so their size is bounded before."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import DEFAULT, title
from flexcomp.frontend.operators.shapes import range_excess


def require_countable(graph: onnx.GraphProto) -> None:
    """Raise UnsupportedModelError for a Range of constants that is too long, by its node."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Range" and node.domain in DEFAULT and all(name in known for name in node.input):
            values = [numpy_helper.to_array(known[name]) for name in node.input]
            if all(value.size == 1 for value in values) and (reason := range_excess(*values)):
                raise UnsupportedModelError(f"node {node.name or node.output[0]!r} ({title(node)}): {reason}")
