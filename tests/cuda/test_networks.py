"""Whole networks for GPUs on the CPU: layers of a CPU's build run as kernels for GPUs, in any order of their threads."""

import numpy as np
import onnxruntime
import pytest

from benchmarks.networks.architectures import example_input
from flexcomp.demo import compare, zoo
from flexcomp.device import resolve_target, with_tf32
from tests.cuda import reduced
from tests.cuda.network import networks
from tests.decoding import Sizes, gpt2_decoder
from tests.operators.inputs import inputs_of
from tests.operators.networks import NETWORKS


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    return networks(NETWORKS, "jetson-orin", tmp_path_factory.mktemp("operators"))


@pytest.mark.parametrize("name", NETWORKS)
def test_operators_agree_with_onnx_runtime(operators, name):
    reference = onnxruntime.InferenceSession(NETWORKS[name].SerializeToString())
    given = inputs_of(reference)
    expected = dict(zip([o.name for o in reference.get_outputs()], reference.run(None, given), strict=True))
    found = operators[name].run(given, seed=1, steps=2)
    assert list(found) == list(expected)
    for key, want in expected.items():
        assert found[key].dtype == want.dtype and found[key].shape == want.shape
        np.testing.assert_allclose(found[key], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} {key}")


def test_a_network_agrees_with_onnx_runtime(tmp_path):
    """Whole, and in steps as small budgets want them."""
    model = reduced.NETWORKS["squeezenet"]()
    network = networks({"squeezenet": model}, "h200", tmp_path)["squeezenet"]
    given = example_input(model)
    expected = compare.reference(model, given)
    for seed, steps in enumerate((1, 100)):
        assert compare.relative_error(network.run(given, seed, steps), expected) < 1e-5


def test_a_network_of_rounded_operands_nearly_agrees(tmp_path):
    """Outputs are exponentials of numbers around twenty, of which few parts in ten thousand may be wrong."""
    model = zoo.load("squeezenet")
    network = networks({"squeezenet": model}, with_tf32(resolve_target("h200")), tmp_path)["squeezenet"]
    given = zoo.example_input(model)
    assert 1e-5 < compare.relative_error(network.run(given, 1), compare.reference(model, given)) < 1e-2


def test_a_decoder_agrees_with_onnx_runtime(tmp_path):
    """Embeddings, attention over caches, and writes into these."""
    model = gpt2_decoder(5, 24, Sizes(layers=1, width=64, heads=4, vocabulary=100))
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    given = {**inputs_of(reference), "at": np.array([7])}
    expected = reference.run(None, given)
    found = networks({"decoder": model}, "jetson-orin", tmp_path)["decoder"].run(given, seed=1, steps=2)
    for got, want in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
