"""Room for deep recursion, while several threads recurse: the interpreter has one limit for all of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_asked: list[int] = []  # by all threads
_usual = 0  # the limit while no thread asks for more


@contextmanager
def recursion(calls: int) -> Iterator[None]:
    """Lets this thread nest `calls` more calls. The usual limit returns when no thread asks for more."""
    global _usual
    with _lock:
        if not _asked:
            _usual = sys.getrecursionlimit()
        _asked.append(calls)
        sys.setrecursionlimit(_usual + max(_asked))
    try:
        yield
    finally:
        with _lock:
            _asked.remove(calls)
            if not _asked:
                sys.setrecursionlimit(_usual)
