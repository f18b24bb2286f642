"""A tuner's progress and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TunedLayer:
    """A layer's kernels before and after."""

    description: str
    count: int  # layers of the network that are like this
    trials: int  # all in the database, earlier ones included
    default: str
    default_seconds: float | None  # None: not measured, or failed
    best: str | None  # a build's choice
    best_seconds: float | None

    @property
    def saved(self) -> float:
        """Seconds that the better kernel saves in one inference."""
        if self.default_seconds is None or self.best_seconds is None:
            return 0.0
        return self.count * (self.default_seconds - self.best_seconds)


@dataclass(frozen=True)
class TuningReport:
    """A tuner's results."""

    database: Path
    trials: int  # of this run
    failed: int
    layers: tuple[TunedLayer, ...]

    @property
    def default_seconds(self) -> float:
        """One inference, in each shape, in the kernels chosen without tuning, as far as measured."""
        return sum(layer.count * (layer.default_seconds or 0.0) for layer in self.layers)

    @property
    def best_seconds(self) -> float:
        """The same layers in the best kernels."""
        return self.default_seconds - sum(layer.saved for layer in self.layers)


@dataclass(frozen=True)
class TrialDone:
    """News for a progress display."""

    stage: str  # "trying", or "comparing" default and best kernels again in the end
    done: int  # in this stage
    total: int
    earlier: int  # kernels that the database knew before
    layer: str
    kernel: str
    seconds: float | None
    error: str | None
    default_seconds: float | None
    best_seconds: float | None
