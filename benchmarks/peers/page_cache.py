"""Files out of the page cache, with proof."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
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
