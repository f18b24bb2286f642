"""Merged decoders: of an If on one of the network's inputs, the branch that reads the network's state is the network.

    If(use_cache_branch; with past: reads past_key_values, without: does not)      →      with past

Inputs that only the condition or the other branch reads are gone, and so are outputs for which the branch has empty constants.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import helper, numpy_helper

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.fold import read_inside

_ATTRIBUTES = ("then_branch", "else_branch")


def take_cache_branch(model: onnx.ModelProto, read: Collection[str], reads: bool = True) -> None:
    """Replace an If of the outermost graph by its branch that reads states, inputs named in `read`, or by the one that does not.

    Changes `model`.
    """
    graph = model.graph
    inputs = {port.name for port in graph.input} - {tensor.name for tensor in graph.initializer}
    for node in [one for one in graph.node if one.domain in DEFAULT and one.op_type == "If" and one.input[0] in inputs]:
        branches = {a.name: a.g for a in node.attribute if a.name in _ATTRIBUTES}
        reading = [branch for branch in branches.values() if _names(branch) & set(read)]
        if len(reading) == 1:
            _take(graph, node, next(one for one in branches.values() if (one is reading[0]) == reads))


def _names(graph: onnx.GraphProto) -> set[str]:
    """Names that a graph and the graphs in it read."""
    return {name for node in graph.node for name in node.input} | read_inside([*graph.node]) | {o.name for o in graph.output}


def _take(graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto) -> None:
    before = _names(graph)
    ends = [
        helper.make_node("Identity", [made.name], [name], f"{node.name}/{name}")
        for made, name in zip(branch.output, node.output, strict=True)
        if name and made.name != name
    ]
    nodes = [inner for one in graph.node for inner in ([*branch.node, *ends] if one is node else [one])]
    nodes = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    weights = [onnx.TensorProto.FromString(one.SerializeToString()) for one in branch.initializer]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(weights)
    empty = _empty(graph) & set(node.output)
    _keep(graph.output, lambda name: name not in empty)
    unread = before - _names(graph)
    _keep(graph.input, lambda name: name not in unread)


def _empty(graph: onnx.GraphProto) -> set[str]:
    """Constants without elements, and their copies."""
    found = {tensor.name for tensor in graph.initializer if not np.prod(tensor.dims)}
    for node in graph.node:
        values = [a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"]
        is_copy = node.op_type == "Identity" and node.input[0] in found
        if is_copy or any(not numpy_helper.to_array(value).size for value in values):
            found.update(node.output)
    return found


def _keep(ports, wanted) -> None:
    kept = [onnx.ValueInfoProto.FromString(port.SerializeToString()) for port in ports if wanted(port.name)]
    del ports[:]
    ports.extend(kept)
