"""Caches of sequences that a session does not hold at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flexcomp.runtime import Session, TensorInfo

_PLACES = 2  # the axis of a cache


class Owner(Protocol):
    """The reply whose caches these are."""

    finish: str  # empty until the reply has ended


@dataclass(eq=False)
class Saved:
    """The caches of a sequence, without places that hold nothing."""

    tokens: list[int]
    caches: dict[str, np.ndarray]
    owner: Owner | None

    @property
    def is_needed(self) -> bool:
        """By a reply that has not ended."""
        return self.owner is not None and not self.owner.finish

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(one.nbytes for one in self.caches.values())


class SavedCaches:
    """Saved caches in `nbytes`. For new ones others go, those of replies that have ended before those of others, oldest first."""

    def __init__(self, session: Session, is_kept: bool = True) -> None:
        """`is_kept`: False saves nothing, whatever the limit."""
        self._session, self._is_kept = session, is_kept
        self._limit = 0
        self._entries: list[Saved] = []  # the one that was used last comes last
        states = session.states
        self.place_nbytes = sum(_nbytes(port) // port.shape[_PLACES] for port in states)

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(one.nbytes for one in tuple(self._entries))  # which another thread may change

    def set_limit(self, nbytes: int) -> None:
        """Hold so many bytes at most, from now on."""
        self._limit = nbytes if self._is_kept else 0
        self._make_room(0)

    def find(self, sequence: Sequence[int]) -> tuple[Saved | None, int]:
        """The saved sequence that begins as `sequence` for longest, and the number of tokens; None, 0 if none does."""
        found = [(common(one.tokens, sequence), one) for one in self._entries]
        count, entry = max(found, key=lambda pair: pair[0], default=(0, None))
        return (entry, count) if count else (None, 0)

    def save(self, tokens: Sequence[int], owner: Owner | None, wanted: Saved | None = None) -> None:
        """Save the caches that the session holds, of `tokens`, if there is room. Of the others `wanted` goes last."""
        self._entries = [one for one in self._entries if one is wanted or owner is None or one.owner is not owner]
        if wanted is not None:
            self._entries.remove(wanted)
            self._entries.append(wanted)
        if any(one.tokens[: len(tokens)] == tokens for one in self._entries):
            return
        if self._make_room(len(tokens) * self.place_nbytes):
            self._entries.append(Saved(list(tokens), self._session.state_parts(len(tokens), _PLACES), owner))

    def restore(self, entry: Saved, count: int) -> bool:
        """Give the session the first `count` tokens of a saved sequence; False if that is saved no more.

        The entry goes if these are all of its tokens.
        """
        if entry not in self._entries:
            return False
        for name, cache in entry.caches.items():  # one by one: a copy takes memory
            self._session.set_state_parts({name: np.ascontiguousarray(cache[:, :, :count])})
        if count == len(entry.tokens):
            self._entries.remove(entry)
        return True

    def _make_room(self, nbytes: int) -> bool:
        """Let saved caches go until there are `nbytes`; False, and nothing has changed, if that is more than the limit."""
        if nbytes > self._limit:
            return False
        while self._entries and self.nbytes + nbytes > self._limit:
            self._entries.remove(next((one for one in self._entries if not one.is_needed), self._entries[0]))
        return True


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with together."""
    count = min(len(one), len(other))
    if one[:count] == other[:count]:
        return count
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _nbytes(port: TensorInfo) -> int:
    return int(np.prod(port.shape)) * port.array_dtype.itemsize
