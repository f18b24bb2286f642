"""An encoder and a decoder with skips, quantised as ONNX Runtime's dynamic quantiser does."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.networks.graph import Graph

_WIDEST = 256  # channels


class DynamicallyQuantised(Graph):
    """A graph whose convolutions take integers: weights of 8 bits, and activations quantised by their range at run time."""

    def integer_conv(self, x: str, channels: int, kernel: int, stride: int = 1) -> str:
        """DynamicQuantizeLinear, ConvInteger, Cast, Mul by both scales, Add of the bias."""
        number, within = len(self.nodes), self.channels[x]
        parts = [f"{part}{number}" for part in ("quantised", "scale", "zero")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], parts, name=f"quantise{number}"))
        weights = self.weight(self.rng.integers(-127, 128, (channels, within, kernel, kernel)).astype(np.int8))
        found = self.op(
            "ConvInteger", parts[0], weights, parts[2], self.weight(np.int8(0)), channels=channels, group=1,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, dilations=[1, 1],
        )  # fmt: skip
        found = self.op("Cast", found, to=TensorProto.FLOAT)
        deviation = math.sqrt(within * kernel * kernel) * 127 / math.sqrt(3)
        found = self.op("Mul", found, self.op("Mul", parts[1], self.number(math.sqrt(2) / deviation)))
        return self.op("Add", found, self.normal((1, channels, 1, 1), 0.05))


def segmentation(size: int = 1024, levels: int = 6, depth: int = 8, bottom: int = 9, seed: int = 0) -> onnx.ModelProto:
    """Two classes for each pixel: 2 + 2 · levels · (depth + 1) + bottom convolutions, 119 by default."""
    g = DynamicallyQuantised("segmentation", seed)
    x = g.relu(g.integer_conv(g.input("x", (1, 3, size, size)), 16, 3))
    skips = []
    for _ in range(levels):
        for _ in range(depth):
            x = g.relu(g.integer_conv(x, g.channels[x], 3))
        skips.append(x)
        x = g.relu(g.integer_conv(x, min(2 * g.channels[x], _WIDEST), 3, 2))
    for _ in range(bottom):
        x = g.relu(g.op("Add", x, g.integer_conv(x, g.channels[x], 3)))
    for skip in reversed(skips):
        x = g.op(
            "Resize", x, "", g.floats(1, 1, 2, 2), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        x = g.relu(g.integer_conv(g.concat(x, skip), g.channels[skip], 1))
        for _ in range(depth):
            x = g.relu(g.integer_conv(x, g.channels[x], 3))
    return g.model(g.integer_conv(x, 2, 1), (1, 2, size, size))


SEGMENTATION = {"segmentation_int8": segmentation}
