"""Measured times of a decoder's inferences, by their shapes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from statistics import median

_KEPT = 5  # times, of which the median counts: one inference may have been disturbed


class Pace:
    """Times in one plan. An inference in another shape than the one before may read weights, and is timed apart."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, bool], deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._plan: Hashable = None
        self._last: Sequence[float] = ()  # times of inferences like the last one

    @property
    def last_s(self) -> float | None:
        """What inferences like the last one take; None before the second."""
        return median(self._last) if self._last else None

    def note(self, size: int, before: int, seconds: float) -> None:
        """An inference in the shape for `size` tokens took so long, after one for `before`; 0: the first one."""
        self._last = ()
        if before:
            self._last = times = self._times[size, size != before]
            times.append(seconds)

    def seconds(self, size: int, changed: bool = False) -> float | None:
        """What an inference takes; None if that is not known."""
        times = self._times.get((size, changed))
        return median(times) if times else None

    def follow(self, plan: Hashable) -> None:
        """Forget the times of another plan."""
        if plan != self._plan:
            if self._plan is not None:
                self._times.clear()
            self._plan = plan
