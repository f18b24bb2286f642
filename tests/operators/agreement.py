"""A network's results beside those of ONNX Runtime or, where it cannot run the network, of ONNX's own implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import flexcomp


def run(network: onnx.ModelProto, tmp_path: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    flexcomp.build(network, threads=1, kernels="fastest").export_library(tmp_path / "network.so")  # which the largest budget runs
    with flexcomp.load(tmp_path / "network.so") as session:
        return session.run(given)


def agree(
    network: onnx.ModelProto, tmp_path: Path, rtol: float = 2e-6, atol: float = 1e-37, **given: np.ndarray
) -> dict[str, np.ndarray]:
    found = run(network, tmp_path, given)
    try:
        want = onnxruntime.InferenceSession(network.SerializeToString()).run(None, given)
    except Exception:  # its class is of no public name
        with np.errstate(all="ignore"):
            want = ReferenceEvaluator(network).run(None, given)
    for (name, got), expected in zip(found.items(), want, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=name)
    return found
