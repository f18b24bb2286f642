"""A network's results beside those of ONNX Runtime or, where it cannot run the network, of ONNX's own implementation."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.jointly import Found


def agree(network: onnx.ModelProto, rtol: float = 2e-6, atol: float = 1e-37, **given: np.ndarray) -> Generator[..., Found, Found]:
    """For a test that shares its build (`tests.jointly`)."""
    found = yield network, given
    try:
        want = onnxruntime.InferenceSession(network.SerializeToString()).run(None, given)
    except Exception:  # its class is of no public name
        with np.errstate(all="ignore"):
            want = ReferenceEvaluator(network).run(None, given)
    for (name, got), expected in zip(found.items(), want, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=name)
    return found
