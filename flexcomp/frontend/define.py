"""Operators that are replaced by their definitions before all else: those on quantised tensors, and those of com.microsoft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from flexcomp.deferred import Array
from flexcomp.frontend import contrib
from flexcomp.frontend.definition import MICROSOFT, Define, Definition
from flexcomp.frontend.domains import DEFAULT, all_nodes
from flexcomp.frontend.large_weights import leave_out_unread, set_aside_since
from flexcomp.frontend.quantised import OF_MICROSOFT, OF_ONNX, widen_four_bits

_OF_MICROSOFT = {**OF_MICROSOFT, **contrib.DEFINITIONS}


def define_operators(model: onnx.ModelProto, large: dict[str, Array]) -> None:
    """Replace operators by their definitions, in subgraphs too. Changes `model`; `large` weights gain those of definitions.

    Raises UnsupportedModelError for what has no definition here.
    """
    opset = next((o.version for o in model.opset_import if o.domain in DEFAULT), 1)
    _tell_apart(all_nodes(model.graph))
    _define(model.graph, opset, large, is_outermost=True)
    leave_out_unread(model.graph, large)
    contrib.define_by_shape(model, opset)


def _tell_apart(nodes: Iterable[onnx.NodeProto]) -> None:
    """Nodes that share a name, against ONNX's rules, get names of their own: tensors of definitions are named after nodes."""
    taken: set[str] = set()
    for node in nodes:
        name = first = node.name or next(filter(None, node.output), "")
        number = 1
        while name in taken:
            name, number = f"{first}_{number}", number + 1
        taken.add(name)
        if name != first:
            node.name = name


def _define(graph: onnx.GraphProto, opset: int, large: dict[str, Array], is_outermost: bool = False) -> None:
    widen_four_bits(graph)
    if any(_definition(node) for node in graph.node):
        types = {tensor.name: tensor.data_type for tensor in graph.initializer}
        written = []
        for node in graph.node:
            define, begin = _definition(node), len(graph.initializer)
            if define is None:
                written.append(node)
                continue
            made = Definition(node, graph, types, opset, large=large, defers=is_outermost)
            define(made)
            written += made.nodes
            if is_outermost:
                set_aside_since(graph, begin, made.deferred, large)
        del graph.node[:]
        graph.node.extend(written)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _define(inner, opset, large)


def _definition(node: onnx.NodeProto) -> Define | None:
    if node.domain in DEFAULT:
        return OF_ONNX.get(node.op_type)
    return _OF_MICROSOFT.get(node.op_type) if node.domain == MICROSOFT else None


def defined() -> Iterator[onnx.NodeProto]:
    """A node of each operator that is defined here."""
    for domain, kinds in (("", OF_ONNX), (MICROSOFT, {**_OF_MICROSOFT, **contrib.DEFINED_BY_SHAPE})):
        for kind in kinds:
            yield onnx.NodeProto(domain=domain, op_type=kind)
