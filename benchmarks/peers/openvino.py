"""OpenVINO, its processor plugin in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino

from benchmarks.peers import worker

_CACHE = "cache"  # a folder


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Write its own format, which loading maps into memory."""
    openvino.save_model(openvino.convert_model(str(model)), str(folder / "model.xml"), compress_to_fp16=False)


def cache(folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Compile once, so that the compiled model is in its own cache."""
    (folder / _CACHE).mkdir()
    load(folder, inputs, threads, None)()


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Compile for the lowest latency of one stream."""
    config = {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
    }
    if (folder / _CACHE).exists():
        config["CACHE_DIR"] = str(folder / _CACHE)
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", config)
    request = compiled.create_infer_request()
    ports = range(len(compiled.outputs))

    def call() -> list[np.ndarray]:
        request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(i).data for i in ports]

    return call


if __name__ == "__main__":
    worker.main("openvino", convert, load, cache)
