"""Python's collector of cycles during a build: hardly any of the millions of objects that a build makes are in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_SELDOM = 100_000  # new objects; with Python's 700 a tenth of a build goes to looking at old ones

_LOCK = Lock()
_inside = 0  # builds that are going on, in several threads perhaps
_usual = gc.get_threshold()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Cycles are looked for after `_SELDOM` new objects, until the last of those who asked for it is done."""
    global _inside, _usual
    with _LOCK:
        if not _inside:
            _usual = gc.get_threshold()
            if _usual[0]:  # 0: somebody has turned it off
                gc.set_threshold(_SELDOM, *_usual[1:])
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if not _inside:
                gc.set_threshold(*_usual)
