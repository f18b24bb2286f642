"""Which ONNX nodes the layers come from: a record in the library, and its reading.

The record is the program's metadata "nodes", a JSON object, unknown to the runtime:

    {"names": ["/features/conv1/Conv", …],     nodes, each once
     "layers": [0, 0, 1, -1, …]}               per layer of the program an index into names; -1: not from a node

Of a layer of several nodes the main one is named: the convolution, and not the activation that follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse, whole
from flexcomp.printable import printable

from .program import Program

KEY = "nodes"


def record(nodes: Sequence[str | None]) -> dict[str, str]:
    """The metadata of a program whose layers come from these nodes; none if none is known."""
    index = {name: i for i, name in enumerate(dict.fromkeys(name for name in nodes if name is not None))}
    if not index:
        return {}
    layers = [-1 if name is None else index[name] for name in nodes]
    return {KEY: json.dumps({"names": list(index), "layers": layers}, separators=(",", ":"), ensure_ascii=False)}


def read(program: Program) -> tuple[str | None, ...]:
    """For each layer of a program its node, where that is known. Raises ArtifactError if the record is malformed."""
    if KEY not in program.metadata:
        return (None,) * len(program.layers)
    try:
        facts = parse(program.metadata[KEY])
        names, layers = [printable(str(name)) for name in facts["names"]], [whole(index) for index in facts["layers"]]
        if len(layers) != len(program.layers) or not all(-1 <= index < len(names) for index in layers):
            raise ValueError("layers and nodes do not match")
        return tuple(names[index] if index >= 0 else None for index in layers)
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"the record of the ONNX nodes is malformed: {error}") from None


def titled(layer: str, node: str | None) -> str:
    """The name of a layer in a sentence: conv2d.13 (node /features/conv1/Conv)."""
    return f"{layer} (node {printable(node)})" if node else layer
