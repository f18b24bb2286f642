"""A network to tune."""

from benchmarks.networks.graph import Graph


def network():
    g = Graph("tunable", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 16, 24, 24)), 32, 3))
    x = g.relu(g.conv(x, 48, 1))
    return g.model(g.dense(g.op("Flatten", x, axis=1, channels=48 * 24 * 24), 10), (1, 10))
