"""JSON from files and programs: hostile text is a ValueError, whole numbers are whole, and numbers are numbers."""

from __future__ import annotations

import json
import math


def parse(text: str | bytes) -> object:
    """The value of the text. Raises ValueError for anything but JSON: also for lists in lists too deep to read, and for numbers
    that are none, or too large for a float."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError:
        raise ValueError("its lists and objects lie too deep in each other") from None


def whole(value: object) -> int:
    """A number that was written without a point. Raises ValueError for anything else, as 1.0, "1" and true are."""
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def real(value: object) -> float:
    """Raises ValueError for anything but a number."""
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value
