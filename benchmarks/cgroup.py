"""A memory control group around one process: the operating system's own count of its memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A control group with a limit that covers anonymous memory and page cache, without swap."""

    def __init__(self, folder: Path, limit_nbytes: int) -> None:
        self.folder = folder
        self.is_v1 = (folder / "memory.limit_in_bytes").exists()
        self._write("memory.limit_in_bytes" if self.is_v1 else "memory.max", limit_nbytes)
        for name, value in (("memory.memsw.limit_in_bytes", limit_nbytes), ("memory.swap.max", 0)):
            if (folder / name).exists():
                self._write(name, value)

    @property
    def prefix(self) -> list[str]:
        """A command that moves itself into the group and becomes the command that follows."""
        return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(self.folder)]

    def facts(self) -> dict[str, int]:
        """Peak, how often the limit was hit, processes killed, bytes swapped."""
        if self.is_v1:
            stat, oom = self._table("memory.stat"), self._table("memory.oom_control")
            return {
                "peak_bytes": int(self._read("memory.max_usage_in_bytes")), "hits": int(self._read("memory.failcnt")),
                "kills": oom.get("oom_kill", 0), "swap_bytes": stat.get("swap", 0),
            }
        events, peak = self._table("memory.events"), self.folder / "memory.peak"
        swap = self.folder / "memory.swap.current"
        return {
            "peak_bytes": int(peak.read_text()) if peak.exists() else 0, "hits": events.get("max", 0),
            "kills": events.get("oom_kill", 0), "swap_bytes": int(swap.read_text()) if swap.exists() else 0,
        }

    def anonymous_nbytes(self) -> int:
        """Anonymous bytes of its processes."""
        return self._table("memory.stat")["total_rss" if self.is_v1 else "anon"]

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def _write(self, name: str, value: int) -> None:
        (self.folder / name).write_text(str(value))

    def _table(self, name: str) -> dict[str, int]:
        return {key: int(value) for key, value in (line.split() for line in self._read(name).splitlines())}


def is_available() -> bool:
    """Whether this machine lets us make memory control groups."""
    try:
        with memory_group(1 << 30):
            return True
    except OSError:
        return False


@contextmanager
def memory_group(limit_nbytes: int) -> Iterator[MemoryGroup]:
    """A fresh group, removed at the end. Raises OSError where control groups are not available."""
    parent = _V1 if _V1.is_dir() else _V2
    folder = parent / f"flexcomp-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        yield MemoryGroup(folder, limit_nbytes)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for attempt in range(50):
        try:
            folder.rmdir()
            return
        except OSError:  # the kernel still lets go of the last process
            if attempt == 49:
                raise
            time.sleep(0.1)
