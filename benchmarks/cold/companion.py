"""Another process that wants a core: all the time, or a part of it in turns of some milliseconds.

    python -m benchmarks.cold.companion CORE SHARE

It says "busy" when it is, and ends when whoever started it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_S = 10e-3
_ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def busy(core: int, share: float) -> Iterator[None]:
    """Keep a core busy for a share of each period while the body of the `with` statement runs; a share of 0 does nothing."""
    if not share:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.cold.companion", str(core), str(share)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        try:
            if process.stdout.readline() != "busy\n":
                raise RuntimeError(f"core {core} cannot be kept busy")
            yield
        finally:
            process.kill()


def main() -> None:
    """Never ends by itself while its parent lives."""
    core, share, parent = int(sys.argv[1]), float(sys.argv[2]), os.getppid()
    os.sched_setaffinity(0, {core})
    print("busy", flush=True)
    while os.getppid() == parent:
        start = time.perf_counter()
        while time.perf_counter() < start + share * PERIOD_S:
            pass
        if share < 1:
            time.sleep(max(0.0, start + PERIOD_S - time.perf_counter()))


if __name__ == "__main__":
    main()
