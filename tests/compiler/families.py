"""A small network with kernels of several families."""

from benchmarks.networks.graph import Graph


def network():
    """Layers with kernels of several families, the first two in bands of rows, too."""
    g = Graph("tiny", seed=1)
    x = g.max_pool(g.relu(g.conv(g.input("x", (1, 3, 32, 32)), 16, 3)), 4, 4)
    x = g.op("Flatten", x, axis=1, channels=16 * 8 * 8)
    return g.model(g.dense(x, 8), (1, 8))
