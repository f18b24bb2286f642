"""Extents below zero, found before ONNX's inference meets them in a Slice: there it ends the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import numpy_helper

from flexcomp.errors import ModelError
from flexcomp.frontend.domains import DEFAULT, all_nodes

# Results of windows that are larger than their input, and of padding that takes away.
_WINDOWS = {
    "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "LpPool", "MaxPool", "MaxUnpool", "Pad", "QLinearConv",
    "STFT",
}  # fmt: skip
# Inputs that are extents, which ONNX's inference takes as they are.
_EXTENTS = {"CenterCropPad": (1,), "Col2Im": (1,), "DFT": (1,), "Expand": (1,), "Resize": (2, 3), "TopK": (1,), "Upsample": (1,)}
_POINTWISE = {"Conv", "ConvInteger", "QLinearConv"}  # where the window is of one element
_NONE = onnx.AttributeProto()
_HIDDEN = "flexcomp.hidden"  # a domain that inference does not know: the node's results have no shape


def require_extents(model: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    """Raise ModelError with the node whose result has less than no elements along an axis, where `infer` follows ONNX's rules.

    A Slice after an operator that may have made such a result is hidden from inference until its own input is known to be right.
    """
    rounds = _rounds(model.graph)
    model.opset_import.append(onnx.helper.make_opsetid(_HIDDEN, 1))
    for number in range(1, max(rounds.values(), default=0) + 1):
        hidden = [node for place, node in enumerate(model.graph.node) if rounds.get(place, 0) >= number]
        domains = [node.domain for node in hidden]
        for node in hidden:
            node.domain = _HIDDEN
        try:
            found = infer(model)
        finally:
            for node, domain in zip(hidden, domains, strict=True):
                node.domain = domain
        require_known_extents(found.graph)
    del model.opset_import[-1]


def require_known_extents(graph: onnx.GraphProto) -> None:
    """Raise ModelError with the node whose result is known to have less than no elements along an axis."""
    for info in (*graph.value_info, *graph.output, *graph.input):
        extents = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if min(extents, default=0) < 0:
            maker = next((node for node in graph.node if info.name in node.output), None)
            where = f"node {maker.name!r} ({maker.op_type})" if maker is not None else f"tensor {info.name!r}"
            raise ModelError(f"{where}: a result has {extents} elements along its axes: its input is too small")


def _rounds(graph: onnx.GraphProto) -> dict[int, int]:
    """For each Slice to hide, by its place: the round after which its input is known."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known: dict[str, tuple[int, bool]] = {}  # of a value: the round, and whether an extent may be below zero
    rounds: dict[int, int] = {}
    for place, node in enumerate(graph.node):
        inside = [inner for a in node.attribute for graph in (a.g, *a.graphs) for inner in all_nodes(graph)]
        given = [known[name] for one in (node, *inside) for name in one.input if name in known]
        number, doubtful = max((one for one, _ in given), default=0), any(doubt for _, doubt in given)
        if doubtful and any(one.op_type == "Slice" for one in (node, *inside)):
            number, doubtful = number + 1, False
            rounds[place] = number
        doubtful |= _is_doubtful(node, constants)
        known |= dict.fromkeys(node.output, (number, doubtful))
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    return rounds


def _is_doubtful(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether the node itself may make an extent below zero of others."""
    if node.domain not in DEFAULT:
        return False
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "RoiAlign":
        return any(attributes[name].i < 0 for name in ("output_height", "output_width") if name in attributes)
    if node.op_type in _EXTENTS:
        names = [node.input[i] for i in _EXTENTS[node.op_type] if i < len(node.input) and node.input[i]]
        return not all(name in constants and _are_positive(constants[name]) for name in names)
    if node.op_type in _POINTWISE and "kernel_shape" in attributes:
        return any(one != 1 for one in attributes["kernel_shape"].ints) or any(p < 0 for p in attributes.get("pads", _NONE).ints)
    return node.op_type in _WINDOWS


def _are_positive(tensor: onnx.TensorProto) -> bool:
    values = numpy_helper.to_array(tensor)
    return values.dtype.kind in "iuf" and bool((values >= 0).all())
