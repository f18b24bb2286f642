"""A network of several kernels for each layer."""

import onnx

import flexcomp
from benchmarks.networks.graph import Graph


def network() -> onnx.ModelProto:
    """Three 3×3 convolutions that Winograd computes faster, with more weights, and a strided one that it cannot."""
    g = Graph("variants", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 64, 64)), 64, 3, stride=2))
    for _ in range(3):
        x = g.relu(g.conv(x, 64, 3))
    return g.model(g.op("GlobalAveragePool", x), (1, 64, 1, 1))


def families(artifact: flexcomp.Artifact, rung: int) -> list[str]:
    layers = artifact.program.layers
    return [layers[step.layer].implementation.split()[0] for step in artifact.program.rungs[rung].steps]
