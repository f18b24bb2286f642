"""Bounds that QuantizeLinear's own range implies are removed: Relu and Clip in front of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from flexcomp.frontend.domains import DEFAULT

_RANGES = {TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127)}


def remove_bounds(graph: onnx.GraphProto) -> None:
    """Q(Relu(x), s, 0) → Q(x, s, 0), for unsigned Q, and Clip likewise, where nothing else reads them. Changes `graph`."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    read = Counter(name for node in graph.node for name in node.input) + Counter(o.name for o in graph.output)
    makers = {name: node for node in graph.node for name in node.output}
    gone = []
    for node in graph.node:
        bound = makers.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if bound is None or bound.domain not in DEFAULT or read[node.input[0]] != 1:
            continue
        limits, results = _limits(bound, constants), _results(node, constants)
        if limits is not None and results is not None and limits[0] <= results[0] and results[1] <= limits[1]:
            node.input[0] = bound.input[0]
            gone.append(bound)
    for node in gone:
        graph.node.remove(node)


def _limits(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> tuple[float, float] | None:
    """Between what a node keeps its input, if that is all it does."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    if node.op_type != "Clip":
        return None
    bounds = {a.name: a.f for a in node.attribute}
    for key, name in zip(("min", "max"), node.input[1:], strict=False):
        if name and name not in constants:
            return None
        if name:
            bounds[key] = numpy_helper.to_array(constants[name]).item()
    return bounds.get("min", float("-inf")), bounds.get("max", float("inf"))


def _results(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> tuple[float, float] | None:
    """The smallest and the largest number that a QuantizeLinear can stand for."""
    scale, zero = (constants.get(name) for name in (*node.input[1:], "", "")[:2])
    kind = TensorProto.UINT8 if zero is None and len(node.input) < 3 else zero.data_type if zero is not None else None
    if scale is None or kind not in _RANGES or np.prod(scale.dims) != 1:
        return None
    offset = 0 if zero is None else int(numpy_helper.to_array(zero).reshape(-1)[0])
    factor = float(numpy_helper.to_array(scale).reshape(-1)[0])
    return tuple((end - offset) * factor for end in _RANGES[kind])
