"""Every network of networks.py through build, export and the runtime, at both ends of the ladder."""

import numpy as np
import onnxruntime
import pytest

from tests.jointly import jointly

from .inputs import inputs_of
from .networks import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
@jointly(budgets=(None, "min"), runs=2, threads=2, target="native")
def test_agrees_with_onnx_runtime(name):
    network = NETWORKS[name]
    reference = onnxruntime.InferenceSession(network.SerializeToString())
    given = inputs_of(reference)
    expected = dict(zip([o.name for o in reference.get_outputs()], reference.run(None, given), strict=True))
    for found in (yield network, given).runs:
        assert list(found) == list(expected)
        for key, want in expected.items():
            assert found[key].dtype == want.dtype and found[key].shape == want.shape
            np.testing.assert_allclose(found[key], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} {key}")
