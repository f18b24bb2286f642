"""Operators whose definitions depend on the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.version_converter

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.contrib import attention, grouped, rotary
from flexcomp.frontend.definition import MICROSOFT, Define, Definition
from flexcomp.frontend.inference import infer, static_types


def _transposed_product(made: Definition) -> None:
    """FusedMatMul(A, B): alpha · A · B, with the last two axes of either turned."""
    if made.take("transBatchA", 0) or made.take("transBatchB", 0):
        raise made.refuse("it turns an axis of the batch: optimise the network less")
    operands, alpha = [], made.take("alpha", 1.0)
    for i, side in enumerate("AB"):
        rank = len(made.shape(i))
        order = [*range(rank - 2), rank - 1, rank - 2]
        is_turned = made.take(f"trans{side}", 0) and rank > 1
        operands.append(made.emit("Transpose", [made.input(i)], perm=order) if is_turned else made.input(i))
    product = made.emit("MatMul", operands, made.output(0) if alpha == 1 else None)
    if alpha != 1:
        made.emit("Mul", [product, made.constant(np.float32(alpha))], made.output(0))


DEFINITIONS: dict[str, Define] = {
    "Attention": attention.define,
    "FusedMatMul": _transposed_product,
    "GroupQueryAttention": grouped.define,
    "MultiHeadAttention": attention.define_of_parts,
    "RotaryEmbedding": rotary.define,
}


def define_by_shape(model: onnx.ModelProto, opset: int) -> None:
    """Replace the outermost graph's nodes by their definitions, in the order in which shapes become known. Changes `model`.

    Raises UnsupportedModelError for a node whose inputs get no shapes, or other shapes than the operator has.
    """
    graph = model.graph
    if opset < grouped.OPSET and any(_is_defined(node) and node.op_type == "GroupQueryAttention" for node in graph.node):
        model.CopyFrom(_converted(model, grouped.OPSET))
        opset, graph = grouped.OPSET, model.graph
    while pending := [node for node in graph.node if _is_defined(node)]:
        shapes = {name: shape for name, (_, shape) in static_types(infer(model)).items()}
        written = [made for node in graph.node for made in _defined(node, graph, opset, shapes)]
        if len(pending) == sum(map(_is_defined, written)):
            first = Definition(pending[0], graph, {}, opset)
            names = ", ".join(repr(name) for name in pending[0].input if name and name not in shapes)
            raise first.refuse(f"the shapes of its inputs {names} are not known; give the network's inputs shapes")
        del graph.node[:]
        graph.node.extend(written)


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with the operators of a newer opset of ONNX. Raises UnsupportedModelError."""
    try:
        return onnx.version_converter.convert_version(model, opset)
    except (RuntimeError, ValueError) as error:  # of an operator that has no newer form
        words = " ".join(str(error).split())
        raise UnsupportedModelError(
            f"GroupQueryAttention is read as operators of opset {opset}, to which ONNX cannot convert the model ({words}): "
            f"export it for opset {opset}"
        ) from None


def _is_defined(node: onnx.NodeProto) -> bool:
    return node.domain == MICROSOFT and node.op_type in DEFINITIONS


def _defined(
    node: onnx.NodeProto, graph: onnx.GraphProto, opset: int, shapes: Mapping[str, tuple[int, ...]]
) -> list[onnx.NodeProto]:
    if not _is_defined(node) or any(name not in shapes for name in node.input if name):
        return [node]
    made = Definition(node, graph, {}, opset, shapes)
    try:
        DEFINITIONS[node.op_type](made)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):  # an extent or an attribute is missing
        given = ", ".join(str(list(made.shape(i))) for i in range(len(node.input)))
        raise made.refuse(f"its attributes, or the shapes of its inputs ({given}), are not the operator's") from None
    return made.nodes
