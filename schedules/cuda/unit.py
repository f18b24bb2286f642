"""A GPU where passes ask for the vectors of a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from ..tiles.tile import VectorUnit
from .architecture import Architecture


@dataclass(frozen=True)
class Gpu(VectorUnit):
    """A GPU as passes know it. Families that are for CPUs only compute one number at a time: a thread has no vectors."""

    architecture: Architecture | None = None

    @classmethod
    def of(cls, architecture: Architecture) -> Gpu:
        return cls(width=1, registers=32, architecture=architecture)
