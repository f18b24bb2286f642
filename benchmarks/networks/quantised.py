"""Networks quantised by ONNX Runtime's own quantiser, from a few seeded inputs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization import QuantFormat, QuantType

FORMATS = {"QDQ": QuantFormat.QDQ, "QOperator": QuantFormat.QOperator}


@dataclass(frozen=True)
class Way:
    """How a network is quantised: activations in unsigned 8 bits, weights in signed ones without zero points."""

    format: str  # a key of FORMATS
    per_channel: bool

    def __str__(self) -> str:
        return f"{self.format}, a scale for each {'channel' if self.per_channel else 'tensor'}"


WAYS = tuple(Way(format_, per_channel) for format_ in FORMATS for per_channel in (False, True))


def quantise(model: onnx.ModelProto, inputs: Sequence[dict[str, np.ndarray]], way: Way, **options) -> onnx.ModelProto:
    """`model` quantised with the ranges that its tensors have on `inputs`. `options` are those of quantize_static.

    Weights have 7 of 8 bits: without VNNI ONNX Runtime adds pairs of products of 8 bits in 16, and larger ones saturate there.
    """
    chosen = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "reduce_range": True, **options}
    with tempfile.TemporaryDirectory() as folder:
        before, after = (Path(folder) / name for name in ("float.onnx", "quantised.onnx"))
        _fold(model, before)
        with _quiet():
            quantization.quantize_static(
                before, after, _Reader(inputs), quant_format=FORMATS[way.format], per_channel=way.per_channel, **chosen
            )
        return onnx.load(after)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantiser's warnings of every model that was not prepared by its own tool; it logs to the root."""
    root, only_errors = logging.getLogger(), lambda record: record.levelno >= logging.ERROR
    root.addFilter(only_errors)
    try:
        yield
    finally:
        root.removeFilter(only_errors)


def _fold(model: onnx.ModelProto, path: Path) -> None:
    """Write the model with its batch norms in the convolutions, which the quantiser asks for."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model.SerializeToString(), options)


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, inputs: Sequence[dict[str, np.ndarray]]) -> None:
        self._left = iter(inputs)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)
