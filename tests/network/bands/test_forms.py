"""Layers in bands of rows: less memory, the same answers."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from tests.conformance.verdict import UNOPTIMISED


def network() -> onnx.ModelProto:
    """Large images at the start: a convolution and a pool, a depthwise and a residual block, two branches joined."""
    g = Graph("bands", seed=5)
    x = g.max_pool(g.relu(g.conv(g.input("x", (1, 3, 64, 64)), 24, 3)), 3, 2, padding=1)
    y = g.relu(g.conv(g.relu(g.conv(x, 96, 1)), 96, 3, stride=2, groups=96))
    x = g.relu(g.op("Add", g.conv(y, 32, 1), g.conv(x, 32, 1, stride=2), channels=32))
    left, right = g.relu(g.conv(x, 40, 1)), g.relu(g.conv(x, 24, 3))
    x = g.conv(g.op("Concat", left, right, axis=1, channels=64), 16, 1)
    return g.model(g.op("GlobalAveragePool", x), (1, 16, 1, 1))


@pytest.fixture(scope="module")
def artifact() -> flexcomp.Artifact:
    return flexcomp.build(network(), threads=2, kernels="smallest")


def is_band(layer) -> bool:
    return layer.band_of is not None


def test_the_summary_shows_the_bands_of_a_layer_together(artifact):
    text = artifact.summary()
    assert re.search(r"conv2d\.\d+ in \d+\s+bands", text.replace("│", " "))
    assert "[0:" not in text


def test_bands_lower_the_minimum(artifact):
    """The first pool alone reads and writes 24 channels at 64×64 and at 32×32 pixels."""
    program = artifact.program
    assert program.rungs[0].budget < 0.6 * (64 * 64 + 32 * 32) * 24 * 4
    assert any(is_band(program.layers[step.layer]) for step in program.rungs[0].steps)
    assert not any(is_band(program.layers[step.layer]) for step in program.rungs[-1].steps)
    names = [layer.name for layer in program.layers]
    assert len(set(names)) == len(names)


def test_bands_share_the_weights_of_their_layer(artifact):
    by_base: dict[str, set] = {}
    for layer in artifact.program.layers:
        if layer.weights:
            by_base.setdefault(layer.band_of or layer.name, set()).add(layer.weights)
    assert any(is_band(layer) and layer.weights for layer in artifact.program.layers)
    assert all(len(weights) == 1 for weights in by_base.values())


def test_no_value_or_layer_is_without_use(artifact):
    program = artifact.program
    assert {step.layer for rung in program.rungs for step in rung.steps} == set(range(len(program.layers)))
    assert all(any(rung.value_at[value] >= 0 for rung in program.rungs) for value in range(len(program.values)))


def test_every_rung_computes_the_same(artifact, tmp_path):
    """Bands add up the same products in the same order as the whole kernels: not a bit differs."""
    artifact.export_library(tmp_path / "network.so")
    reference = onnxruntime.InferenceSession(network().SerializeToString())
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("f4")
    expected = reference.run(None, {"x": x})[0]
    outputs = []
    for threads in (1, 2):
        with flexcomp.load(tmp_path / "network.so", threads=threads) as session:
            for rung in artifact.program.rungs:
                session.set_budget(rung.budget)
                outputs.append(session(x))
    np.testing.assert_allclose(outputs[0], expected, atol=1e-5 * abs(expected).max())
    assert all(np.array_equal(output, outputs[0]) for output in outputs)


def test_a_budget_below_the_minimum_names_the_band_that_sets_it(artifact):
    with pytest.raises(flexcomp.BudgetError, match=r"set by layer \S+\[\d+:\d+\] \(node \w+\): [\d,]+ B of activations"):
        flexcomp.build(network(), threads=2, kernels="smallest", budget=artifact.program.rungs[0].budget - 1)


def test_bands_take_faster_kernels_where_their_scratch_fits(tmp_path):
    """Three convolutions of a large image, then weights that are loaded: the first rungs have time for neither."""
    g = Graph("fast_bands", seed=2)
    x = g.relu(g.conv(g.input("x", (1, 3, 64, 64)), 64, 3))
    for _ in range(3):
        x = g.relu(g.conv(x, 64, 3))
    model = g.model(g.dense(g.op("Flatten", g.op("GlobalAveragePool", x)), 64), (1, 64))
    artifact = flexcomp.build(model, UNOPTIMISED, threads=1)
    program = artifact.program
    used = [{program.layers[step.layer] for step in rung.steps} for rung in program.rungs]
    banded = [{layer.implementation.split()[0] for layer in layers if is_band(layer)} for layers in used]
    assert any("winograd" in families for families in banded)
    artifact.export_library(tmp_path / "network.so")
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("f4")
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    with flexcomp.load(tmp_path / "network.so") as session:
        for rung in program.rungs:
            session.set_budget(rung.budget)
            np.testing.assert_allclose(session(x), expected, atol=1e-5 * abs(expected).max())
