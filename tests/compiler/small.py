"""A small network."""

import onnx

from benchmarks.networks.graph import Graph


def network() -> onnx.ModelProto:
    g = Graph("tiny", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 3, 32, 32)), 32, 3))
    x = g.max_pool(g.relu(g.conv(x, 64, 3, stride=2)), 4, 4)
    x = g.op("Flatten", x, axis=1, channels=64 * 4 * 4)
    return g.model(g.dense(x, 256), (1, 256))
