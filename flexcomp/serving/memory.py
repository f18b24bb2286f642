"""Bounds for freed memory that the C library keeps: enough for the next body, but not the leftovers of a load."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt


def keep_freed_memory() -> None:
    """Have glibc keep up to 2 MiB that was freed: memory given back after every body comes again page by page.

    And in one heap for all threads, where requests use the leftovers of a load; threads that run already have their own.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_TRIM_THRESHOLD, 2 << 20)
        mallopt(_MMAP_THRESHOLD, 1 << 20)


def give_back_freed_memory() -> None:
    """Have glibc give back free memory now, also in the middle of its heap: after a rare large use."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
