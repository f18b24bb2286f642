"""Whether progress is shown, and how, for callers who gave no choice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flexcomp.errors import InputError

Progress = Callable[[str, int, int], None]  # phase, done, total


@contextmanager
def shown(progress: Progress | bool | None, title: str) -> Iterator[Progress]:
    """The function to report to: `progress` itself, or a display (True), or none (False).

    None: shown where somebody looks on, in terminals and notebooks. Raises InputError for anything else.
    """
    if callable(progress):
        yield progress
    elif progress is False or (progress is None and not _somebody_looks_on()):
        yield lambda phase, done, total: None
    elif progress is None or progress is True:
        from flexcomp.report.progress import BuildProgress

        with BuildProgress(title) as bars:
            yield bars
    else:
        raise InputError(f"progress must be a function, True or False, not {progress!r}")


def _somebody_looks_on() -> bool:
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    if "ipykernel" not in sys.modules:  # before rich is imported, for nothing
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter
