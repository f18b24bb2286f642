"""Many graphs as one model: disconnected parts, whose names are kept apart. One build and one library serve all of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx


def mark(index: int) -> str:
    """The beginning of all names of a part."""
    return f"g{index}_"


def together(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """One model of these, which are of one opset; part i has its names marked."""
    result = onnx.ModelProto(ir_version=10)
    result.graph.name = "joint"
    imports = {}
    for index, model in enumerate(models):
        imports |= {o.domain: o.version for o in model.opset_import}
        part = onnx.compose.add_prefix_graph(model.graph, mark(index), rename_nodes=True, rename_edges=True)
        result.graph.node.extend(part.node)
        result.graph.input.extend(part.input)
        result.graph.output.extend(part.output)
        result.graph.initializer.extend(part.initializer)
        for node in result.graph.node:
            node.name = node.name or node.output[0]
    result.opset_import.extend(onnx.helper.make_opsetid(*item) for item in imports.items())
    return result


def key(model: onnx.ModelProto) -> tuple[tuple[str, int], ...]:
    """Models of equal keys can be put together."""
    return tuple(sorted((o.domain, o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")))
