"""Several kernels for one layer: which rung uses which, and that all of them compute the same."""

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp.errors import InputError
from tests import uncompiled

from .variants import families, network


@pytest.fixture(scope="module")
def artifact(variants) -> flexcomp.Artifact:
    return variants


def test_small_rungs_take_small_kernels_and_large_ones_fast_kernels(artifact):
    assert "winograd" not in families(artifact, 0)
    assert families(artifact, -1).count("winograd") == 3
    assert artifact.program.rungs[-1].seconds < artifact.program.rungs[0].seconds


def test_alternatives_do_not_raise_the_minimum(artifact):
    smallest = uncompiled.artifact(network(), threads=1, kernels="smallest")
    assert smallest.program.rungs[0].budget == artifact.program.rungs[0].budget
    assert not any("winograd" in layer.implementation for layer in smallest.program.layers)
    assert smallest.program.weights_nbytes == artifact.program.weights_nbytes  # they lie in the file once


def test_only_the_fastest_kernels(artifact):
    fastest = uncompiled.artifact(network(), threads=1, kernels="fastest")
    assert len(fastest.program.layers) < len(artifact.program.layers)
    assert families(fastest, 0).count("winograd") >= 3


def test_every_rung_computes_the_same(artifact, tmp_path):
    artifact.export_library(tmp_path / "network.so")
    reference = onnxruntime.InferenceSession(network().SerializeToString())
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("f4")
    expected = reference.run(None, {"x": x})[0]
    with flexcomp.load(tmp_path / "network.so") as session:
        for rung in artifact.program.rungs:
            session.set_budget(rung.budget)
            np.testing.assert_allclose(session(x), expected, atol=1e-5 * abs(expected).max())


def test_an_unknown_strategy_is_refused():
    with pytest.raises(InputError, match="auto, smallest, fastest"):
        flexcomp.build(network(), kernels="quickest")
