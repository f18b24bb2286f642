"""Control flow that was not written out, because its course depends on the network's inputs: refused, with these inputs."""

from __future__ import annotations

import onnx

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import DEFAULT, all_nodes

_DECIDED_BY = {"If": slice(0, 1), "Loop": slice(0, 2), "Scan": slice(0, 0)}  # the inputs of a node that say what runs


def require_known_course(graph: onnx.GraphProto) -> None:
    """Raise UnsupportedModelError for control flow that is left."""
    for node in graph.node:
        if node.op_type not in _DECIDED_BY or node.domain not in DEFAULT:
            continue
        place = f"node {node.name or next(o for o in node.output if o)!r} ({node.op_type})"
        decided = [name for name in node.input[_DECIDED_BY[node.op_type]] if name]
        inputs = _read(graph, decided) or (_read(graph, [*node.input]) if node.op_type == "Loop" else [])
        if not inputs:
            raise UnsupportedModelError(f"{place}: it cannot be known what it runs: export the network without it")
        listed = " and ".join(map(repr, inputs))
        is_if = node.op_type == "If"
        course = "its condition" if is_if else "how often it runs"
        why = ", for its branches have results of different shapes" if is_if else ""
        raise UnsupportedModelError(
            f"{place}: {course} depends on the network's input {listed}, and must be known when the network is built{why}: "
            f"give the input {listed} a value, input_values={{{inputs[0]!r}: …}}"
        )


def _read(graph: onnx.GraphProto, names: list[str]) -> list[str]:
    """The graph's inputs on whose values these tensors depend, in order."""
    makers = {out: node for node in graph.node for out in node.output}
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in makers:
            inner = [g for a in makers[name].attribute for g in (a.g, *a.graphs)]
            waiting += [*makers[name].input, *(i for g in inner for node in all_nodes(g) for i in node.input)]
    return [i.name for i in graph.input if i.name in found]
