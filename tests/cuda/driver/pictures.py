"""A small network of most kinds of layers."""

from __future__ import annotations

from benchmarks.networks.graph import Graph


def pictures():
    """Convolutions of all kinds, a residual sum, pooling, and dense layers of most of the weights."""
    g = Graph("pictures", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 3, 24, 24)), 32, 3, stride=2))
    y = g.relu(g.conv(x, 32, 3, groups=32))
    x = g.op("Add", x, g.conv(y, 32, 1), channels=32)
    x = g.op("MaxPool", g.relu(x), kernel_shape=[2, 2], strides=[2, 2], channels=32)
    x = g.relu(g.dense(g.op("Flatten", x, axis=1, channels=32 * 6 * 6), 1024))
    x = g.relu(g.dense(x, 256))
    return g.model(g.op("Softmax", g.dense(x, 100), axis=1), (1, 100))
