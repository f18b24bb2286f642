"""Layers with random operands, NumPy's answers, and kernels for GPUs that compute them in two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flexcomp.schedules.tiles import narrow_panel
from flexcomp.schedules.tiles.panel import Panel
from flexcomp.schedules.tiles.spec import ConvSpec
from tests.cuda.on_cpu.emulator import Emulator
from tests.schedules.reference import conv2d, pack

_ACTIVATIONS = {
    "add": np.add,
    "multiply": np.multiply,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@dataclass
class Layer:
    """A convolution with all that it reads."""

    spec: ConvSpec
    panel: Panel
    change: Callable[[np.ndarray], np.ndarray] | None = None  # of float32 operands, in what is expected only
    scratch: Sequence[tuple[int, ...]] = ()  # shapes

    def __post_init__(self) -> None:
        rng, spec = np.random.default_rng(0), self.spec
        self.x = rng.standard_normal((spec.batch, spec.height, spec.width, spec.in_channels)).astype("f4")
        self.tensors = [rng.standard_normal(spec.out_shape).astype("f4") for _ in range(spec.tensors)]
        weights = rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
        if spec.weights != "float32":
            weights = narrow_panel.rounded(weights, spec.weights)
        bias = rng.standard_normal(spec.out_channels).astype("f4")
        vectors = [rng.standard_normal(spec.out_channels).astype("f4") for _ in range(spec.channel_vectors)]
        self.packed = pack(self.panel, weights, bias, vectors)
        operands = {"tensor": self.tensors, "channel": vectors}
        x = self.change(self.x) if self.change else self.x
        if self.change and spec.weights == "float32":
            weights = self.change(weights)
        result = _evaluate(spec.epilogue, conv2d(spec, x, weights, bias), operands)
        self.expected = np.full(spec.y_shape, np.nan).ravel()
        pixels = np.arange(result.size // spec.out_channels)[:, None] * spec.y_stride
        self.expected[spec.y_start + pixels + np.arange(spec.out_channels)] = result.reshape(len(pixels), -1)
        self.expected = self.expected.reshape(spec.y_shape)

    def arguments(self, first: int, count: int, y: np.ndarray) -> list[np.ndarray | int]:
        scratch = [np.full(shape, np.nan, "f4") for shape in self.scratch]
        return [self.x, *self.tensors, self.packed[first : first + count], first, count, y, *scratch]

    def error(self, emulator: Emulator, name: str, seed: int) -> float:
        """The largest error of two steps, as a part of the largest result; what belongs to others must not be written."""
        y = np.full(self.spec.y_shape, np.nan, "f4")
        cut = self.panel.blocks // 2
        for first, count in ((0, cut), (cut, self.panel.blocks - cut)):
            if count:
                y = emulator.run(name, self.arguments(first, count, y), seed=seed)[2 + len(self.tensors)]
        assert np.array_equal(np.isnan(y), np.isnan(self.expected))
        return float(np.nanmax(np.abs(y - self.expected)) / np.nanmax(np.abs(self.expected)))

    def whole(self) -> list[np.ndarray | int]:
        return self.arguments(0, self.panel.blocks, np.full(self.spec.y_shape, np.nan, "f4"))


def _evaluate(epilogue, result: np.ndarray, operands: dict[str, list[np.ndarray]]) -> np.ndarray:
    head, *args = epilogue
    if head == "acc":
        return result
    if head in operands:
        return operands[head][args[0]]
    if head == "const":
        return np.asarray(args[0])
    return _ACTIVATIONS[head](*(_evaluate(arg, result, operands) for arg in args))
