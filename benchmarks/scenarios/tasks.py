"""What runs in each scenario (SwapNet, section 8.1), and with how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flexcomp.runtime import TensorInfo, ladder_of, read_info


@dataclass(frozen=True)
class Task:
    """A network that answers requests."""

    name: str
    network: str  # of `benchmarks.models`
    urgency: float = 1.0


@dataclass(frozen=True)
class Scenario:
    """Tasks, and the bytes that the paper gives them."""

    name: str
    tasks: tuple[Task, ...]
    budget: int


_MB = 10**6
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "self-driving",
            (
                Task("objects", "yolo_v3"), Task("segments", "fcn_resnet101"), Task("signs", "vgg19_torch"),
                Task("cars", "resnet101"),
            ),
            843 * _MB,
        ),
        Scenario(
            "road-side",
            (
                Task("camera-1", "yolo_v3"), Task("camera-2", "yolo_v3"), Task("scene-1", "resnet101"),
                Task("scene-2", "resnet101"), Task("lights", "vgg19_torch"),
            ),
            1088 * _MB,
        ),
        Scenario("uav", (Task("fire", "yolo_v3"), Task("animals", "resnet101")), 325 * _MB),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Files:
    """Where `benchmarks.ladder NETWORK build` wrote libraries for a storage, and the weights lie."""

    folder: Path
    weights_folder: Path
    storage: str

    def library(self, task: Task) -> Path:
        """Of one task."""
        return self.folder / f"{task.network}.{self.storage}.best.so"

    def weights(self, task: Task) -> Path:
        """Of one task."""
        return self.weights_folder / f"{task.network}.weights"

    @property
    def options(self) -> dict[str, float]:
        """Of sessions, so that storage is as slow as that one."""
        return {} if self.storage in ("disk", "tmpfs") else {"read_bandwidth": float(self.storage)}

    def ladders(self, tasks: Sequence[Task]) -> list:
        """One for each task."""
        return [ladder_of(read_info(self.library(task))) for task in tasks]


def example(ports: Sequence[TensorInfo]) -> dict[str, np.ndarray]:
    """Inputs for a network, the same every time."""
    random = np.random.default_rng(0)
    return {port.name: random.standard_normal(port.shape).astype(port.array_dtype) for port in ports}
