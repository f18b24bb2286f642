"""The storages that benchmarks plan for, and their rates."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flexcomp.compiler import probed_profile
from flexcomp.device import guessed_overhead_s, resolve_target
from flexcomp.device.copies import cache_of_copies
from flexcomp.plan import Storage

TMPFS = Path("/dev/shm")
_PROBE_NBYTES = 128 << 20
_LARGE, _SMALL = 4 << 20, 64 << 10  # bytes of a read; larger ones than the first are not faster


@dataclass(frozen=True)
class Medium:
    """Where weights are read from: `disk`, `tmpfs`, or a number, the disk slowed down to so many bytes per second."""

    name: str
    bandwidth: float  # bytes per second
    overhead_s: float  # seconds per load
    cache: int = 0  # as plan.Storage.cache
    together: float = 1.0  # as plan.Storage.together
    cached: float = 1.0  # as plan.Storage.cached

    def storage(self, wake_s: float, disturbance: float) -> Storage:
        """For planners. A device serves its queue with hardly a pause: there overhead is the latency of the first load."""
        once = self.overhead_s
        overhead, latency = (once, 0.0) if self.name == "tmpfs" else (guessed_overhead_s(once), once)
        return Storage(self.bandwidth, overhead, wake_s, disturbance, self.cache, self.together, latency, self.cached)

    def __post_init__(self) -> None:
        if self.name not in ("disk", "tmpfs"):
            float(self.name)


def media(names: Sequence[str], folder: Path, tmpfs: Path = TMPFS) -> list[Medium]:
    """The storages of these names; `folder` lies on the disk, `tmpfs` in memory."""
    return [_measured(name, tmpfs if name == "tmpfs" else folder) for name in names]


def _measured(name: str, folder: Path) -> Medium:
    if name != "tmpfs":  # as in a default build
        found, _ = probed_profile(folder, resolve_target("native"))
        limit = float("inf") if name == "disk" else float(name)
        return Medium(name, min(found.storage_bytes_per_s, limit), found.load_latency_s)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(_PROBE_NBYTES >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        large, small = (sequential_bandwidth(Path(file.name), size) for size in (_LARGE, _SMALL))
        cache, together = cache_of_copies(folder), max(1.0, _bandwidth_of_two(Path(file.name)) / large)
        beyond = min(large, sequential_bandwidth(Path(file.name), extent=max(_LARGE, 2 * cache)))
        overhead = max(0.0, _SMALL / small - _SMALL / large)
        return Medium(name, beyond, overhead, cache, together, large / beyond)


def _bandwidth_of_two(path: Path) -> float:
    """Bytes per second that two threads read together, each the whole file."""
    start = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sequential_bandwidth, (path, path)))
    return 2 * path.stat().st_size / (time.perf_counter() - start)


def sequential_bandwidth(path: Path, request: int = _LARGE, extent: int = 0) -> float:
    """Bytes per second of reading the file at `path` in order, one read at a time, past the page cache.

    Reads go round in `extent` bytes of memory, or in as many as one of them has.
    """
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, max(extent // request, 1) * request) as memory, memoryview(memory) as buffer:
            buffer[:] = bytes(len(buffer))
            total, start = 0, time.perf_counter()
            while (count := _read(file, buffer, total, request)) > 0:
                total += count
                if count % 4096:
                    break
            return total / (time.perf_counter() - start)
    finally:
        os.close(file)


def _read(file: int, buffer: memoryview, at: int, request: int) -> int:
    with buffer[at % len(buffer) :][:request] as place:
        return os.preadv(file, [place], at)
