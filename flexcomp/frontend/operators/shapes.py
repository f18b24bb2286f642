"""Operators that change a tensor's shape."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node


def _expand(node: Node) -> relax.Expr:
    """The importer takes a shape that is a weight for one that is computed."""
    shape = np.broadcast_shapes(node.shape, tuple(int(d) for d in node.value(1)))
    return node.data if shape == node.shape else op.broadcast_to(node.data, shape)


def _unsqueeze(node: Node) -> relax.Expr | None:
    """ONNX's own function bodies give a single axis as a scalar, which the importer does not take."""
    axes = node.value(1)
    if axes is None or axes.ndim:
        return None
    return op.expand_dims(node.data, int(axes))


CONVERTERS: dict[str, Converter] = {"Expand": _expand, "Unsqueeze": _unsqueeze}
