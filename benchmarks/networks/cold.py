"""Networks of NNV12's Table 4 (Yi et al. 2023) that are not among the others; CRNN-lite is in recurrent.py.

Each function takes a seed and returns a model from "x", a picture, to "output", as exported from PyTorch.
"""

from __future__ import annotations

import onnx

from benchmarks.networks.architectures import CLASSES, mobilenet_v2_features, residual_gain
from benchmarks.networks.branching import Branching
from benchmarks.networks.graph import RECTIFIED_GAIN, Graph
from benchmarks.networks.mobile import Mobile, mobilenet_v1_features

VOC_PREDICTION = 5 + 20  # a box, whether it holds an object, and the classes of Pascal VOC


def alexnet_torch(seed: int = 0) -> onnx.ModelProto:
    """AlexNet (Krizhevsky 2014), one tower and no normalisation."""
    g = Graph("alexnet", seed)
    x = g.relu(g.conv(g.input("x", (1, 3, 224, 224)), 64, 11, 4, 2))
    x = g.relu(g.conv(g.max_pool(x, 3, 2), 192, 5))
    x = g.max_pool(x, 3, 2)
    for channels in (384, 256, 256):
        x = g.relu(g.conv(x, channels, 3))
    x = g.op("Flatten", g.max_pool(x, 3, 2), axis=1, channels=256 * 6 * 6)
    for _ in range(2):
        x = g.relu(g.dense(x, 4096, RECTIFIED_GAIN))
    return g.model(g.dense(x, CLASSES), (1, CLASSES))


def resnet18(seed: int = 0) -> onnx.ModelProto:
    """ResNet-18 (He et al. 2016)."""
    g = Branching("resnet18", seed)

    def block(x: str, channels: int, stride: int) -> str:
        y = g.unit(g.rectified(x, channels, 3, stride), channels, 3, gain=residual_gain(8))
        if stride > 1 or g.channels[x] != channels:
            x = g.unit(x, channels, 1, stride)
        return g.relu(g.op("Add", y, x))

    x = g.max_pool(g.rectified(g.input("x", (1, 3, 224, 224)), 64, 7, 2), 3, 2, 1)
    for stage in range(4):
        for i in range(2):
            x = block(x, 64 << stage, 2 if stage and not i else 1)
    return g.classify(x)


def mobilenet_v1(seed: int = 0) -> onnx.ModelProto:
    """MobileNet (Howard et al. 2017)."""
    g = Mobile("mobilenet_v1", seed)
    return g.classify(mobilenet_v1_features(g, g.input("x", (1, 3, 224, 224))))


def shufflenet_v1(seed: int = 0) -> onnx.ModelProto:
    """ShuffleNet 1×, three groups (Zhang et al. 2018): the channels of grouped 1×1 convolutions are shuffled in between."""
    g = Mobile("shufflenet_v1", seed)
    groups = 3

    def shuffled(x: str, image: int) -> str:
        channels = g.channels[x]
        rows = g.reshape(x, 1, groups, channels // groups, image, image)
        return g.reshape(g.op("Transpose", rows, perm=[0, 2, 1, 3, 4]), 1, channels, image, image, channels=channels)

    def block(x: str, channels: int, image: int, first: bool) -> str:
        """Of `image` pixels' width; the first of a stage halves that, and its pooled input is part of its output."""
        given = g.channels[x]
        made = channels - given if first else channels
        grouped = given > 24  # all but the first of all
        y = g.unit(x, made // 4, groups=groups if grouped else 1, act=g.relu)
        y = shuffled(y, image) if grouped else y
        y = g.unit(y, g.channels[y], 3, 2 if first else 1, groups=g.channels[y])
        if first:
            return g.relu(g.concat(g.average_pool(x, 3, 2, 1), g.unit(y, made, groups=groups)))
        return g.relu(g.op("Add", x, g.unit(y, made, groups=groups, gain=0.5)))

    x = g.max_pool(g.unit(g.input("x", (1, 3, 224, 224)), 24, 3, 2, act=g.relu), 3, 2, 1)
    for channels, repeats, image in ((240, 4, 56), (480, 8, 28), (960, 4, 14)):
        for i in range(repeats):
            x = block(x, channels, image // 2 if i else image, not i)
    return g.classify(x)


def mobilenet_v2_yolov3(seed: int = 0) -> onnx.ModelProto:
    """ncnn's MobileNetV2-YOLOv3: two scales of three boxes each, made by separable convolutions."""
    g = Mobile("mobilenet_v2_yolov3", seed)

    def separable(x: str, channels: int) -> str:
        return g.unit(g.unit(x, g.channels[x], 3, groups=g.channels[x], act=g.relu), channels, act=g.relu)

    features, finer = mobilenet_v2_features(g, g.input("x", (1, 3, 224, 224)))
    coarse = separable(features, 576)
    fine = separable(g.op("Add", _doubled(g, coarse), separable(finer, 576)), 576)
    return _predictions(g, {7: coarse, 14: fine}, 3)


def mobilenet_yolo(seed: int = 0) -> onnx.ModelProto:
    """ncnn's MobileNet-YOLO: two scales of five boxes each, the finer one made by a transposed convolution."""
    g = Mobile("mobilenet_yolo", seed)
    x = mobilenet_v1_features(g, g.input("x", (1, 3, 224, 224)))
    coarse = g.unit(g.unit(x, 256, act=g.relu), 1024, 3, act=g.relu)
    weights = g.filters((1024, 1, 4, 4), (0, 2, 3), 64.0)
    fine = g.op(
        "ConvTranspose", coarse, weights, channels=256, group=256, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4
    )
    fine = g.unit(g.unit(fine, 1024, 3, act=g.relu), 256, act=g.relu)
    fine = g.unit(fine, 1024, 3, act=g.relu)
    return _predictions(g, {7: coarse, 14: fine}, 5)


def _doubled(g: Graph, x: str) -> str:
    """Twice as high and wide, each pixel four times."""
    return g.op(
        "Resize", x, "", g.floats(1.0, 1.0, 2.0, 2.0), mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )  # fmt: skip


def _predictions(g: Graph, scales: dict[int, str], boxes: int) -> onnx.ModelProto:
    """The predictions for each pixel, of all scales in a row; their keys are the images' widths."""
    count = boxes * VOC_PREDICTION
    pixels = {x: image * image for image, x in scales.items()}
    parts = [g.reshape(g.conv(x, count, 1, gain=2.0), 1, count, all_of, channels=all_of) for x, all_of in pixels.items()]
    return g.model(g.concat(*parts, axis=2), (1, count, sum(pixels.values())))


COLD = {
    function.__name__: function
    for function in (
        alexnet_torch, resnet18, mobilenet_v1, shufflenet_v1, mobilenet_v2_yolov3, mobilenet_yolo
    )
}  # fmt: skip
