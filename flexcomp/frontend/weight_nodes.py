"""Weights in blocks, which are inputs, as results of nodes while onnxslim works: it compares each input with each tensor.

    main(x, w, s), DequantizeLinear(w, s)      →      main(x, w), s = Weight0(w), DequantizeLinear(w, s)

A decoder has hundreds. Other weights stay inputs: patterns look at what reads these.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import helper

from flexcomp.frontend.domains import all_nodes

_DOMAIN = "flexcomp.weights"


def with_weight_nodes(model: onnx.ModelProto, large: Collection[str]) -> onnx.ModelProto:
    """A copy in which nodes make all of these weights but the first, of which they read nothing.

    Each is an operator of its own: onnxslim compares all nodes of one operator, too, to merge equal ones.
    """
    read_by_others = {
        name for node in all_nodes(model.graph) if node.op_type != "DequantizeLinear" for name in node.input
    } | {output.name for output in model.graph.output}
    weights = [info for info in model.graph.input if info.name in large and info.name not in read_by_others]
    if len(weights) < 2:
        return model
    nodes = [
        helper.make_node(f"Weight{i}", [weights[0].name], [info.name], info.name, domain=_DOMAIN)
        for i, info in enumerate(weights[1:])
    ]
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    graph = copy.graph
    graph.value_info.extend(weights[1:])
    made = {info.name for info in weights[1:]}
    kept, rest = [info for info in graph.input if info.name not in made], list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend(kept)
    graph.node.extend([*nodes, *rest])
    copy.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return copy


def without_weight_nodes(model: onnx.ModelProto, like: onnx.ModelProto) -> None:
    """These inputs are inputs again, as in the model that they come from. Changes `model`."""
    graph = model.graph
    names = {node.output[0] for node in graph.node if node.domain == _DOMAIN}
    graph.input.extend(info for info in like.graph.input if info.name in names)
    for field, kept in (
        (graph.node, [node for node in graph.node if node.domain != _DOMAIN]),
        (graph.value_info, [info for info in graph.value_info if info.name not in names]),
        (model.opset_import, [one for one in model.opset_import if one.domain != _DOMAIN]),
    ):
        del field[:]
        field.extend(kept)
