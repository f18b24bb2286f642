"""The machine of a measurement: files out of the page cache, with proof; memory that the host backs; processors' time it took."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ATTEMPTS = 20
_PAUSE_S = 0.05  # a page that is being written or read lets itself be dropped afterwards
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value
_TOUCH = """
import mmap, sys
place = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
if hasattr(mmap, "MADV_HUGEPAGE"):
    place.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(place), mmap.PAGESIZE):
    place[at] = 1
"""


class StillCached(RuntimeError):
    """Pages of a file would not leave the page cache."""


def forget(folder: Path) -> None:
    """`forget_files` of all files under `folder`."""
    forget_files(path for path in sorted(folder.rglob("*")) if path.is_file())


def forget_files(paths: Iterable[Path]) -> None:
    """Drop files from the page cache, so that whoever opens them next reads them from storage. Raises StillCached.

    Pages that another process has mapped stay, as does everything on a file system in memory.
    """
    for path in paths:
        for attempt in range(_ATTEMPTS):
            with open(path, "rb") as file:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not (left := cached_pages(path)):
                break
            time.sleep(_PAUSE_S if attempt else 0)
        else:
            raise StillCached(f"{left} pages of {path} stay in the page cache: is it on a disk, and not in use?")


def cached_pages(path: Path) -> int:
    """How many pages of the file at `path` are in the page cache."""
    nbytes = path.stat().st_size
    if not nbytes:
        return 0
    with open(path, "rb") as file:
        place = _LIBC.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if place == _FAILED:
        raise OSError(ctypes.get_errno(), f"cannot map {path}")
    try:
        states = ctypes.create_string_buffer(-(-nbytes // mmap.PAGESIZE))
        if _LIBC.mincore(place, nbytes, states):
            raise OSError(ctypes.get_errno(), f"cannot ask for the pages of {path}")
        return int((np.frombuffer(states, np.uint8) & 1).sum())
    finally:
        _LIBC.munmap(place, nbytes)


def back_memory(nbytes: int) -> None:
    """Have another process touch and free so much memory: processes that start in the next second find memory as on hardware.

    Where a host backs memory on demand, touching a gigabyte took 1.3 s the first time and 0.09 s at once again.
    """
    subprocess.run([sys.executable, "-S", "-c", _TOUCH, str(nbytes)], check=True)


@dataclass
class Conditions:
    """Filled in when a measurement ends."""

    steal: float = 0.0  # part of the processors' time that the host gave to others meanwhile


@contextmanager
def observed() -> Iterator[Conditions]:
    """Note the conditions under which the body of the `with` statement runs."""
    conditions = Conditions()
    ticks, stolen = _ticks()
    yield conditions
    ticks_after, stolen_after = _ticks()
    conditions.steal = (stolen_after - stolen) / max(ticks_after - ticks, 1)


def _ticks() -> tuple[int, int]:
    """Time of all processors since the start, and the part of it that the host gave to others."""
    with open("/proc/stat") as file:
        spent = [int(word) for word in file.readline().split()[1:9]]
    return sum(spent), spent[7]
