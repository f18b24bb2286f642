"""Every network of networks.py through build, export and the runtime, at both ends of the ladder."""

import numpy as np
import onnxruntime
import pytest

import flexcomp

from .inputs import inputs_of
from .networks import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_onnx_runtime(name, tmp_path):
    network = NETWORKS[name]
    reference = onnxruntime.InferenceSession(network.SerializeToString())
    given = inputs_of(reference)
    expected = dict(zip([o.name for o in reference.get_outputs()], reference.run(None, given), strict=True))
    flexcomp.build(network, threads=2).export_library(tmp_path / "network.so")
    for budget in (None, "min"):
        with flexcomp.load(tmp_path / "network.so", budget=budget) as session:
            for _ in range(2):
                found = session.run(given)
                assert list(found) == list(expected)
                for key, want in expected.items():
                    assert found[key].dtype == want.dtype and found[key].shape == want.shape
                    np.testing.assert_allclose(found[key], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} {key}")
