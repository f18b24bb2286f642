"""Warnings for old names, and attributes that still answer to one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def warn(old: str, new: str) -> None:
    """A DeprecationWarning at the call of the caller."""
    warnings.warn(f"{old} is now called {new}; the old name ends with this version", DeprecationWarning, stacklevel=3)


class OldAttribute:
    """An attribute under its old name, to be read only: `retry_after_s = OldAttribute("retry_after_ms", seconds)`."""

    def __init__(self, new: str, convert: Callable[[Any], Any]) -> None:
        self.new, self.convert = new, convert

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        warn(f"{owner.__name__}.{self.old}", self.new)
        return self.convert(getattr(instance, self.new))

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(f"{type(instance).__name__}.{self.old} is now called {self.new}")


def seconds(milliseconds: float) -> float:
    """A time in milliseconds in seconds."""
    return milliseconds / 1e3
