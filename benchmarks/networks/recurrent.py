"""Networks with memory: recogniser of lines of text, acoustic model, gated network over a series.

Each function takes a seed and returns a model with output "output", as exported from PyTorch with a batch of one. The input is
"x", sequences first: [steps, 1, features]; that of the recogniser is a line of text [1, 1, 32, 320].
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import helper

from benchmarks.networks.graph import Graph

STEPS = 100
CHARACTERS = 5530
LETTERS = 29
FEATURES = 80
SERIES = 64

_GATES = {"LSTM": 4, "GRU": 3}


class Recurrent(Graph):
    """Sequences are [steps, 1, features]."""

    def recurrent(self, kind: str, x: str, hidden: int, bidirectional: bool = False) -> str:
        """A layer as in PyTorch: the states of all steps, those of both directions side by side."""
        directions, rows = 1 + bidirectional, _GATES[kind] * hidden
        weights = self.normal((directions, rows, self.channels[x]), (1 / self.channels[x]) ** 0.5)
        again = self.normal((directions, rows, hidden), (1 / hidden) ** 0.5)
        bias = self.normal((directions, 2 * rows), 0.05)
        attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
        name = f"{kind.lower()}{len(self.nodes)}"
        way = "bidirectional" if bidirectional else "forward"
        self.nodes.append(
            helper.make_node(kind, [x, weights, again, bias], [name], name=name, hidden_size=hidden, direction=way, **attributes)
        )
        if not bidirectional:
            return self.op("Squeeze", name, self.integers(1), channels=hidden)
        turned = self.op("Transpose", name, perm=[0, 2, 1, 3])
        return self.reshape(turned, 0, 0, -1, channels=2 * hidden)

    def tall_pool(self, x: str) -> str:
        """Half the rows, and as many columns: 2×2 pixels with stride (2, 1)."""
        return self.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 1], pads=[0, 1, 0, 1])


def crnn_lite(seed: int = 0) -> onnx.ModelProto:
    """CRNN-lite of chineseocr_lite (crnn_lite_lstm_v2), 2.4 million weights: separable convolutions, two bidirectional LSTMs."""
    g = Recurrent("crnn_lite", seed)

    def separable(x: str, channels: int) -> str:
        return g.conv(g.relu(g.conv(x, g.channels[x], 3, groups=g.channels[x])), channels, 1)

    x = g.relu(g.conv(g.input("x", (1, 1, 32, 320)), 24, 5, 2))
    x = g.max_pool(separable(x, 128), 2, 2)
    x = g.tall_pool(separable(separable(x, 256), 256))
    x = g.tall_pool(separable(separable(x, 512), 512))
    x = g.relu(g.conv(x, 512, 2, 1, 0, groups=512))
    x = g.op("Squeeze", g.conv(x, 512, 1), g.integers(2))
    x = g.op("Transpose", x, perm=[2, 0, 1], channels=512)
    x = g.linear(g.recurrent("LSTM", x, 128, bidirectional=True), 256)
    x = g.linear(g.recurrent("LSTM", x, 64, bidirectional=True), CHARACTERS)
    return g.model(x, (81, 1, CHARACTERS))


def lstm_acoustic(seed: int = 0, steps: int = STEPS) -> onnx.ModelProto:
    """Three LSTMs of 512 units over frames of 80 mel bands, and letters."""
    g = Recurrent("lstm_acoustic", seed)
    x = g.input("x", (steps, 1, FEATURES))
    g.channels[x] = FEATURES
    for _ in range(3):
        x = g.recurrent("LSTM", x, 512)
    return g.model(g.op("LogSoftmax", g.linear(x, LETTERS), axis=-1), (steps, 1, LETTERS))


def gru_series(seed: int = 0, steps: int = STEPS) -> onnx.ModelProto:
    """Two GRUs of 256 units over a series of 64 values, and the next values."""
    g = Recurrent("gru_series", seed)
    x = g.input("x", (steps, 1, SERIES))
    g.channels[x] = SERIES
    for _ in range(2):
        x = g.recurrent("GRU", x, 256)
    return g.model(g.linear(x, SERIES), (steps, 1, SERIES))


RECURRENT: dict[str, Callable[[], onnx.ModelProto]] = {
    "crnn_lite": crnn_lite, "gru_series": gru_series, "lstm_acoustic": lstm_acoustic,
}
