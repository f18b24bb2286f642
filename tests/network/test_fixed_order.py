"""FlexNN's choice: Winograd, im2col, direct, the first that fits, layer by layer and budget by budget."""

from itertools import pairwise

import numpy as np
import onnxruntime
import pytest

import flexcomp
from tests.conformance.verdict import UNOPTIMISED

from .variants import families, network


@pytest.fixture(scope="module", params=["best", "flexnn"])
def artifact(request) -> flexcomp.Artifact:
    return flexcomp.build(network(), UNOPTIMISED, threads=1, kernels="flexnn", strategy=request.param)


def test_memory_decides_in_the_fixed_order(artifact):
    """Winograd with plenty, and never a kernel further back in the order with more memory."""
    rank = ("winograd", "im2col_gemm", "direct").index
    layers = artifact.program.layers
    ranks = []
    for rung in artifact.program.rungs:
        once = dict.fromkeys(step.layer for step in rung.steps if layers[step.layer].op == "conv2d")
        ranks.append([rank(layers[layer].implementation.split()[0]) for layer in once])
    assert ranks[-1] == [1, 0, 0, 0]
    assert 2 in ranks[0][1:]
    for smaller, larger in pairwise(ranks):
        assert all(one >= other for one, other in zip(smaller, larger, strict=True))


def test_the_strided_layer_has_no_winograd_kernel(artifact):
    assert next(family for family in families(artifact, -1) if family != "generic") == "im2col_gemm"


def test_every_rung_computes_the_same(artifact, tmp_path):
    artifact.export_library(tmp_path / "network.so")
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("f4")
    expected = onnxruntime.InferenceSession(network().SerializeToString()).run(None, {"x": x})[0]
    with flexcomp.load(tmp_path / "network.so") as session:
        for rung in artifact.program.rungs:
            session.set_budget(rung.budget)
            np.testing.assert_allclose(session(x), expected, atol=1e-5 * abs(expected).max())
