"""OpenVINO, its processor plugin in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino

from benchmarks.peers import worker


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Write its own format, which it maps into memory when it loads."""
    openvino.save_model(openvino.convert_model(str(model)), str(folder / "model.xml"), compress_to_fp16=False)


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Compile for the lowest latency of one stream."""
    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", config)
    request = compiled.create_infer_request()
    ports = range(len(compiled.outputs))

    def call() -> list[np.ndarray]:
        request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(i).data for i in ports]

    return call


if __name__ == "__main__":
    worker.main("openvino", convert, load)
