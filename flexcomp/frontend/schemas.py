"""Nodes against ONNX's schemas, where ONNX's own inference does not look: inputs, attributes, element types."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx
from onnx.defs import OpSchema

from flexcomp.errors import ModelError
from flexcomp.frontend.domains import all_nodes

_MOST_AXES = 64  # of any tensor
# Attributes that say yes or no.
_FLAGS = (
    "align_corners", "antialias", "ceil_mode", "center_point_box", "count_include_pad", "detect_negative", "detect_positive",
    "exclude_outside", "exclusive", "fmod", "is_causal", "keepdims", "largest", "layout", "linear_before_reset",
    "noop_with_empty_axes", "periodic", "reverse", "saturate", "select_last_index", "sorted", "storage_order", "transA", "transB",
    "upper",
)  # fmt: skip
_AXES = ("axis", "axes", "batch_axis", "batch_dims", "time_axis")  # attributes
_DIRECTIONS, _REDUCTIONS = ("forward", "reverse", "bidirectional"), ("none", "add", "mul", "max", "min")
# Attributes that are one of a few words, by name, and by operator and name where a name means several things.
_WORDS: dict[str | tuple[str, str], tuple[str, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "padding_mode": ("zeros", "border", "reflection"),
    "round_mode": ("up", "down", "nearest"),
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("CausalConvWithState", "activation"): ("none", "silu", "swish"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("GRU", "direction"): _DIRECTIONS,
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    ("LSTM", "direction"): _DIRECTIONS,
    ("LinearAttention", "update_rule"): ("linear", "gated", "delta", "gated_delta"),
    ("NegativeLogLikelihoodLoss", "reduction"): ("none", "mean", "sum"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("RNN", "direction"): _DIRECTIONS,
    ("Resize", "coordinate_transformation_mode"): (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
        "tf_crop_and_resize",
    ),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("ScatterElements", "reduction"): _REDUCTIONS,
    ("ScatterND", "reduction"): _REDUCTIONS,
    ("SoftmaxCrossEntropyLoss", "reduction"): ("none", "mean", "sum"),
    ("TensorScatter", "mode"): ("linear", "circular"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
}  # fmt: skip


# Words that exporters leave empty, which ONNX Runtime takes as not given; of losses as a sum, which is not the default.
_MAY_BE_EMPTY = ("auto_pad", "reduction")
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


def leave_out_empty_words(model: onnx.ModelProto) -> None:
    """Remove attributes that are words without letters, where these mean the default."""
    for graph in (model.graph, *model.functions):
        for node in all_nodes(graph):
            if node.op_type not in _LOSSES:
                for attribute in [a for a in node.attribute if a.name in _MAY_BE_EMPTY and a.type == a.STRING and not a.s]:
                    node.attribute.remove(attribute)


def write_onesided(model: onnx.ModelProto) -> None:
    """Give STFTs without an attribute `onesided` its default: ONNX's inference of shapes has another one."""
    for graph in (model.graph, *model.functions):
        for node in all_nodes(graph):
            if node.op_type == "STFT" and not any(attribute.name == "onesided" for attribute in node.attribute):
                node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def require_nodes(graph: onnx.GraphProto) -> None:
    """Raise ModelError that names a node without an input that it needs, or with an attribute that means nothing.

    ONNX's inference and TVM's importer read other memory for some of these.
    """
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                require_nodes(inner)
        if node.domain in ("", "ai.onnx"):
            _require_inputs(node)
            for attribute in node.attribute:
                if problem := _problem(node, attribute):
                    raise ModelError(f"{place_of(node)}: its {problem}")


def place_of(node: onnx.NodeProto) -> str:
    """The node as messages name it."""
    return f"node {node.name or next((out for out in node.output if out), '')!r} ({node.op_type})"


def _require_inputs(node: onnx.NodeProto) -> None:
    if "" not in node.input:
        return
    for i, name in enumerate(node.input):
        formal = _formal(node.op_type, i)
        if not name and formal and not any(p.option == OpSchema.FormalParameterOption.Optional for p in formal):
            raise ModelError(f"{place_of(node)}: its input {i}, {formal[-1].name!r}, is left out: give it one")


def _problem(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> str:
    """What is wrong with an attribute; empty if nothing is."""
    name, given = attribute.name, list(attribute.ints) or [attribute.i]
    if name == "num_outputs" and node.op_type == "Split" and given[0] != len(node.output):
        return f"num_outputs is {given[0]}, and it has {len(node.output)} outputs"
    if name in _FLAGS and given[0] not in (0, 1):
        return f"attribute {name} is {given[0]}: make it 0 or 1"
    least = 0 if name == "batch_dims" else -_MOST_AXES
    if name in _AXES and not all(least <= axis <= _MOST_AXES for axis in given):
        return f"{name} is {attribute.i or given}, and no tensor has that axis"
    words = _WORDS.get((node.op_type, name)) or _WORDS.get(name)
    if words and (word := attribute.s.decode(errors="replace")) not in words:
        return f"{name} is {word!r}: make it one of {', '.join(words)}"
    return ""


def require_element_types(graph: onnx.GraphProto, found: Mapping[str, onnx.TypeProto]) -> None:
    """Raise ModelError that names a node and an input whose element type no opset of ONNX allows there.

    `found` has the types of the graph's tensors. The node's own opset is not asked: exporters write Conv of bfloat16 in 17.
    """
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        for i, name in enumerate(node.input):
            if name not in found or not found[name].HasField("tensor_type"):
                continue
            kind = found[name].tensor_type.elem_type
            word = onnx.TensorProto.DataType.Name(kind).lower()
            formal = _formal(node.op_type, i)
            if kind and formal and not any(f"tensor({word})" in parameter.types for parameter in formal):
                raise ModelError(
                    f"{place_of(node)}: its input {formal[-1].name!r} holds {word}, which ONNX does not allow: "
                    f"give it {_example(formal[-1])}"
                )


def _example(parameter: OpSchema.FormalParameter) -> str:
    """A type that the parameter may have."""
    usual = (f"tensor({word})" for word in ("float", "int64", "int32", "uint8", "bool"))
    return next((text for text in usual if text in parameter.types), min(parameter.types))


def _formal(kind: str, i: int) -> list[OpSchema.FormalParameter]:
    """Input `i` in each of the operator's schemas, the newest last."""
    return [schema.inputs[min(i, len(schema.inputs) - 1)] for schema in _schemas().get(kind, ()) if schema.inputs]


@functools.cache
def _schemas() -> dict[str, list[OpSchema]]:
    """All of ONNX's own, by the operator's name, the newest last."""
    found: dict[str, list[OpSchema]] = {}
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda schema: schema.since_version):
        if not schema.domain:
            found.setdefault(schema.name, []).append(schema)
    return found
