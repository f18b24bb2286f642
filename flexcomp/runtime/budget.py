"""Memory budgets as people write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from flexcomp.errors import BudgetError
from flexcomp.json_text import parse, whole
from flexcomp.units import Units, enough, human_bytes

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "m": 10**6, "g": 10**9,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_LONGEST = 40  # characters; Python reads no numbers of thousands of digits
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*|%)\s*")
MINIMUM = "minimum"  # metadata of a program: the layer that sets its smallest budget


@dataclass(frozen=True)
class Budget:
    """A parsed budget: one of a byte count, a fraction of the resident size, or a bound; or none of them, the default."""

    nbytes: int | None = None
    fraction: float | None = None  # of the size of the fully resident model, in (0, 1]
    smallest: bool = False  # as small as any plan goes
    largest: bool = False  # everything resident
    units: Units = field(default=Units.BINARY, compare=False)  # of the given amount, and of answers

    def __str__(self) -> str:
        if self.nbytes is not None:
            return f"{self.nbytes} bytes"
        if self.fraction is not None:
            return f"{self.fraction:g} of the resident size"
        return "min" if self.smallest else "everything resident" if self.largest else "the smallest that is nearly as fast as any"


def parse_budget(text: int | float | str | Budget | None) -> Budget:
    """Read a budget: bytes (`32000000`), `"32MB"` or `"32M"` (10^6), `"32MiB"` (2^20), a fraction (`0.1`, `"10%"`), or a bound.

    Bounds are `"min"`, and `"all"` for everything resident; `"none"` or None stand for the smallest budget whose latency is
    within 2 % of the least, as predicted and with faster computing. A number with a decimal point and no unit is a fraction,
    also as a string. Raises BudgetError.
    """
    if text is None or isinstance(text, Budget):
        return text or Budget()
    if isinstance(text, bool):
        raise BudgetError(f"a budget is a number of bytes, not {text}")
    if isinstance(text, Real) and not isinstance(text, Integral):
        return _fraction(float(text), text)
    if isinstance(text, str):
        return _read(text)
    try:
        return _bytes(text.__index__(), text, Units.BYTES)
    except AttributeError:
        raise BudgetError(f"a budget is a number or a string, not {type(text).__name__}") from None


def resolve(
    budget: int | float | str | Budget | None, min_bytes: int, default_bytes: int, resident_bytes: int, minimum: str = ""
) -> int:
    """The budget in bytes, for a model that needs `min_bytes` at least and `resident_bytes` with all weights resident.

    Raises BudgetError when bytes or a fraction come out below `min_bytes`; `minimum` is the text of `note_minimum`.
    """
    parsed = parse_budget(budget)
    if parsed.nbytes is not None:
        nbytes = parsed.nbytes
    elif parsed.fraction is not None:
        nbytes = int(parsed.fraction * resident_bytes)
    else:
        return min_bytes if parsed.smallest else resident_bytes if parsed.largest else default_bytes
    if nbytes < min_bytes:
        raise BudgetError(too_small(nbytes, min_bytes, minimum, parsed.units))
    return nbytes


def resolve_in(budget: int | float | str | Budget | None, info: Mapping) -> int:
    """As `resolve`, for the library that says `info` of itself."""
    minimum, resident = info.get("metadata", {}).get(MINIMUM, ""), info["resident_bytes"]
    # Libraries of earlier versions have no other default.
    return resolve(budget, info["min_budget_bytes"], info.get("default_budget_bytes", resident), resident, minimum)


def note_minimum(layer: str, needs: Mapping[str, int]) -> str:
    """For a program's metadata: the layer that sets the smallest budget, and its needs at once, in bytes by name."""
    return json.dumps({"layer": layer, "needs": dict(needs)}, ensure_ascii=False)


def too_small(asked: int, smallest: int, minimum: str, units: Units) -> str:
    """The message about a budget of `asked` bytes; the runner uses the same words (`runtime_ext/runner/budget.cc`)."""
    least = f"the smallest feasible budget is {enough(smallest, units)}{set_by(minimum, units)}"
    return f"a budget of {human_bytes(asked, units)} is too small: {least}"


def set_by(minimum: str, units: Units, *, with_needs: bool = True) -> str:
    """", set by layer …", from the text of `note_minimum`, with or without the layer's needs; empty if unknown."""
    try:
        facts = parse(minimum)
        parts = [f"{human_bytes(whole(nbytes), units)} of {what}" for what, nbytes in facts["needs"].items() if nbytes]
        return f", set by layer {facts['layer']}" + (f": {', '.join(parts)}" if with_needs else "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""


def _read(text: str) -> Budget:
    word = text.strip().lower()
    if word in ("min", "all", "none"):
        return Budget(smallest=word == "min", largest=word == "all")
    match = _AMOUNT.fullmatch(text) if len(text) <= _LONGEST else None
    if match and match[2] == "%":
        return _fraction(float(match[1]) / 100, text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in _UNITS:
        raise BudgetError(
            f'cannot read the budget "{text}": write bytes, "64MB", "64MiB", a fraction such as 0.1 or 10%, "min" or "all"'
        )
    if "." in match[1] and not unit:
        return _fraction(float(match[1]), text)
    nbytes = int(float(match[1]) * _UNITS[unit]) if "." in match[1] else int(match[1]) * _UNITS[unit]
    return _bytes(nbytes, text, Units.BYTES if unit in ("", "b") else Units.BINARY if "i" in unit else Units.DECIMAL)


def _fraction(value: float, text: object) -> Budget:
    if not math.isfinite(value) or not 0 < value <= 1:
        raise BudgetError(
            f"a budget without a unit and with a decimal point is a fraction in (0, 1], and one with % is at most 100, not {text}"
        )
    return Budget(fraction=value)


def _bytes(nbytes: int, text: object, units: Units) -> Budget:
    if not 0 < nbytes < 2**63:
        raise BudgetError(f"a budget is at least one byte and less than 2^63, not {text}")
    return Budget(nbytes=nbytes, units=units)
