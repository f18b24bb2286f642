"""What a graph says of its tensors: types, shapes, and values as far as an oracle computes them."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from tests.fuzz.models import oracle
from tests.fuzz.models.oracle import Outputs

# What one more is in the last bit of 1.
EPSILONS = {
    TensorProto.FLOAT: 2.0**-23, TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7, TensorProto.DOUBLE: 2.0**-52,
}  # fmt: skip


def inferred_graph(model: onnx.ModelProto) -> onnx.GraphProto | None:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        return None


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    found = {info.name: info.type.tensor_type.elem_type for info in (*graph.input, *graph.value_info, *graph.output)}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def known_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the values whose extents are all known."""
    found = {}
    for info in (*graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if info.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[info.name] = tuple(dim.dim_value for dim in dims)
    return found


def values_of(model: onnx.ModelProto, inputs: Outputs, names: list[str]) -> Outputs:
    """Values of tensors, as far as an oracle knows them."""
    weights = {t.name: t for t in model.graph.initializer}
    found = {name: inputs[name] for name in names if name in inputs}
    found |= {
        name: onnx.numpy_helper.to_array(weights[name]) for name in names if name in weights and name not in found
    }
    if missing := [name for name in names if name not in found]:
        asked = onnx.ModelProto.FromString(model.SerializeToString())
        del asked.graph.output[:]
        asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in missing)
        found |= oracle.by_onnxruntime(asked.SerializeToString(), inputs) or oracle.by_reference(asked, inputs) or {}
    return found
