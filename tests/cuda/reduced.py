"""The thirteen networks that libraries for GPUs are shown with, on small pictures and short prompts; channels and layers stay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from benchmarks.networks.architectures import gpt2, mobilenet_v2, resnet, vit_b16
from flexcomp.demo import zoo

FULL = 224  # pixels of their pictures' width
_LAST_POOL = [7, 7]  # over all that is left of a picture


def for_pictures(model: onnx.ModelProto, image: int) -> onnx.ModelProto:
    """A network for pictures of `image` pixels' width; its last pooling and its first dense layer take the remaining pixels."""
    small = onnx.ModelProto()
    small.CopyFrom(model)
    graph = small.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for port in graph.input:
        if port.name not in constants:
            _set_extents(port, image)
    reshapes = [node for node in graph.node if node.op_type == "Reshape" and node.input[0] not in constants]
    for name in {node.input[1] for node in reshapes}:
        shape = numpy_helper.to_array(constants[name]).copy()
        if len(shape) == 2:
            shape[1] = -1
        else:  # of pictures, whose height and width come last
            shape[-2:] = shape[-2:] * image // FULL
        constants[name].CopyFrom(numpy_helper.from_array(shape, name))
    _pool_what_is_left(graph, _shapes(small))
    shapes = _shapes(small)
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[1] in constants:
            weights = numpy_helper.to_array(constants[node.input[1]])
            kept = shapes[node.input[0]][1]
            # As large as before are sums of fewer products of larger weights.
            narrowed = weights[:, :kept] * np.float32(np.sqrt(weights.shape[1] / kept))
            constants[node.input[1]].CopyFrom(numpy_helper.from_array(narrowed, node.input[1]))
    return small


def _set_extents(port: onnx.ValueInfoProto, image: int) -> None:
    for dim in port.type.tensor_type.shape.dim[2:]:
        dim.dim_value = image


def _pool_what_is_left(graph: onnx.GraphProto, shapes: dict[str, list[int]]) -> None:
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "AveragePool" and attributes["kernel_shape"] == _LAST_POOL:
            node.ClearField("attribute")
            node.attribute.append(helper.make_attribute("kernel_shape", shapes[node.input[0]][2:]))


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    inferred = shape_inference.infer_shapes(model).graph
    return {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in inferred.value_info}


# AlexNet and ZFNet leave nothing of smaller pictures, and Inception v1 one pixel, of which most of a filter reads padding.
_IMAGES = dict.fromkeys(zoo.NAMES, 64) | dict.fromkeys(("alexnet", "zfnet512", "inception_v1"), 96)
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: partial(lambda name, image: for_pictures(zoo.load(name), image), name, _IMAGES[name]) for name in zoo.NAMES},
    "resnet152": lambda: for_pictures(resnet("resnet", (3, 8, 36, 3)), 64),
    "mobilenet_v2": lambda: for_pictures(mobilenet_v2(), 64),
    "vit_b16": lambda: vit_b16(image=64),
    "gpt2": lambda: gpt2(tokens=16),
}
