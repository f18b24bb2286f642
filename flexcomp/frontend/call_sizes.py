"""How large calls of a model's own functions become, before any of them is written out."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from flexcomp.errors import ModelError
from flexcomp.frontend.allowance import Allowance, count_nodes
from flexcomp.frontend.domains import all_nodes

Key = tuple[str, str, str]  # domain, name, overload


def take_for_calls(model: onnx.ModelProto, allowance: Allowance) -> None:
    """Draw for functions that are called more than once: one copy of each is there already.

    Raises UnsupportedModelError for a call in the graph that is too much, ModelError for a function that calls itself.
    """
    sizes = _Sizes({(f.domain, f.name, f.overload): f for f in model.functions})
    there: set[Key] = set()
    for node in all_nodes(model.graph):
        key = (node.domain, node.op_type, node.overload)
        if key not in sizes.functions:
            continue
        new = sizes.reached(key) - there
        there |= new
        nodes, nbytes = sizes.whole(key)
        own = [sizes.own(each) for each in new]
        allowance.take(
            node,
            f"functions that call each other, with {nodes} operators,",
            nodes - sum(count for count, _ in own),
            nbytes - sum(count for _, count in own),
        )


class _Sizes:
    """Nodes and bytes of functions."""

    def __init__(self, functions: Mapping[Key, onnx.FunctionProto]) -> None:
        self.functions = functions
        self._graphs = {key: onnx.GraphProto(node=function.node) for key, function in functions.items()}
        keys = {key: [(n.domain, n.op_type, n.overload) for n in all_nodes(graph)] for key, graph in self._graphs.items()}
        self._calls = {key: [called for called in read if called in functions] for key, read in keys.items()}
        self._own = {key: (count_nodes(graph), graph.ByteSize()) for key, graph in self._graphs.items()}
        self._whole: dict[Key, tuple[int, int]] = {}

    def own(self, key: Key) -> tuple[int, int]:
        """Of the function alone."""
        return self._own[key]

    def whole(self, key: Key) -> tuple[int, int]:
        """Of a call, with all that the function calls written out."""
        path = [key]  # functions may call each other in longer chains than Python's stack holds
        while path and key not in self._whole:
            calls = self._calls[path[-1]]
            missing = next((called for called in calls if called not in self._whole), None)
            if missing is None:
                parts = [self._own[path[-1]], *(self._whole[called] for called in calls)]
                self._whole[path.pop()] = sum(nodes for nodes, _ in parts), sum(nbytes for _, nbytes in parts)
            elif missing in path:
                raise ModelError(f"the model's function {missing[0]}.{missing[1]} calls itself: it has no end")
            else:
                path.append(missing)
        return self._whole[key]

    def reached(self, key: Key) -> set[Key]:
        """The function, and all that it calls."""
        found, ahead = {key}, [key]
        while ahead:
            new = set(self._calls[ahead.pop()]) - found
            found |= new
            ahead += new
        return found
