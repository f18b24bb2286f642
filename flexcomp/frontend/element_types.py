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
_WAY_OUT = "export the network with float32 in its place"


def require_known_types(model: onnx.ModelProto) -> None:
    """Raise UnsupportedModelError that names an input, weight or node of another type: narrow ones, strings, sequences."""
    found = types(infer(model))
    for info in model.graph.input:
        if problem := _problem(found.get(info.name)):
            raise UnsupportedModelError(f"input {info.name!r} {problem}; {_WAY_OUT}")
    for node in model.graph.node:
        for name in node.output:
            if problem := _problem(found.get(name)):
                raise UnsupportedModelError(
                    f"node {node.name or name!r} ({title(node)}): result {name!r} {problem}; {_WAY_OUT}"
                )
    read = {name for node in model.graph.node for name in node.input}
    for tensor in model.graph.initializer:
        if tensor.name in read and (problem := _problem(found[tensor.name])):
            raise UnsupportedModelError(f"weight {tensor.name!r} {problem}; {_WAY_OUT}")


def _problem(kind: onnx.TypeProto | None) -> str:
    """Why a value of this type cannot be compiled; empty if it can, or nothing is known about it."""
    if kind is None or kind.WhichOneof("value") is None:
        return ""
    if not kind.HasField("tensor_type"):
        return f"is no tensor but of kind {kind.WhichOneof('value').removesuffix('_type')}"
    element = kind.tensor_type.elem_type
    if element in KNOWN or element == TensorProto.UNDEFINED:
        return ""
    return f"holds {TensorProto.DataType.Name(element).lower()}, which cannot be compiled"
