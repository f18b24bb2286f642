"""What tensors may hold: numbers of whole bytes that kernels can be generated for."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import title
from flexcomp.frontend.inference import infer, types

KNOWN = frozenset(
    (
        TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL,
        TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
        TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
    )
)  # fmt: skip


def require_known_types(model: onnx.ModelProto) -> None:
    """Raise UnsupportedModelError that names an input, weight or node of another type: narrow ones, strings, sequences."""
    found = types(infer(model))
    for info in model.graph.input:
        if problem := _problem(found.get(info.name)):
            raise UnsupportedModelError(f"input {info.name!r} {problem}")
    for node in model.graph.node:
        for name in node.output:
            if problem := _problem(found.get(name)):
                raise UnsupportedModelError(
                    f"node {node.name or name!r} ({title(node)}): result {name!r} {problem}"
                )
    read = {name for node in model.graph.node for name in node.input} | {output.name for output in model.graph.output}
    for tensor in model.graph.initializer:
        if tensor.name in read and (problem := _problem(found[tensor.name])):
            raise UnsupportedModelError(f"weight {tensor.name!r} {problem}")


def _problem(kind: onnx.TypeProto | None) -> str:
    """Why a value of this type cannot be compiled, and the way out; empty if it can, or nothing is known about it."""
    if kind is None or kind.WhichOneof("value") is None:
        return ""
    if not kind.HasField("tensor_type"):
        what = kind.WhichOneof("value").removesuffix("_type")
        return f"is no tensor but of kind {what}, which cannot be compiled; export the network with tensors in its place"
    element = kind.tensor_type.elem_type
    if element in KNOWN or element == TensorProto.UNDEFINED:
        return ""
    name = TensorProto.DataType.Name(element).lower()
    return f"holds {name}, which cannot be compiled; export the network with float32 in its place"
