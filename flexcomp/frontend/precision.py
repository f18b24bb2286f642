"""Networks of 16-bit floats are computed in float32: weights are widened, inputs and outputs are converted.

    x: float16 → Relu → y: float16     becomes     x: float16 → Cast → Relu → Cast → y: float16

A conversion that the model asks for still rounds: its result is a 16-bit number, held in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flexcomp.deferred import Array, converted

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Attributes that name the element type of a result, or of what an operator computes in.
_TYPES = ("dtype", "output_dtype", "softmax_precision", "stash_type")


def widen(model: onnx.ModelProto, large: dict[str, Array]) -> onnx.ModelProto:
    """Make a model compute in float32 instead of 16-bit floats. Changes `model`; its inputs and outputs keep their types.

    Weights in `large`, which are inputs here, keep theirs, too, but for scales: passes look at these.
    """
    graph = model.graph
    if not _has_narrow(graph):
        return model
    _widen_scales(graph, large)
    like = _types_of_likes(model)
    renamed = _at_the_border(graph)
    _widen_graph(graph, renamed, like)
    graph.node.extend(_casts_out(graph, renamed))
    casts_in = list(_casts_in(graph, renamed))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts_in, *rest])
    del graph.value_info[:]
    return model


def _widen_scales(graph: onnx.GraphProto, large: dict[str, Array]) -> None:
    scales = {node.input[1] for inner in _graphs(graph) for node in inner.node if node.op_type == "DequantizeLinear"}
    for info in graph.input:
        if info.name in large and info.name in scales and _tensor_type(info) in _NARROW:
            large[info.name] = converted(large[info.name], np.float32)
            info.type.tensor_type.elem_type = TensorProto.FLOAT


def _tensor_type(info: onnx.ValueInfoProto) -> int:
    return info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else TensorProto.UNDEFINED


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all inner graphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.output:
                    yield from _graphs(inner)


def _has_narrow(graph: onnx.GraphProto) -> bool:
    for inner in _graphs(graph):
        if any(_tensor_type(info) in _NARROW for info in (*inner.input, *inner.output)):
            return True
        if any(tensor.data_type in _NARROW for tensor in inner.initializer):
            return True
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.t.data_type in _NARROW or (attribute.name in ("to", *_TYPES) and attribute.i in _NARROW):
                    return True
    return False


def _types_of_likes(model: onnx.ModelProto) -> dict[str, int]:
    """The 16-bit types to which CastLike nodes convert."""
    wanted = {node.input[1] for graph in _graphs(model.graph) for node in graph.node if node.op_type == "CastLike"}
    if not wanted:
        return {}
    graph = onnx.shape_inference.infer_shapes(model).graph
    known = {info.name: _tensor_type(info) for info in (*graph.input, *graph.value_info, *graph.output)}
    known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name: known[name] for name in wanted if known.get(name) in _NARROW}


def _at_the_border(graph: onnx.GraphProto) -> dict[str, str]:
    """For each 16-bit input and output, the name of the float32 tensor inside."""
    weights = {tensor.name for tensor in graph.initializer} - {info.name for info in graph.output}
    taken = {name for inner in _graphs(graph) for node in inner.node for name in (*node.input, *node.output)}
    renamed = {}
    for info in (*graph.input, *graph.output):
        if _tensor_type(info) not in _NARROW or info.name in weights:
            continue
        inside = f"{info.name}/float32"
        while inside in taken:
            inside += "_"
        renamed[info.name] = inside
    return renamed


def _casts_in(graph: onnx.GraphProto, renamed: dict[str, str]) -> Iterator[onnx.NodeProto]:
    weights = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        if info.name in renamed and info.name not in weights:
            yield helper.make_node("Cast", [info.name], [renamed[info.name]], f"{info.name}/widen", to=TensorProto.FLOAT)


def _casts_out(graph: onnx.GraphProto, renamed: dict[str, str]) -> Iterator[onnx.NodeProto]:
    inputs = {info.name for info in graph.input}
    for info in graph.output:
        if info.name in renamed and info.name not in inputs:
            yield helper.make_node("Cast", [renamed[info.name]], [info.name], f"{info.name}/narrow", to=_tensor_type(info))


def _widen_graph(graph: onnx.GraphProto, renamed: dict[str, str], like: dict[str, int], outermost: bool = True) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
        tensor.name = renamed.get(tensor.name, tensor.name)
    for info in () if outermost else (*graph.input, *graph.output):
        if _tensor_type(info) in _NARROW:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    if outermost:  # old files list initialisers as inputs as well
        weights = {tensor.name for tensor in graph.initializer}
        for info in graph.input:
            inside = renamed.get(info.name, info.name)
            if inside in weights and _tensor_type(info) in _NARROW:
                info.name, info.type.tensor_type.elem_type = inside, TensorProto.FLOAT
    else:
        del graph.value_info[:]
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        target = _rounds_to(node, like)
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = renamed.get(name, name)
        for attribute in node.attribute:
            if attribute.t.data_type in _NARROW:
                _widen_tensor(attribute.t)
            if attribute.name in _TYPES and attribute.i in _NARROW:
                attribute.i = TensorProto.FLOAT
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.output:
                    _widen_graph(inner, renamed, like, outermost=False)
        if target is None:
            graph.node.append(node)
        else:
            graph.node.extend(_rounding(node, target))


def _rounds_to(node: onnx.NodeProto, like: dict[str, int]) -> int | None:
    """The 16-bit type that a node converts to."""
    if node.op_type == "CastLike":
        return like.get(node.input[1])
    target = next((a.i for a in node.attribute if a.name == "to"), None) if node.op_type == "Cast" else None
    return target if target in _NARROW else None


def _rounding(node: onnx.NodeProto, target: int) -> list[onnx.NodeProto]:
    """A conversion to 16 bits and back."""
    name, inside = node.name or node.output[0], f"{node.output[0]}/16 bits"
    return [
        helper.make_node("Cast", [node.input[0]], [inside], name, to=target),
        helper.make_node("Cast", [inside], [node.output[0]], f"{name}/widen", to=TensorProto.FLOAT),
    ]


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
        tensor.CopyFrom(wide)


__all__ = ["widen"]
