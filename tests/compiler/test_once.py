"""A build does once what its choices of kernels share."""

from collections import Counter
from dataclasses import replace

import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.passes import fuse_layers, pretransform_weights
from flexcomp.passes.choose_kernels import layer_spec

TARGET = "llvm -mcpu=x86-64-v3"


def network(depth: int):
    """Convolutions for which small, balanced and fast kernels differ, and a depthwise one, for which they do not."""
    g = Graph("alike", seed=2)
    x = g.relu(g.conv(g.input("x", (1, 64, 32, 32)), 64, 1))
    for _ in range(depth):
        x = g.relu(g.op("Add", g.conv(x, 64, 3), x, channels=64))
    x = g.relu(g.conv(g.max_pool(x, 2, 2), 64, 3, groups=64))
    return g.model(g.conv(x, 64, 3), (1, 64, 16, 16))


def test_layers_are_found_once_and_each_kernel_is_built_once(monkeypatch):
    searches, built = [], Counter()
    groups, chosen = fuse_layers._groups, pretransform_weights.chosen

    def watched(layer, unit):
        candidate = chosen(layer, unit)
        name = f"{layer_spec(layer)}: {candidate}"
        return replace(candidate, build=lambda: built.update([name]) or candidate.build())

    monkeypatch.setattr(fuse_layers, "_groups", lambda main: searches.append(main) or groups(main))
    monkeypatch.setattr(pretransform_weights, "chosen", watched)
    artifact = flexcomp.build(network(3), target=TARGET, threads=1)
    assert {layer.implementation.split()[0] for layer in artifact.program.layers} >= {"direct", "winograd", "depthwise"}
    assert len(searches) == 1
    assert len(built) >= 4 and set(built.values()) == {1}


@pytest.mark.parametrize("depth", [4, 16])
def test_the_search_for_epilogues_looks_at_what_reads_a_layer(depth, monkeypatch):
    """Not at all that follows: networks of a thousand operators took seconds."""
    looked = []
    fits = fuse_layers._fits
    monkeypatch.setattr(fuse_layers, "_fits", lambda *args: looked.append(args) or fits(*args))
    flexcomp.build(network(depth), target=TARGET, threads=1, kernels="smallest")
    assert len(looked) <= 5 * (depth + 2)
