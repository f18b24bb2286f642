"""ONNX Runtime, its processor provider in float32."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.peers import worker

_OPTIMISED = "optimised.onnx"
_PREPACKED = {  # options of a session
    "optimized_model_external_initializers_file_name": "optimised.weights",
    "optimized_model_external_initializers_min_size_in_bytes": "1024",
    "save_external_prepacked_constant_initializers": "1",
}


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """ONNX Runtime reads ONNX files."""
    os.link(model, folder / "model.onnx")


def cache(folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Save the optimised model, its weights packed as kernels want them, in a file of their own that can be mapped."""
    options = _options(threads)
    options.optimized_model_filepath = str(folder / _OPTIMISED)
    for key, value in _PREPACKED.items():
        options.add_session_config_entry(f"session.{key}", value)
    _session(folder / "model.onnx", options)
    (folder / "model.onnx").unlink()


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Open a session with all graph optimisations, which are its default, or with none if the model has had them."""
    options, optimised = _options(threads), folder / _OPTIMISED
    if optimised.exists():
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = _session(optimised if optimised.exists() else folder / "model.onnx", options)

    def call() -> list[np.ndarray]:
        return session.run(None, dict(inputs))

    return call


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _session(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    worker.main("onnxruntime", convert, load, cache)
