"""Which code runs the planner's inner loops: C++ (`runtime_ext/planner`), or the Python that specifies the loops.

Both give the same plans, bit for bit; tests/plan/test_native.py compares them. The Python is for reading and for this test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IN_PYTHON: ContextVar[bool] = ContextVar("flexcomp_plan_in_python", default=False)


def in_python() -> bool:
    """Whether inner loops run in Python."""
    return _IN_PYTHON.get()


@contextmanager
def readable() -> Iterator[None]:
    """Run the inner loops in Python meanwhile: some forty times slower."""
    token = _IN_PYTHON.set(True)
    try:
        yield
    finally:
        _IN_PYTHON.reset(token)
