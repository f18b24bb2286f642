"""Concatenations that nobody computes: their parts are written where they belong."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph


def fires() -> onnx.ModelProto:
    """Parts of two layers, of a layer and a pool, one within another, a residual, and an image that is read again."""
    g = Graph("fires", seed=2)
    x = g.max_pool(g.relu(g.conv(g.input("x", (1, 3, 48, 48)), 32, 3)), 3, 2, padding=1)
    for width in (16, 24):
        y = g.relu(g.conv(x, 16, 1))
        x = g.op("Concat", g.relu(g.conv(y, width, 1)), g.relu(g.conv(y, 32, 3)), axis=1, channels=width + 32)
    pooled = g.max_pool(x, 3, 1, padding=1)
    inner = g.op("Concat", g.conv(x, 8, 1), pooled, axis=1, channels=64)
    x = g.op("Concat", g.relu(g.conv(inner, 20, 3)), g.relu(g.conv(x, 12, 1)), x, axis=1, channels=88)
    x = g.relu(g.op("Add", g.conv(x, 88, 1), x, channels=88))
    return g.model(g.op("GlobalAveragePool", x), (1, 88, 1, 1))


@pytest.fixture(scope="module")
def artifact() -> flexcomp.Artifact:
    return flexcomp.build(fires(), threads=2)


def test_only_what_is_no_layer_is_copied(artifact):
    joins = {layer.description for layer in artifact.program.layers if layer.op == "concat" and not layer.band_of}
    assert joins == {"concat (8)+56 × 576", "concat (20)+(12)+56 × 576"}
    writers: dict[int, set[str]] = {}
    for layer in artifact.program.layers:
        for arg in layer.args:
            if getattr(arg, "written", False) and not layer.band_of:
                writers.setdefault(arg.value, set()).add(layer.description)
    assert sum(len(found) > 1 for found in writers.values()) == 4


def test_the_summary_tells_them_apart(artifact):
    assert "56" in artifact.summary()
    described = [layer.description for layer in artifact.program.layers if " into " in layer.description]
    assert any(text.endswith("into 1×24×24×48 from 16") for text in described)


def test_answers_are_right_on_every_rung(artifact, tmp_path):
    artifact.export_library(tmp_path / "fires.so")
    x = np.random.default_rng(4).standard_normal((1, 3, 48, 48)).astype("f4")
    expected = onnxruntime.InferenceSession(fires().SerializeToString()).run(None, {"x": x})[0]
    assert any(layer.band_of for layer in artifact.program.layers)
    for threads in (1, 2):
        with flexcomp.load(tmp_path / "fires.so", threads=threads) as session:
            for rung in artifact.program.rungs:
                session.set_budget(rung.budget)
                for _ in range(2):
                    np.testing.assert_allclose(session(x), expected, atol=1e-5 * abs(expected).max())
