"""Checks of callers' arguments: wrong types raise errors of ours, which name the right type."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from flexcomp.errors import InputError


def checked_path(given: Any, what: str) -> Path:
    """A path. Raises InputError for anything else."""
    if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str):
        raise InputError(f"{what} must be a path, not {_shown(given)}")
    return Path(given)


def checked_text(given: Any, what: str) -> str:
    """A string. Raises InputError for anything else."""
    if not isinstance(given, str):
        raise InputError(f"{what} must be a string, not {_shown(given)}")
    return given


def checked_number(given: Any, what: str, least: int | None = None) -> int:
    """A whole number, `least` or more. Raises InputError for anything else."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise InputError(f"{what} must be a whole number, not {_shown(given)}")
    if least is not None and given.__index__() < least:
        raise InputError(f"{what} must be at least {least}, not {given}")
    return given.__index__()


def checked_flag(given: Any, what: str) -> bool:
    """True or False. Raises InputError for anything else."""
    if not isinstance(given, bool):
        raise InputError(f"{what} must be True or False, not {_shown(given)}")
    return given


def checked_milliseconds(given: Any, what: str) -> float:
    """A time of zero or more. Raises InputError for anything else."""
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 <= given < math.inf:
        raise InputError(f"{what} must be a number of milliseconds, not {_shown(given)}")
    return float(given)


def checked_name(given: Any, known: Iterable[str], what: str) -> str:
    """One of the names `known`. Raises InputError, which lists them, for anything else."""
    known = list(known)
    if not isinstance(given, str) or given not in known:
        raise InputError(f"{what}={given!r} is not known: it is one of {', '.join(known)}")
    return given


def checked_shapes(given: Any, what: str) -> dict[str, tuple[int, ...]]:
    """Shapes by name; None is no shapes. Raises InputError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f'{what} must be a dict such as {{"x": (1, 3, 224, 224)}}, not {_shown(given)}')
    shapes = {}
    for name, shape in given.items():
        if isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
            raise InputError(f"{what}[{name!r}] must be a shape such as (1, 3, 224, 224), not {_shown(shape)}")
        shapes[name] = tuple(checked_number(extent, f"an extent of {what}[{name!r}]") for extent in shape)
    return shapes


def _shown(given: Any) -> str:
    text = repr(given)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(given).__name__})"
