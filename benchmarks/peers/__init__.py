"""The engines that `benchmarks.compare` measures side by side: one module each, run in an environment of its own.

A module of an engine gives `worker.main` two functions, one that converts an ONNX model and one that loads the
result. Only its own process imports the module, so this package needs none of the engines.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """The name and needs of an engine."""

    name: str  # of its module in this package
    title: str
    requirements: tuple[str, ...] = ()  # pip requirements; none: in the environment of the caller
    unaided: tuple[str, ...] = ()  # requirements installed without their dependencies
    converts_per_threads: bool = False  # converts anew for every number of threads
    caches: bool = False  # can keep its form of a model, to start sooner

    @property
    def is_peer(self) -> bool:
        return self.name != "flexcomp"


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("flexcomp", "flexcomp", converts_per_threads=True),
        # pnnx depends on PyTorch for exporting, which converting an ONNX file does not need.
        Engine("ncnn", "ncnn", ("ncnn==1.0.20261020", "numpy"), ("pnnx==20261020",)),
        Engine("onnxruntime", "ONNX Runtime", ("onnxruntime==1.31.1", "numpy"), caches=True),
        Engine("mnn", "MNN", ("MNN==3.6.1", "numpy"), caches=True),
        Engine("openvino", "OpenVINO", ("openvino==2026.4.1", "numpy"), caches=True),
    )
}
