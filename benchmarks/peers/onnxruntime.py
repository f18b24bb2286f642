"""ONNX Runtime, its processor provider in float32."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.peers import worker


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """It reads ONNX files."""
    os.link(model, folder / "model.onnx")


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Open a session with all graph optimisations, which are its default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])

    def call() -> list[np.ndarray]:
        return session.run(None, dict(inputs))

    return call


if __name__ == "__main__":
    worker.main("onnxruntime", convert, load)
