"""Large weights stand aside while an ONNX model is simplified.

Simplification serialises the model and copies its weights again and again: of GPT-2's import that was more than half. What it
folds are shapes and other small constants, so it need not see large weights: inputs of the same type stand in for them.
"""

from __future__ import annotations

import math

import onnx

_LEAST_ELEMENTS = 1 << 18
_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def set_aside(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Replace large initialisers by inputs, and return them."""
    large = [t for t in graph.initializer if t.data_type in _TYPES and math.prod(t.dims) >= _LEAST_ELEMENTS]
    names = {t.name for t in large}
    small = [t for t in graph.initializer if t.name not in names]
    listed = {i.name for i in graph.input}  # old files list initialisers as inputs as well
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large if t.name not in listed
    )
    del graph.initializer[:]
    graph.initializer.extend(small)
    return large


def put_back(graph: onnx.GraphProto, large: list[onnx.TensorProto]) -> None:
    """Undo `set_aside`; in a simplified graph, only what it still reads comes back."""
    names = {t.name for t in large}
    kept = [i for i in graph.input if i.name not in names]
    read = _names_read(graph)
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(t for t in large if t.name in read)


def _names_read(graph: onnx.GraphProto) -> set[str]:
    names = {output.name for output in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= _names_read(inner)
    return names
