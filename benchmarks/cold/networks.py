"""The networks of NNV12's Table 4 (Yi et al. 2023), and three that are larger or of another kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

NETWORKS = {  # titles → names of benchmarks.models
    "AlexNet": "alexnet_torch",
    "GoogLeNet": "googlenet",
    "MobileNet": "mobilenet_v1",
    "MobileNetV2": "mobilenet_v2",
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50_v15",
    "ShuffleNet": "shufflenet_v1",
    "ShuffleNetV2": "shufflenet_v2",
    "SqueezeNet": "squeezenet1_1",
    "EfficientNet-B0": "efficientnet_b0",
    "MobileNetV2-YOLOv3": "mobilenet_v2_yolov3",
    "MobileNet-YOLO": "mobilenet_yolo",
    "CRNN-lite": "crnn_lite",
    "VGG-19": "vgg19_torch",
    "ResNet-152": "resnet152",
    "ViT-B/16": "vit_b16",
}
TITLES = {name: title for title, name in NETWORKS.items()}


def raw_nbytes(model: onnx.ModelProto) -> int:
    """Bytes of a model's float32 weights, as its file has them."""
    return 4 * sum(int(np.prod(shape)) for shape in _weights(model))


def parameters(model: onnx.ModelProto) -> int:
    """Numbers that training changes: all weights but the statistics of batch normalisations, and scalars."""
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    return sum(int(np.prod(shape)) for shape in _weights(model, statistics) if len(shape))


def _weights(model: onnx.ModelProto, without: Iterable[str] = ()) -> list[tuple[int, ...]]:
    """Shapes of the weights in float32."""
    constants = [
        attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    initializers = [weight for weight in model.graph.initializer if weight.name not in set(without)]
    return [tuple(weight.dims) for weight in (*initializers, *constants) if weight.data_type == TensorProto.FLOAT]


@dataclass(frozen=True)
class Published:
    """A row of NNV12's Table 4."""

    parameters: float  # millions
    model_mb: float
    overhead_mb: float  # of cached weights, besides the model
    plan_s: float  # on a Meizu 16T


NNV12 = {
    "AlexNet": Published(61.3, 237.5, 172.3, 1.538), "GoogLeNet": Published(7.1, 26.9, 22.6, 1.302),
    "MobileNet": Published(4.4, 16.2, 12.6, 0.797), "MobileNetV2": Published(3.7, 13.3, 10.3, 0.759),
    "ResNet-18": Published(12.7, 45.5, 34.3, 0.893), "ShuffleNet": Published(3.6, 12.9, 10.0, 0.578),
    "EfficientNet-B0": Published(5.4, 19.6, 15.2, 1.130), "ResNet-50": Published(25.7, 97.4, 89.7, 1.652),
    "SqueezeNet": Published(1.4, 4.7, 3.8, 0.718), "ShuffleNetV2": Published(3.4, 12.0, 10.9, 0.532),
    "MobileNetV2-YOLOv3": Published(3.6, 13.1, 12.5, 0.849), "MobileNet-YOLO": Published(11.9, 49.1, 38.3, 0.984),
    "CRNN-lite": Published(2.4, 2.6, 45.4, 0.116),
}
