"""The networks of SwapNet's three scenarios that no other file has: what a car or a drone sees with them.

Each function takes a seed and returns a model from "x", a picture, to "output".
"""

from __future__ import annotations

from functools import partial

import onnx

from benchmarks.networks.architectures import residual_gain, resnet
from benchmarks.networks.branching import Branching

COCO_CLASSES, VOC_CLASSES = 80, 21
_BOXES = 3  # at every place
_STAGES = (1, 2, 8, 8, 4)  # residual blocks of Darknet-53


class Scene(Branching):
    """A graph with what these networks share."""

    def leaky(self, x: str, channels: int, kernel: int = 1, stride: int = 1, gain: float = 1.0) -> str:
        """A convolution, its batch normalisation, and a leaky rectifier."""
        return self.op("LeakyRelu", self.unit(x, channels, kernel, stride, gain=gain), alpha=0.1)

    def resized(self, x: str, times: float, mode: str) -> str:
        """An image `times` as high and wide."""
        return self.op("Resize", x, "", self.floats(1.0, 1.0, times, times), mode=mode, nearest_mode="floor")


def yolo_v3(seed: int = 0) -> onnx.ModelProto:
    """YOLOv3 on Darknet-53 (Redmon and Farhadi 2018), pictures of 416×416; [1, 255, 3549] predictions."""
    g = Scene("yolo_v3", seed)
    x = g.leaky(g.input("x", (1, 3, 416, 416)), 32, 3)
    taken = []
    for stage, blocks in enumerate(_STAGES):
        width = 32 << stage
        x = g.leaky(x, 2 * width, 3, 2)
        for _ in range(blocks):
            y = g.leaky(g.leaky(x, width), 2 * width, 3, gain=residual_gain(blocks))
            x = g.op("Add", x, y)
        taken.append(x)

    parts, count = [], _BOXES * (COCO_CLASSES + 5)
    for index, (features, image) in enumerate(zip(taken[:1:-1], (13, 26, 52), strict=True)):
        width = 512 >> index
        x = features if index == 0 else g.concat(g.resized(g.leaky(x, width), 2.0, "nearest"), features)
        for _ in range(2):
            x = g.leaky(g.leaky(x, width), 2 * width, 3)
        x = g.leaky(x, width)
        made = g.conv(g.leaky(x, 2 * width, 3), count, 1, gain=2.0)
        parts.append(g.reshape(made, 1, count, image * image, channels=image * image))
    return g.model(g.concat(*parts, axis=2), (1, count, 13 * 13 + 26 * 26 + 52 * 52))


def fcn_resnet101(seed: int = 0) -> onnx.ModelProto:
    """FCN on a ResNet-101 whose last two stages are dilated (Long et al. 2015, as PyTorch has it)."""
    g = Scene("fcn_resnet101", seed)
    depths = (3, 4, 23, 3)
    branch_gain = residual_gain(sum(depths))

    def dilated(x: str, width: int, stride: int, dilation: int) -> str:
        weights = g.filters((width, g.channels[x], 3, 3), (1, 2, 3), 1.4)
        y = g.op(
            "Conv", x, weights, channels=width, kernel_shape=[3, 3], strides=[stride] * 2, pads=[dilation] * 4,
            dilations=[dilation] * 2,
        )  # fmt: skip
        return g.relu(g.batch_norm(y))

    def bottleneck(x: str, width: int, stride: int, dilation: int) -> str:
        y = g.unit(dilated(g.rectified(x, width), width, stride, dilation), 4 * width, gain=branch_gain)
        if stride > 1 or g.channels[x] != 4 * width:
            x = g.unit(x, 4 * width, 1, stride)
        return g.relu(g.op("Add", y, x))

    x = g.max_pool(g.rectified(g.input("x", (1, 3, 224, 224)), 64, 7, 2), 3, 2, 1)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            dilation = max(1, 1 << (stage - 1 - (block == 0))) if stage > 1 else 1
            x = bottleneck(x, 64 << stage, 2 if stage == 1 and block == 0 else 1, dilation)
    x = g.conv(g.rectified(x, 512, 3), VOC_CLASSES, 1, gain=2.0)
    return g.model(g.resized(x, 8.0, "linear"), (1, VOC_CLASSES, 224, 224))


SCENES = {"resnet101": partial(resnet, (3, 4, 23, 3)), "yolo_v3": yolo_v3, "fcn_resnet101": fcn_resnet101}
