"""Indices in branches that both run: those of the branch that is not chosen may be anything, and are 0.

    Gather(table, i), of the branch for c      →      Gather(table, Where(c, i, i - i))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.operators.indexing import index_input


@dataclass(frozen=True)
class Choice:
    """A branch that is written out next to another."""

    prefix: str  # of the names of its nodes
    condition: str  # a tensor: whether the network chooses this branch


def quieten(model: onnx.ModelProto, choices: Sequence[Choice]) -> None:
    """Let branches that are not chosen have indices inside of their axes. Known indices stay. Changes `model`."""
    known = {tensor.name for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        at = index_input(node.op_type) if node.domain in DEFAULT else None
        if at is not None and len(node.input) > at and node.input[at] and node.input[at] not in known:
            for i, choice in enumerate(one for one in choices if node.name.startswith(one.prefix)):
                given, made = node.input[at], f"{node.name}/chosen_{i}"
                nodes.append(helper.make_node("Sub", [given, given], [f"{made}/none"], name=f"{made}/none"))
                nodes.append(helper.make_node("Where", [choice.condition, given, f"{made}/none"], [made], name=made))
                node.input[at] = made
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
