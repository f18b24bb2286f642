"""A process of `benchmarks.lab.versus`, for the environment of any checkout: only the runtime of flexcomp is imported.

    python versus_worker.py LIBRARY BYTES_PER_SECOND
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np


def serve(library: Path, bandwidth: float | None) -> None:
    """Print the memory for everything resident; run in the budget on standard input's first line, so often as later lines say."""
    import flexcomp

    random = np.random.default_rng(0)
    with flexcomp.load(library, "min", threads=1, read_bandwidth=bandwidth) as session:
        sizes = {"smallest": session.info["min_budget_bytes"], "resident": session.info["resident_bytes"]}
        print(json.dumps(sizes), flush=True)
        if not (line := sys.stdin.readline()):
            return
        session.set_budget(int(line))
        inputs = {port.name: _drawn(random, port.shape, np.dtype(port.dtype)) for port in session.inputs}
        outputs = session.run(inputs)
        saved = library.with_name(f"{library.name}.{os.getpid()}.npz")
        np.savez(saved, **outputs)
        print(json.dumps({"outputs": str(saved), "bytes_read": session.stats()["bytes_read"]}), flush=True)
        for line in sys.stdin:
            ends = [time.perf_counter()]
            for _ in range(int(line)):
                session.run(inputs)
                ends.append(time.perf_counter())
            print(json.dumps({"median_ms": statistics.median(np.diff(ends)) * 1e3}), flush=True)


def _drawn(random: np.random.Generator, shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    return random.standard_normal(shape).astype(kind) if kind.kind == "f" else random.integers(0, 100, shape).astype(kind)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]) or None)
