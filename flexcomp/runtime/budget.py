"""Memory budgets as people write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from flexcomp.errors import BudgetError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_LONGEST = 40  # characters; Python reads no numbers of thousands of digits
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)\s*")


@dataclass(frozen=True)
class Budget:
    """A parsed budget: exactly one of a byte count, a fraction of the resident size, or a bound."""

    nbytes: int | None = None
    fraction: float | None = None  # of the size of the fully resident model, in (0, 1]
    smallest: bool = False  # as small as any plan goes; all three unset: everything resident

    def __str__(self) -> str:
        if self.nbytes is not None:
            return f"{self.nbytes} bytes"
        if self.fraction is not None:
            return f"{self.fraction:g} of the resident size"
        return "min" if self.smallest else "everything resident"


def parse_budget(text: int | float | str | Budget | None) -> Budget:
    """Read a budget: bytes (`32000000`), `"32MB"` (10^6), `"32MiB"` (2^20), a fraction (`0.1`), `"min"` or None.

    A number with a decimal point and no unit is a fraction, also as a string. Raises BudgetError.
    """
    if text is None or isinstance(text, Budget):
        return text or Budget()
    if isinstance(text, bool):
        raise BudgetError(f"a budget is a number of bytes, not {text}")
    if isinstance(text, float):
        return _fraction(text, text)
    if isinstance(text, str):
        if text.strip().lower() == "min":
            return Budget(smallest=True)
        match = _AMOUNT.fullmatch(text) if len(text) <= _LONGEST else None
        factor = _UNITS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise BudgetError(f'cannot read the budget "{text}": write bytes, "64MB", "64MiB", a fraction such as 0.1, or "min"')
        if "." in match[1] and not match[2]:
            return _fraction(float(match[1]), text)
        return _bytes(int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor, text)
    try:
        return _bytes(text.__index__(), text)
    except AttributeError:
        raise BudgetError(f"a budget is a number or a string, not {type(text).__name__}") from None


def resolve(budget: int | float | str | Budget | None, min_bytes: int, resident_bytes: int) -> int:
    """The budget in bytes, for a model that needs `min_bytes` at least and `resident_bytes` with all weights resident.

    Raises BudgetError when bytes or a fraction come out below `min_bytes`.
    """
    parsed = parse_budget(budget)
    if parsed.nbytes is not None:
        nbytes = parsed.nbytes
    elif parsed.fraction is not None:
        nbytes = int(parsed.fraction * resident_bytes)
    else:
        return min_bytes if parsed.smallest else resident_bytes
    if nbytes < min_bytes:
        raise BudgetError(f"a budget of {nbytes} bytes was asked for, the smallest feasible is {min_bytes} bytes")
    return nbytes


def _fraction(value: float, text: object) -> Budget:
    if not math.isfinite(value) or not 0 < value <= 1:
        raise BudgetError(f"a budget without a unit and with a decimal point is a fraction in (0, 1], not {text}")
    return Budget(fraction=value)


def _bytes(nbytes: int, text: object) -> Budget:
    if not 0 < nbytes < 2**63:
        raise BudgetError(f"a budget is at least one byte and less than 2^63, not {text}")
    return Budget(nbytes=nbytes)
