"""What the C library keeps of memory that was freed: enough for the next body, and not what a load left."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt


def keep_freed_memory() -> None:
    """Have glibc keep up to 2 MiB that was freed: what it gives back after every body comes again page by page.

    And in one heap for all threads, where what a load leaves is used by requests; threads that run already have their own.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, 2 << 20)
        mallopt(_MMAP_THRESHOLD, 1 << 20)


def give_back_freed_memory() -> None:
    """Have glibc give back what is free now, also in the middle of its heap: after something that took much for once."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
