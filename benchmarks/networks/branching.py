"""Networks whose layers branch: groups, concatenations, encoders with decoders.

Each function takes a seed and returns a model from "x", a picture, to "output", as exported from PyTorch.
"""

from __future__ import annotations

from functools import partial

import onnx

from benchmarks.networks.architectures import resnet
from benchmarks.networks.graph import RECTIFIED_GAIN, Graph, Kernel


def googlenet(seed: int = 0) -> onnx.ModelProto:
    """GoogLeNet (Szegedy et al. 2015) with batch normalisation and 3×3 convolutions for the 5×5 ones."""
    g = Graph("googlenet", seed)

    def inception(x: str, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> str:
        return g.concat(
            g.rectified(x, one), g.rectified(g.rectified(x, three[0]), three[1], 3),
            g.rectified(g.rectified(x, five[0]), five[1], 3), g.rectified(g.max_pool(x, 3, 1, 1, ceil=True), pooled),
        )

    x = g.max_pool(g.rectified(g.input("x", (1, 3, 224, 224)), 64, 7, 2), 3, 2, ceil=True)
    x = g.max_pool(g.rectified(g.rectified(x, 64), 192, 3), 3, 2, ceil=True)
    x = inception(x, 64, (96, 128), (16, 32), 32)
    x = inception(x, 128, (128, 192), (32, 96), 64)
    x = g.max_pool(x, 3, 2, ceil=True)
    x = inception(x, 192, (96, 208), (16, 48), 64)
    x = inception(x, 160, (112, 224), (24, 64), 64)
    x = inception(x, 128, (128, 256), (24, 64), 64)
    x = inception(x, 112, (144, 288), (32, 64), 64)
    x = inception(x, 256, (160, 320), (32, 128), 128)
    x = g.max_pool(x, 2, 2, ceil=True)
    x = inception(x, 256, (160, 320), (32, 128), 128)
    x = inception(x, 384, (192, 384), (48, 128), 128)
    return g.classify(x)


def inception_v3(seed: int = 0) -> onnx.ModelProto:
    """Inception v3 (Szegedy et al. 2016) for pictures of 299×299, without the auxiliary classifier."""
    g = Graph("inception_v3", seed)
    unit = g.rectified

    def chain(x: str, *layers: tuple[int, Kernel]) -> str:
        for channels, kernel in layers:
            x = unit(x, channels, kernel)
        return x

    def wide(x: str, pooled: int) -> str:
        return g.concat(
            unit(x, 64), chain(x, (48, 1), (64, 5)), chain(x, (64, 1), (96, 3), (96, 3)),
            unit(g.average_pool(x, 3, 1, 1), pooled),
        )

    def long(x: str, inner: int) -> str:
        row, column = (1, 7), (7, 1)
        return g.concat(
            unit(x, 192), chain(x, (inner, 1), (inner, row), (192, column)),
            chain(x, (inner, 1), (inner, column), (inner, row), (inner, column), (192, row)),
            unit(g.average_pool(x, 3, 1, 1), 192),
        )

    def forked(x: str) -> str:
        return g.concat(unit(x, 384, (1, 3)), unit(x, 384, (3, 1)))

    def last(x: str) -> str:
        pooled = unit(g.average_pool(x, 3, 1, 1), 192)
        return g.concat(unit(x, 320), forked(unit(x, 384)), forked(chain(x, (448, 1), (384, 3))), pooled)

    x = unit(g.input("x", (1, 3, 299, 299)), 32, 3, 2, 0)
    x = unit(unit(x, 32, 3, 1, 0), 64, 3)
    x = g.max_pool(x, 3, 2)
    x = g.max_pool(unit(unit(x, 80), 192, 3, 1, 0), 3, 2)
    for pooled in (32, 64, 64):
        x = wide(x, pooled)
    x = g.concat(unit(x, 384, 3, 2, 0), unit(chain(x, (64, 1), (96, 3)), 96, 3, 2, 0), g.max_pool(x, 3, 2))
    for inner in (128, 160, 160, 192):
        x = long(x, inner)
    narrow = unit(unit(x, 192), 320, 3, 2, 0)
    x = g.concat(narrow, unit(chain(x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 3, 2, 0), g.max_pool(x, 3, 2))
    return g.classify(last(last(x)))


def densenet121(seed: int = 0) -> onnx.ModelProto:
    """DenseNet-121 (Huang et al. 2017): every layer reads all earlier ones, normalised anew."""
    g = Graph("densenet121", seed)

    def normalised(x: str) -> str:
        return g.relu(g.batch_norm(x))

    x = g.max_pool(g.rectified(g.input("x", (1, 3, 224, 224)), 64, 7, 2), 3, 2, 1)
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            x = g.average_pool(g.conv(normalised(x), g.channels[x] // 2, 1, bias=False), 2, 2)
        features = [x]
        for _ in range(depth):
            everything = g.concat(*features)
            y = g.relu(g.unit(normalised(everything), 128))
            features.append(g.conv(y, 32, 3, bias=False))
        x = g.concat(*features)
    return g.classify(normalised(x))


def unet(seed: int = 0) -> onnx.ModelProto:
    """U-Net (Ronneberger et al. 2015), 32 channels wide at the top, with batch normalisation and padding."""
    g = Graph("unet", seed)

    def double(x: str, channels: int) -> str:
        return g.rectified(g.rectified(x, channels, 3), channels, 3)

    def up(x: str, channels: int) -> str:
        weights = g.filters((g.channels[x], channels, 2, 2), (0,), RECTIFIED_GAIN)
        biases = g.normal((channels,), 0.05)
        return g.op("ConvTranspose", x, weights, biases, channels=channels, kernel_shape=[2, 2], strides=[2, 2])

    x = g.input("x", (1, 3, 224, 224))
    kept = []
    for channels in (32, 64, 128, 256):
        x = double(x, channels)
        kept.append(x)
        x = g.max_pool(x, 2, 2)
    x = double(x, 512)
    for channels in (256, 128, 64, 32):
        x = double(g.concat(kept.pop(), up(x, channels)), channels)
    return g.model(g.conv(x, 2, 1, gain=1.0), (1, 2, 224, 224))


BRANCHING = {"resnext50": partial(resnet, "resnext50", (3, 4, 6, 3), widened=2, groups=32)}
BRANCHING |= {function.__name__: function for function in (googlenet, densenet121, inception_v3, unet)}
