"""Which kernel measured times speak for."""

from __future__ import annotations

from collections.abc import Mapping

# Part of the default's time by which another kernel must be faster. Times of one kernel, minima of a few trials minutes
# apart on a quiet machine, differ by up to 2 %; with dozens of candidates chance alone would find some that are "faster".
NOISE = 0.02


def decide(seconds: Mapping[str, float], default: str) -> str:
    """The fastest kernel if the default failed or is slower by more than noise; else the default."""
    best = min(seconds, key=lambda name: (seconds[name], name), default=default)
    clearly = default not in seconds or seconds[best] < (1 - NOISE) * seconds[default]
    return best if clearly else default
