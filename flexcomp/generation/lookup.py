"""Proposals for the next tokens, looked up in the text so far. Source: Saxena, "Prompt Lookup Decoding" (2023)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

_LENGTHS = (3, 2)  # of the last tokens that are looked up, the longest first


class PromptLookup:
    """A text that grows, and the places where its last tokens were there before."""

    def __init__(self) -> None:
        self._text = array("i")

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that followed when the last ones of `text` were there before; none if they were not.

        `text` begins with the text of the call before.
        """
        self._text.extend(text[len(self._text) :])
        known = np.frombuffer(self._text, np.int32)
        for length in _LENGTHS:
            if (place := _latest(known, length)) is None:
                continue
            found = known[place : place + count].tolist()
            period = len(known) - place
            while len(found) < count:  # the text repeats its end
                found.append(found[-period])
            return found
        return []


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
