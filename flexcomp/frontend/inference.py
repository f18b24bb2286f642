"""ONNX's own shape inference, for what is decided before the import."""

from __future__ import annotations

import onnx

# An ONNX element type and a shape of numbers.
StaticType = tuple[int, tuple[int, ...]]


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with what can be inferred; as it is, where its shapes contradict each other (the import tells where)."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model.graph


def types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Types of inputs, outputs, weights and what is between, as far as the graph says."""
    found = {info.name: info.type for info in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return found


def static_types(graph: onnx.GraphProto) -> dict[str, StaticType]:
    """Types of the tensors whose shapes are numbers."""
    return {
        name: (kind.tensor_type.elem_type, tuple(d.dim_value for d in kind.tensor_type.shape.dim))
        for name, kind in types(graph).items()
        if kind.tensor_type.HasField("shape")
        and kind.tensor_type.elem_type != onnx.TensorProto.UNDEFINED
        and all(d.HasField("dim_value") for d in kind.tensor_type.shape.dim)
    }
