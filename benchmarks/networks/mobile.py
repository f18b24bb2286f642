"""Networks made for phones: depthwise and grouped convolutions, squeeze and excitation, hard activations.

Each function takes a seed and returns a model from "x", a picture [1, 3, 224, 224], to "output", as exported from
PyTorch's vision library.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from benchmarks.networks.graph import Graph

CLASSES = 1000
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

    def unit(
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

    def classify(self, x: str) -> onnx.ModelProto:
        """Averages of the channels and a dense layer."""
        return self.model(self.dense(self.global_pool(x), CLASSES), (1, CLASSES))


def mobilenet_v1_features(g: Mobile, x: str) -> str:
    """The convolutions of MobileNet (Howard et al. 2017): depthwise and 1×1 in turns."""
    x = g.unit(x, 32, 3, 2, act=g.relu)
    settings = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for channels, stride in settings:
        x = g.unit(g.unit(x, g.channels[x], 3, stride, groups=g.channels[x], act=g.relu), channels, act=g.relu)
    return x


def efficientnet_b0(seed: int = 0) -> onnx.ModelProto:
    """EfficientNet-B0 (Tan & Le 2019)."""
    g = Mobile("efficientnet_b0", seed)

    def block(x: str, expansion: int, kernel: int, stride: int, channels: int) -> str:
        width = g.channels[x]
        hidden = width * expansion
        y = g.unit(x, hidden, act=g.silu, gain=1.2) if expansion > 1 else x
        y = g.unit(y, hidden, kernel, stride, groups=hidden, act=g.silu, gain=1.6)
        adds = stride == 1 and width == channels
        y = g.unit(g.excite(y, width // 4, g.silu, g.sigmoid), channels, gain=1.0 if adds else 2.5)
        return g.op("Add", y, x) if adds else y

    x = g.unit(g.input("x", (1, 3, 224, 224)), 32, 3, 2, act=g.silu)
    settings = (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )
    for expansion, kernel, stride, channels, repeats in settings:
        for i in range(repeats):
            x = block(x, expansion, kernel, 1 if i else stride, channels)
    return g.classify(g.unit(x, 1280, act=g.silu))


def mobilenet_v3(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV3-Large (Howard et al. 2019)."""
    g = Mobile("mobilenet_v3", seed)

    def block(x: str, kernel: int, hidden: int, channels: int, excited: bool, act: Activation, stride: int) -> str:
        width = g.channels[x]
        y = g.unit(x, hidden, act=act, gain=1.4) if hidden != width else x
        y = g.unit(y, hidden, kernel, stride, groups=hidden, act=act)
        adds = stride == 1 and width == channels
        if excited:
            y = g.excite(y, (hidden // 4 + 4) // 8 * 8, g.relu, g.hard_sigmoid)
        y = g.unit(y, channels, gain=1.0 if adds else 2.5)
        return g.op("Add", y, x) if adds else y

    x = g.unit(g.input("x", (1, 3, 224, 224)), 16, 3, 2, act=g.hard_swish)
    settings = (
        (3, 16, 16, False, g.relu, 1),
        (3, 64, 24, False, g.relu, 2),
        (3, 72, 24, False, g.relu, 1),
        (5, 72, 40, True, g.relu, 2),
        (5, 120, 40, True, g.relu, 1),
        (5, 120, 40, True, g.relu, 1),
        (3, 240, 80, False, g.hard_swish, 2),
        (3, 200, 80, False, g.hard_swish, 1),
        (3, 184, 80, False, g.hard_swish, 1),
        (3, 184, 80, False, g.hard_swish, 1),
        (3, 480, 112, True, g.hard_swish, 1),
        (3, 672, 112, True, g.hard_swish, 1),
        (5, 672, 160, True, g.hard_swish, 2),
        (5, 960, 160, True, g.hard_swish, 1),
        (5, 960, 160, True, g.hard_swish, 1),
    )
    for setting in settings:
        x = block(x, *setting)
    x = g.global_pool(g.unit(x, 960, act=g.hard_swish))
    x = g.hard_swish(g.dense(x, 1280, GAIN))
    return g.model(g.dense(x, CLASSES), (1, CLASSES))


def mnasnet(seed: int = 0) -> onnx.ModelProto:
    """MnasNet-B1 1.0 (Tan et al. 2019)."""
    g = Mobile("mnasnet", seed)

    def block(x: str, channels: int, kernel: int, stride: int, expansion: int) -> str:
        hidden = g.channels[x] * expansion
        y = g.unit(x, hidden, act=g.relu, gain=1.0)
        y = g.unit(y, hidden, kernel, stride, groups=hidden, act=g.relu)
        y = g.unit(y, channels, gain=1.0)
        return g.op("Add", y, x) if stride == 1 and g.channels[x] == channels else y

    x = g.unit(g.input("x", (1, 3, 224, 224)), 32, 3, 2, act=g.relu)
    x = g.unit(g.unit(x, 32, 3, groups=32, act=g.relu), 16)
    settings = ((24, 3, 2, 3, 3), (40, 5, 2, 3, 3), (80, 5, 2, 6, 3), (96, 3, 1, 6, 2), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1))
    for channels, kernel, stride, expansion, repeats in settings:
        for i in range(repeats):
            x = block(x, channels, kernel, 1 if i else stride, expansion)
    return g.classify(g.unit(x, 1280, act=g.relu))


def regnet_y_400mf(seed: int = 0) -> onnx.ModelProto:
    """RegNetY-400MF (Radosavovic et al. 2020): groups of eight channels, squeeze and excitation."""
    g = Mobile("regnet_y_400mf", seed)

    def block(x: str, width: int, stride: int) -> str:
        y = g.unit(x, width, act=g.relu)
        y = g.unit(y, width, 3, stride, groups=width // 8, act=g.relu)
        y = g.unit(g.excite(y, round(g.channels[x] / 4), g.relu, g.sigmoid), width)
        if stride > 1 or g.channels[x] != width:
            x = g.unit(x, width, 1, stride)
        return g.relu(g.op("Add", x, y))

    x = g.unit(g.input("x", (1, 3, 224, 224)), 32, 3, 2, act=g.relu)
    for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for i in range(depth):
            x = block(x, width, 1 if i else 2)
    return g.classify(x)


def shufflenet_v2(seed: int = 0) -> onnx.ModelProto:
    """ShuffleNet v2 1.0 (Ma et al. 2018): half of the channels pass by, and the halves are shuffled."""
    g = Mobile("shufflenet_v2", seed)

    def branch(x: str, channels: int, stride: int) -> str:
        y = g.unit(x, channels, act=g.relu)
        return g.unit(g.unit(y, channels, 3, stride, groups=channels), channels, act=g.relu, gain=1.0)

    def block(x: str, channels: int, image: int, stride: int) -> str:
        if stride == 1:
            passed, worked = g.split(x, 2, axis=1)
            x = g.concat(passed, branch(worked, channels // 2, 1))
        else:
            down = g.unit(x, g.channels[x], 3, 2, groups=g.channels[x])
            x = g.concat(g.unit(down, channels // 2, act=g.relu, gain=1.0), branch(x, channels // 2, 2))
        pairs = g.op("Transpose", g.reshape(x, 1, 2, channels // 2, image, image), perm=[0, 2, 1, 3, 4])
        return g.reshape(pairs, 1, channels, image, image, channels=channels)

    x = g.unit(g.input("x", (1, 3, 224, 224)), 24, 3, 2, act=g.relu)
    x = g.max_pool(x, 3, 2, 1)
    for channels, repeats, image in ((116, 4, 28), (232, 8, 14), (464, 4, 7)):
        for i in range(repeats):
            x = block(x, channels, image, 1 if i else 2)
    return g.classify(g.unit(x, 1024, act=g.relu))


MOBILE = {
    function.__name__: function for function in (efficientnet_b0, mobilenet_v3, mnasnet, regnet_y_400mf, shufflenet_v2)
}
