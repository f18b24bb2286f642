"""Networks between convolutions and transformers: windows of attention, normalised pixels, letters in columns.

Each function takes a seed and returns a model with output "output", as exported from PyTorch. The input is "x", a
picture [1, 3, 224, 224]; that of the classifier of texts is "input_ids", int64 [1, letters].
"""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.networks.architectures import residual_gain
from benchmarks.networks.graph import CLASSES, Graph

TO_NHWC, TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def convnext_tiny(seed: int = 0) -> onnx.ModelProto:
    """ConvNeXt-T (Liu et al. 2022): the norm and the dense layers of a block read its pixels as rows."""
    g = Graph("convnext_tiny", seed)
    gain = residual_gain(18)

    def norm(x: str) -> str:
        rows = g.layer_norm(g.op("Transpose", x, perm=TO_NHWC), 1e-6)
        return g.op("Transpose", rows, perm=TO_NCHW)

    def block(x: str) -> str:
        width = g.channels[x]
        y = g.op("Transpose", g.conv(x, width, 7, groups=width, gain=1.0), perm=TO_NHWC)
        y = g.gelu(g.linear(g.layer_norm(y, 1e-6), 4 * width, 1.5))
        y = g.op("Transpose", g.linear(y, width, 1.5), perm=TO_NCHW)
        scale = g.weight((gain * g.rng.uniform(0.9, 1.1, (width, 1, 1))).astype(np.float32))
        return g.op("Add", g.op("Mul", scale, y, channels=width), x)

    x = g.conv(g.input("x", (1, 3, 224, 224)), 96, 4, 4, 0, gain=1.0)
    for stage, depth in enumerate((3, 3, 9, 3)):
        x = norm(x)
        if stage:
            x = g.conv(x, 96 << stage, 2, 2, 0, gain=1.0)
        for _ in range(depth):
            x = block(x)
    x = norm(g.op("GlobalAveragePool", x))
    return g.model(g.dense(g.op("Flatten", x, axis=1), CLASSES), (1, CLASSES))


class Swin(Graph):
    """Swin-T's parts (Liu et al. 2021); activations are [1, height, width, channels]."""

    WINDOW = 7
    HEAD = 32  # channels

    def cut(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """A range of an axis; `end` counts from the start, or is huge."""
        return self.op("Slice", x, *(self.integers(value) for value in (start, end, axis, step)))

    def rolled(self, x: str, shift: int) -> str:
        """Pictures rolled by `shift` pixels along both axes."""
        for axis in (1, 2):
            parts = (self.cut(x, axis, -shift, 1 << 62), self.cut(x, axis, 0, -shift))
            x = self.op("Concat", *parts, axis=axis)
        return x

    def in_windows(self, x: str, image: int, width: int) -> str:
        """[1, image, image, width] → [windows, 49, width]."""
        side = image // self.WINDOW
        x = self.op("Transpose", self.reshape(x, 1, side, self.WINDOW, side, self.WINDOW, width), perm=[0, 1, 3, 2, 4, 5])
        return self.reshape(x, side * side, self.WINDOW**2, width, channels=width)

    def from_windows(self, x: str, image: int, width: int) -> str:
        """The reverse."""
        side = image // self.WINDOW
        x = self.op("Transpose", self.reshape(x, 1, side, side, self.WINDOW, self.WINDOW, width), perm=[0, 1, 3, 2, 4, 5])
        return self.reshape(x, 1, image, image, width, channels=width)

    def attention(self, x: str, image: int, shift: int) -> str:
        """Attention within windows of 7×7 pixels, which are shifted first and shifted back."""
        width, tokens = self.channels[x], self.WINDOW**2
        heads, windows = width // self.HEAD, (image // self.WINDOW) ** 2
        if shift:
            x = self.rolled(x, -shift)
        y = self.linear(self.in_windows(x, image, width), 3 * width, 1.5)
        y = self.op("Transpose", self.reshape(y, windows, tokens, 3, heads, self.HEAD), perm=[2, 0, 3, 1, 4])
        query, key, value = (self.op("Gather", y, self.weight(np.int64(i)), axis=0) for i in range(3))
        query = self.op("Mul", query, self.number(self.HEAD**-0.5))
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.op("Add", scores, self.normal((1, heads, tokens, tokens), 0.3))
        if shift:
            scores = self.reshape(scores, 1, windows, heads, tokens, tokens)
            scores = self.op("Add", scores, self.weight(self.mask(image, shift)))
            scores = self.reshape(scores, windows, heads, tokens, tokens)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        rows = self.reshape(self.op("Transpose", mixed, perm=[0, 2, 1, 3]), windows, tokens, width, channels=width)
        y = self.from_windows(self.linear(rows, width), image, width)
        return self.rolled(y, shift) if shift else y

    def mask(self, image: int, shift: int) -> np.ndarray:
        """-100 where a window holds pixels from opposite sides of the picture: [1, windows, 1, 49, 49]."""
        side = image // self.WINDOW
        stripe = np.digitize(np.arange(image), [image - self.WINDOW, image - shift])
        regions = (3 * stripe[:, None] + stripe).reshape(side, self.WINDOW, side, self.WINDOW)
        regions = regions.transpose(0, 2, 1, 3).reshape(side * side, -1)
        differs = regions[:, None, :] != regions[:, :, None]
        return np.where(differs, np.float32(-100), np.float32(0))[None, :, None]

    def merged(self, x: str) -> str:
        """Four neighbours become one pixel, of twice the channels."""
        width = self.channels[x]
        quarters = []
        for column, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
            rows = self.cut(x, 1, row, 1 << 62, 2)
            quarters.append(self.cut(rows, 2, column, 1 << 62, 2))
        y = self.layer_norm(self.op("Concat", *quarters, axis=-1, channels=4 * width))
        weights = self.filters((4 * width, 2 * width), (0,), 1.0)
        return self.op("MatMul", y, weights, channels=2 * width)


def swin_tiny(seed: int = 0) -> onnx.ModelProto:
    """Swin-T (Liu et al. 2021), attention and GELU in elementary operators."""
    g = Swin("swin_tiny", seed)
    x = g.conv(g.input("x", (1, 3, 224, 224)), 96, 4, 4, 0, gain=1.0)
    x = g.layer_norm(g.op("Transpose", x, perm=TO_NHWC))
    image = 56
    for stage, depth in enumerate((2, 2, 6, 2)):
        if stage:
            x, image = g.merged(x), image // 2
        for block in range(depth):
            shift = g.WINDOW // 2 if block % 2 and image > g.WINDOW else 0
            x = g.op("Add", x, g.attention(g.layer_norm(x), image, shift))
            y = g.gelu(g.linear(g.layer_norm(x), 4 * g.channels[x], 1.5))
            x = g.op("Add", x, g.linear(y, g.channels[x]))
    x = g.op("Transpose", g.layer_norm(x), perm=TO_NCHW)
    return g.model(g.dense(g.global_pool(x), CLASSES), (1, CLASSES))


def charcnn(seed: int = 0, letters: int = 1014, alphabet: int = 70) -> onnx.ModelProto:
    """The convolutional network on letters (Zhang et al. 2015), as columns: kernels of 7×1 and 3×1, four classes."""
    g = Graph("charcnn", seed)
    ids = g.input("input_ids", (1, letters), onnx.TensorProto.INT64)
    x = g.op("Gather", g.normal((alphabet, alphabet), 1.0), ids, axis=0)
    x = g.op("Transpose", x, perm=[0, 2, 1], channels=alphabet)
    x = g.op("Unsqueeze", x, g.integers(3), channels=alphabet)

    def pooled(x: str) -> str:
        return g.op("MaxPool", x, kernel_shape=[3, 1], strides=[3, 1])

    for kernel, pools in ((7, True), (7, True), (3, False), (3, False), (3, False), (3, True)):
        x = g.relu(g.conv(x, 256, (kernel, 1), padding=0))
        x = pooled(x) if pools else x
    x = g.op("Flatten", x, axis=1, channels=256 * 34)
    for _ in range(2):
        x = g.relu(g.dense(x, 1024, 1.4))
    return g.model(g.dense(x, 4), (1, 4))


def textcnn(seed: int = 0, words: int = 128, width: int = 300) -> onnx.ModelProto:
    """The convolutional network on words (Kim 2014): kernels as wide as an embedding, the largest answer of each, 20 classes."""
    g = Graph("textcnn", seed)
    ids = g.input("input_ids", (1, words), onnx.TensorProto.INT64)
    x = g.op("Gather", g.normal((30000, width), 1.0), ids, axis=0)
    x = g.op("Unsqueeze", x, g.integers(1), channels=1)
    answers = []
    for kernel in (3, 4, 5):
        y = g.op("Squeeze", g.relu(g.conv(x, 100, (kernel, width), padding=0)), g.integers(3))
        length = words - kernel + 1
        y = g.op("MaxPool", y, kernel_shape=[length], strides=[length])
        answers.append(g.op("Squeeze", y, g.integers(2), channels=100))
    return g.model(g.dense(g.concat(*answers), 20), (1, 20))


SEQUENCES = {function.__name__: function for function in (convnext_tiny, swin_tiny, charcnn, textcnn)}
