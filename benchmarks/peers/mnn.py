"""MNN on the processor, in its high precision: float32 throughout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import MNN
import numpy as np

from benchmarks.peers import worker

_CACHE = "cache"  # a file
_TYPES = {"float32": MNN.Halide_Type_Float, "int32": MNN.Halide_Type_Int}


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Write its own format with the converter of its package."""
    converter = Path(sys.executable).with_name("mnnconvert")
    command = [converter, "-f", "ONNX", "--modelFile", model, "--MNNModel", folder / "model.mnn", "--bizCode", "bench"]
    # Recurrent layers as such: loops would be subgraphs, which sessions do not run.
    command.append("--useOriginRNNImpl")
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode or not (folder / "model.mnn").exists():
        raise SystemExit(f"mnnconvert ended with code {done.returncode} and no model")


def cache(folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Write the cache file of a session."""
    (folder / _CACHE).touch()
    interpreter, session = _session(folder, threads)
    interpreter.runSession(session)
    interpreter.updateCacheFile(session, 0)


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Create a session."""
    interpreter, session = _session(folder, threads)
    feeds = []
    for name, value in inputs.items():
        value = value.astype(np.int32) if value.dtype == np.int64 else value
        given = MNN.Tensor(value.shape, _TYPES[value.dtype.name], value, MNN.Tensor_DimensionType_Caffe)
        feeds.append((interpreter.getSessionInput(session, name), given))
    results = []
    for tensor in interpreter.getSessionOutputAll(session).values():
        shape = tensor.getShape()
        empty = np.zeros(shape, np.float32)
        results.append((tensor, MNN.Tensor(shape, MNN.Halide_Type_Float, empty, MNN.Tensor_DimensionType_Caffe)))

    def call() -> list[np.ndarray]:
        for tensor, given in feeds:
            tensor.copyFrom(given)
        interpreter.runSession(session)
        for tensor, taken in results:
            tensor.copyToHostTensor(taken)
        return [taken.getNumpyData() for _, taken in results]

    return call


def _session(folder: Path, threads: int) -> tuple[MNN.Interpreter, MNN.Session]:
    interpreter = MNN.Interpreter(str(folder / "model.mnn"))
    if (folder / _CACHE).exists():
        interpreter.setCacheFile(str(folder / _CACHE))
    return interpreter, interpreter.createSession({"backend": "CPU", "precision": "high", "numThread": threads})


if __name__ == "__main__":
    worker.main("MNN", convert, load, cache)
