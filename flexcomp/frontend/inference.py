"""ONNX's own shape inference, for what is decided before the import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import onnx

from flexcomp.errors import ModelError
from flexcomp.frontend.extents import require_extents, require_known_extents
from flexcomp.frontend.schemas import require_element_types, require_nodes

PROTOBUF_LIMIT = 2**31  # bytes: larger models cannot be serialised, which ONNX's tools do
_LONGEST = 1 << 21  # elements of one axis whose values ONNX's inference may follow: it notes each, in 200 bytes
_LARGE_NBYTES = 1 << 16  # of floats that are certainly no scales or bounds, which rules of operators read
_REASON = re.compile(r"\(op_type:(\w+)(?:, node name: (.*?))?\): ")
_FOREIGN = re.compile(r"\[(Shape|Type)InferenceError\]|Inference error\(s\):")

# An ONNX element type and a shape of numbers.
StaticType = tuple[int, tuple[int, ...]]


def infer_shapes(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """As `onnx.shape_inference.infer_shapes`, with values followed unless this would take much memory."""
    with _without_weights(model) as weights:
        found = onnx.shape_inference.infer_shapes(model, **options)
        shapes = (kind.tensor_type.shape.dim for kind in types(found.graph).values())
        if not any(len(dims) == 1 and dims[0].dim_value > _LONGEST for dims in shapes):
            found = onnx.shape_inference.infer_shapes(model, **options, data_prop=True)
    for place, data in weights.items():
        found.graph.initializer[place].raw_data = data
    return found


@contextmanager
def _without_weights(model: onnx.ModelProto) -> Iterator[dict[int, bytes]]:
    """The data of weights by their places, taken out of the model meanwhile: inference reads none, and copied all each time."""
    weights = {
        place: tensor.raw_data
        for place, tensor in enumerate(model.graph.initializer)
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.raw_data) >= _LARGE_NBYTES
    }
    for place in weights:
        model.graph.initializer[place].ClearField("raw_data")
    try:
        yield weights
    finally:
        for place, data in weights.items():
            model.graph.initializer[place].raw_data = data


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with what can be inferred; as it is, where its shapes contradict each other (the import tells where)."""
    try:
        return infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model.graph


def inferred_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with inferred shapes. Raises ModelError."""
    try:
        return infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        words = " ".join(str(error).split())
        raise ModelError(f"the shapes in the model contradict each other: {words}") from None


def forget_shapes(graph: onnx.GraphProto) -> None:
    """Leave of declared results the element types of outputs only."""
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")


def require_consistent(model: onnx.ModelProto) -> None:
    """Raise ModelError with the node that ONNX's definitions do not allow: its attributes, types or shapes.

    Declared shapes of results are not asked: exporters leave old ones in a file.
    """
    require_nodes(model.graph)
    if model.ByteSize() >= PROTOBUF_LIMIT:
        return
    asked = onnx.ModelProto.FromString(model.SerializeToString())
    for node in asked.graph.node:
        node.name = node.name or next((name for name in node.output if name), "")
    forget_shapes(asked.graph)
    try:
        require_extents(asked, infer_shapes)
        found = _strictly_inferred(asked)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        place = _placed(error)
        if place is not None:
            raise ModelError(f"{place}: ONNX's definition of the operator does not allow this") from None
        return
    require_known_extents(found.graph)


def _strictly_inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all types and shapes. Raises an error of ONNX's where its definitions do not allow them.

    Element types that an operator got in a later opset are allowed, as bfloat16 is for Conv in opset 17.
    """
    try:
        return infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        if "has unsupported type" not in str(error):
            raise
        found = infer_shapes(model, check_type=False, strict_mode=True)
        require_element_types(found.graph, types(found.graph))
        return found


def _placed(error: Exception) -> str | None:
    """The first reason that ONNX's inference gives, with its node, in one line.

    None if that lies in a function body of ONNX's own, which may not fit the model's opset.
    """
    reasons = _REASON.split(" ".join(str(error).split()))
    if len(reasons) < 4:
        return reasons[0]
    kind, node, reason = reasons[1:4]
    words = _FOREIGN.sub("", reason).strip(" .")
    return f"node {node!r} ({kind}): {words}" if words else None


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
