"""A GPU, as a machine that kernels are chosen for."""

from __future__ import annotations

from dataclasses import dataclass

from ..tiles.tile import VectorUnit
from .architecture import Architecture


@dataclass(frozen=True)
class Gpu:
    """A GPU, and the CPU's threads that serve it."""

    architecture: Architecture
    threads: int = 1

    @property
    def serial(self) -> VectorUnit:
        """For kernels that are for CPUs only: one number at a time, as a thread has no vectors (`cuda/fallback.py`)."""
        return VectorUnit(width=1, registers=32, threads=self.threads)
