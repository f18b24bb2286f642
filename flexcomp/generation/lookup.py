"""Proposals for the next tokens, looked up in the text so far. Source: Saxena, "Prompt Lookup Decoding" (2023)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

_LENGTHS = (3, 2)  # of the last tokens that are looked up, the longest first


class PromptLookup:
    """A text that grows, and the places where its last tokens were there before. A `Proposer`."""

    token_s = 0.0

    def __init__(self) -> None:
        self._text = array("i")
        self._place: int | None = None  # where the proposal begins

    def read(self, context: Sequence[int]) -> None:
        """Nothing is prepared."""

    def most(self, sequence: Sequence[int], context: Sequence[int], count: int) -> int:
        """`count`, if the last tokens of `sequence` were there before. `sequence` begins with that of the call before."""
        self._text.extend(sequence[len(self._text) :])
        known = np.frombuffer(self._text, np.int32)
        self._place = next((place for length in _LENGTHS if (place := _latest(known, length)) is not None), None)
        return 0 if self._place is None else count

    def propose(self, count: int) -> list[int]:
        """The tokens that followed then."""
        if self._place is None:
            return []
        found = list(self._text[self._place : self._place + count])
        period = len(self._text) - self._place
        while len(found) < count:  # the text repeats its end
            found.append(found[-period])
        return found


def _latest(text: np.ndarray, length: int) -> int | None:
    """The place after the last earlier occurrence of the last `length` tokens."""
    places = len(text) - length  # where they may begin, but at the end
    if places <= 0:
        return None
    same = np.ones(places, bool)
    for offset in range(length):
        same &= text[offset : offset + places] == text[places + offset]
    found = np.flatnonzero(same)
    return int(found[-1]) + length if len(found) else None
