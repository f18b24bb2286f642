"""flexcomp: built for the number of threads, run at a budget or with everything resident."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import flexcomp
import flexcomp.runtime.session  # imports of loading belong to the idle process, as with the other engines
from benchmarks.peers import worker

LIBRARY = "model.so"


def convert(model: Path, folder: Path, inputs: worker.Inputs, threads: int) -> None:
    """Build the library."""
    flexcomp.build(str(model), threads=threads).export_library(str(folder / LIBRARY))


def load(folder: Path, inputs: worker.Inputs, threads: int, budget: int | None) -> worker.Call:
    """Open the library at a budget in bytes, or with everything resident."""
    session = flexcomp.load(folder / LIBRARY, budget="all" if budget is None else budget, threads=threads)

    def call() -> list[np.ndarray]:
        return list(session.run(inputs).values())

    return call


if __name__ == "__main__":
    worker.main("flexcomp", convert, load)
