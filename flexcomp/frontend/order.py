"""Nodes in an order in which each stands after those that make its inputs, as ONNX asks and not every tool writes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import onnx

from flexcomp.errors import ModelError


def sort_nodes(model: onnx.ModelProto) -> None:
    """Sort the nodes of the graph, of graphs inside it, and of functions. Changes `model`; what is sorted stays as it is.

    Raises ModelError for nodes that need each other's results.
    """
    for part in (model.graph, *model.functions):
        _sort(part)


def _sort(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    for node in graph.node:
        for inner in _inner(node):
            _sort(inner)
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needed = [{makers[name] for name in _reads(node) if name in makers} for node in graph.node]
    if all(max(before, default=-1) < i for i, before in enumerate(needed)):
        return
    nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in _order(graph, needed)]
    del graph.node[:]
    graph.node.extend(nodes)


def _order(graph: onnx.GraphProto | onnx.FunctionProto, needed: list[set[int]]) -> list[int]:
    """Positions of the nodes; among those that can follow the first in the file does."""
    readers: Mapping[int, list[int]] = {i: [] for i in range(len(needed))}
    for i, before in enumerate(needed):
        for maker in before:
            readers[maker].append(i)
    missing = [len(before) for before in needed]
    ready = [i for i, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(needed):
        raise ModelError(f"{_cycle(graph, needed, set(order))} need each other's results: export the model again")
    return order


def _cycle(graph: onnx.GraphProto | onnx.FunctionProto, needed: list[set[int]], placed: set[int]) -> str:
    """The nodes of a cycle, as a message names them."""
    path = [next(i for i in range(len(needed)) if i not in placed)]
    while (before := min(needed[path[-1]] - placed)) not in path:
        path.append(before)
    nodes = [graph.node[i] for i in sorted(path[path.index(before) :])]
    shown = ", ".join(f"{node.name or next(iter(node.output), '')!r} ({node.op_type})" for node in nodes[:4])
    return f"nodes {shown}{' and others' if len(nodes) > 4 else ''}"


def _inner(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, those of the outer graph in its inner graphs included."""
    names = set(node.input)
    for graph in _inner(node):
        own = {name for inner in graph.node for name in inner.output}
        own |= {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
        read = {output.name for output in graph.output}.union(*map(_reads, graph.node))
        names |= read - own
    return names
