"""Designs of experiments: of all combinations of values so many that every two values of two factors occur together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product


def pairs(*factors: Sequence) -> list[tuple]:
    """Combinations of a value of each factor, chosen greedily: always the first of those with the most new pairs."""
    rows = list(product(*(range(len(factor)) for factor in factors)))
    new = {row: set(combinations(enumerate(row), 2)) for row in rows}
    chosen = []
    while new:
        row = max(new, key=lambda row: len(new[row]))
        seen = new.pop(row)
        chosen.append(tuple(factor[at] for factor, at in zip(factors, row, strict=True)))
        new = {row: left for row, left in ((row, pairs - seen) for row, pairs in new.items()) if left}
    return chosen
