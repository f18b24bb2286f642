"""Networks made for phones, and others of NNV12's Table 4 (Yi et al. 2023): depthwise and grouped convolutions, hard activations.

Each function takes a seed and returns a model from "x", a picture [1, 3, 224, 224], to "output", as exported from
PyTorch's vision library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx

from benchmarks.networks.architectures import mobilenet_v2_features, resnet
from benchmarks.networks.graph import CLASSES, RECTIFIED_GAIN, Graph

VOC_PREDICTION = 5 + 20  # a box, whether it holds an object, and the classes of Pascal VOC
GAIN = 1.4  # of layers that read rectified values: their mean, which depthwise filters keep, is part of the answer
Activation = Callable[[str], str]


class Mobile(Graph):
    """A graph with the common parts of these networks."""

    def silu(self, x: str) -> str:
        """x · sigmoid(x)."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def hard_swish(self, x: str) -> str:
        """x · min(max(x / 6 + 1/2, 0), 1)."""
        return self.op("HardSwish", x)

    def hard_sigmoid(self, x: str) -> str:
        """min(max(x / 6 + 1/2, 0), 1)."""
        return self.op("HardSigmoid", x, alpha=1 / 6)

    def sigmoid(self, x: str) -> str:
        """1 / (1 + exp(-x))."""
        return self.op("Sigmoid", x)

    def layer(
        self, x: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1,
        act: Activation | None = None, gain: float = GAIN,
    ) -> str:  # fmt: skip
        """A convolution, its batch normalisation and activation."""
        y = self.batch_norm(self.conv(x, channels, kernel, stride, groups=groups, bias=False, gain=gain))
        return act(y) if act else y

    def excite(self, x: str, squeeze: int, inner: Activation, gate: Activation) -> str:
        """Squeeze and excitation: channels are weighed by their averages (Hu et al. 2018)."""
        y = inner(self.conv(self.op("GlobalAveragePool", x), squeeze, 1))
        return self.op("Mul", x, gate(self.conv(y, self.channels[x], 1, gain=4.0)))

    def inverted(
        self, x: str, hidden: int, channels: int, kernel: int, stride: int, act: Activation, gains: tuple[float, float, float],
        excite: Activation | None = None,
    ) -> str:  # fmt: skip
        """An inverted residual block (Sandler et al. 2018); `excite` follows its depthwise convolution."""
        width = self.channels[x]
        y = self.layer(x, hidden, act=act, gain=gains[0]) if hidden != width else x
        y = self.layer(y, hidden, kernel, stride, groups=hidden, act=act, gain=gains[1])
        adds = stride == 1 and width == channels
        y = self.layer(excite(y) if excite else y, channels, gain=1.0 if adds else gains[2])
        return self.op("Add", y, x) if adds else y


def mobilenet_v1_features(g: Mobile, x: str) -> str:
    """The convolutions of MobileNet (Howard et al. 2017): depthwise and 1×1 in turns."""
    x = g.layer(x, 32, 3, 2, act=g.relu)
    settings = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for channels, stride in settings:
        x = g.layer(g.layer(x, g.channels[x], 3, stride, groups=g.channels[x], act=g.relu), channels, act=g.relu)
    return x


def efficientnet_b0(seed: int = 0) -> onnx.ModelProto:
    """EfficientNet-B0 (Tan & Le 2019)."""
    g = Mobile("efficientnet_b0", seed)

    def block(x: str, expansion: int, kernel: int, stride: int, channels: int) -> str:
        width = g.channels[x]
        excite = partial(g.excite, squeeze=width // 4, inner=g.silu, gate=g.sigmoid)
        return g.inverted(x, width * expansion, channels, kernel, stride, g.silu, (1.2, 1.6, 2.5), excite)

    x = g.layer(g.input("x", (1, 3, 224, 224)), 32, 3, 2, act=g.silu)
    settings = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    for expansion, kernel, stride, channels, repeats in settings:
        for i in range(repeats):
            x = block(x, expansion, kernel, 1 if i else stride, channels)
    return g.classify(g.layer(x, 1280, act=g.silu))


def mobilenet_v3(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV3-Large (Howard et al. 2019)."""
    g = Mobile("mobilenet_v3", seed)

    def block(x: str, kernel: int, hidden: int, channels: int, excited: bool, act: Activation, stride: int) -> str:
        excite = partial(g.excite, squeeze=(hidden // 4 + 4) // 8 * 8, inner=g.relu, gate=g.hard_sigmoid)
        return g.inverted(x, hidden, channels, kernel, stride, act, (1.4, GAIN, 2.5), excite if excited else None)

    x = g.layer(g.input("x", (1, 3, 224, 224)), 16, 3, 2, act=g.hard_swish)
    relu, swish = g.relu, g.hard_swish
    settings = (
        (3, 16, 16, False, relu, 1), (3, 64, 24, False, relu, 2), (3, 72, 24, False, relu, 1), (5, 72, 40, True, relu, 2),
        *[(5, 120, 40, True, relu, 1)] * 2, (3, 240, 80, False, swish, 2), (3, 200, 80, False, swish, 1),
        *[(3, 184, 80, False, swish, 1)] * 2, (3, 480, 112, True, swish, 1), (3, 672, 112, True, swish, 1),
        (5, 672, 160, True, swish, 2), *[(5, 960, 160, True, swish, 1)] * 2,
    )  # fmt: skip
    for setting in settings:
        x = block(x, *setting)
    x = g.global_pool(g.layer(x, 960, act=g.hard_swish))
    x = g.hard_swish(g.dense(x, 1280, GAIN))
    return g.model(g.dense(x, CLASSES), (1, CLASSES))


def mnasnet(seed: int = 0) -> onnx.ModelProto:
    """MnasNet-B1 1.0 (Tan et al. 2019)."""
    g = Mobile("mnasnet", seed)

    x = g.layer(g.input("x", (1, 3, 224, 224)), 32, 3, 2, act=g.relu)
    x = g.layer(g.layer(x, 32, 3, groups=32, act=g.relu), 16)
    settings = ((24, 3, 2, 3, 3), (40, 5, 2, 3, 3), (80, 5, 2, 6, 3), (96, 3, 1, 6, 2), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1))
    for channels, kernel, stride, expansion, repeats in settings:
        for i in range(repeats):
            x = g.inverted(x, g.channels[x] * expansion, channels, kernel, 1 if i else stride, g.relu, (1.0, GAIN, 1.0))
    return g.classify(g.layer(x, 1280, act=g.relu))


def regnet_y_400mf(seed: int = 0) -> onnx.ModelProto:
    """RegNetY-400MF (Radosavovic et al. 2020): groups of eight channels, squeeze and excitation."""
    g = Mobile("regnet_y_400mf", seed)

    def block(x: str, width: int, stride: int) -> str:
        y = g.layer(x, width, act=g.relu)
        y = g.layer(y, width, 3, stride, groups=width // 8, act=g.relu)
        y = g.layer(g.excite(y, round(g.channels[x] / 4), g.relu, g.sigmoid), width)
        if stride > 1 or g.channels[x] != width:
            x = g.layer(x, width, 1, stride)
        return g.relu(g.op("Add", x, y))

    x = g.layer(g.input("x", (1, 3, 224, 224)), 32, 3, 2, act=g.relu)
    for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for i in range(depth):
            x = block(x, width, 1 if i else 2)
    return g.classify(x)


def shufflenet_v2(seed: int = 0) -> onnx.ModelProto:
    """ShuffleNet v2 1.0 (Ma et al. 2018): half of the channels pass by, and the halves are shuffled."""
    g = Mobile("shufflenet_v2", seed)

    def branch(x: str, channels: int, stride: int) -> str:
        y = g.layer(x, channels, act=g.relu)
        return g.layer(g.layer(y, channels, 3, stride, groups=channels), channels, act=g.relu, gain=1.0)

    def block(x: str, channels: int, image: int, stride: int) -> str:
        if stride == 1:
            passed, worked = g.split(x, 2, axis=1)
            x = g.concat(passed, branch(worked, channels // 2, 1))
        else:
            down = g.layer(x, g.channels[x], 3, 2, groups=g.channels[x])
            x = g.concat(g.layer(down, channels // 2, act=g.relu, gain=1.0), branch(x, channels // 2, 2))
        pairs = g.op("Transpose", g.reshape(x, 1, 2, channels // 2, image, image), perm=[0, 2, 1, 3, 4])
        return g.reshape(pairs, 1, channels, image, image, channels=channels)

    x = g.layer(g.input("x", (1, 3, 224, 224)), 24, 3, 2, act=g.relu)
    x = g.max_pool(x, 3, 2, 1)
    for channels, repeats, image in ((116, 4, 28), (232, 8, 14), (464, 4, 7)):
        for i in range(repeats):
            x = block(x, channels, image, 1 if i else 2)
    return g.classify(g.layer(x, 1024, act=g.relu))


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
        y = g.layer(x, made // 4, groups=groups if grouped else 1, act=g.relu)
        y = shuffled(y, image) if grouped else y
        y = g.layer(y, g.channels[y], 3, 2 if first else 1, groups=g.channels[y])
        if first:
            return g.relu(g.concat(g.average_pool(x, 3, 2, 1), g.layer(y, made, groups=groups)))
        return g.relu(g.op("Add", x, g.layer(y, made, groups=groups, gain=0.5)))

    x = g.max_pool(g.layer(g.input("x", (1, 3, 224, 224)), 24, 3, 2, act=g.relu), 3, 2, 1)
    for channels, repeats, image in ((240, 4, 56), (480, 8, 28), (960, 4, 14)):
        for i in range(repeats):
            x = block(x, channels, image // 2 if i else image, not i)
    return g.classify(x)


def mobilenet_v2_yolov3(seed: int = 0) -> onnx.ModelProto:
    """ncnn's MobileNetV2-YOLOv3: two scales of three boxes each, made by separable convolutions."""
    g = Mobile("mobilenet_v2_yolov3", seed)

    def separable(x: str, channels: int) -> str:
        return g.layer(g.layer(x, g.channels[x], 3, groups=g.channels[x], act=g.relu), channels, act=g.relu)

    features, finer = mobilenet_v2_features(g, g.input("x", (1, 3, 224, 224)))
    coarse = separable(features, 576)
    fine = separable(g.op("Add", g.doubled(coarse), separable(finer, 576)), 576)
    return _predictions(g, {7: coarse, 14: fine}, 3)


def mobilenet_yolo(seed: int = 0) -> onnx.ModelProto:
    """ncnn's MobileNet-YOLO: two scales of five boxes each, the finer one made by a transposed convolution."""
    g = Mobile("mobilenet_yolo", seed)
    x = mobilenet_v1_features(g, g.input("x", (1, 3, 224, 224)))
    coarse = g.layer(g.layer(x, 256, act=g.relu), 1024, 3, act=g.relu)
    weights = g.filters((1024, 1, 4, 4), (0, 2, 3), 64.0)
    fine = g.op("ConvTranspose", coarse, weights, channels=256, group=256, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    fine = g.layer(g.layer(fine, 1024, 3, act=g.relu), 256, act=g.relu)
    fine = g.layer(fine, 1024, 3, act=g.relu)
    return _predictions(g, {7: coarse, 14: fine}, 5)


def _predictions(g: Graph, scales: dict[int, str], boxes: int) -> onnx.ModelProto:
    """The predictions for each pixel, of all scales in a row; their keys are the images' widths."""
    count = boxes * VOC_PREDICTION
    pixels = {x: image * image for image, x in scales.items()}
    parts = [g.reshape(g.conv(x, count, 1, gain=2.0), 1, count, all_of, channels=all_of) for x, all_of in pixels.items()]
    return g.model(g.concat(*parts, axis=2), (1, count, sum(pixels.values())))


MOBILE = {function.__name__: function for function in (efficientnet_b0, mobilenet_v3, mnasnet, regnet_y_400mf, shufflenet_v2)}
COLD = {"resnet18": partial(resnet, "resnet18", (2, 2, 2, 2), expansion=1)}
COLD |= {
    function.__name__: function
    for function in (alexnet_torch, mobilenet_v1, shufflenet_v1, mobilenet_v2_yolov3, mobilenet_yolo)
}
