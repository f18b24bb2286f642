"""Memory of a process, and the allowance of its open sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PAGE = os.sysconf("SC_PAGESIZE")


def resident_now() -> int:
    """Bytes of resident memory, cheaply: the kernel's counters of the cores may be some pages behind."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def resident() -> int:
    """Bytes of resident memory, counted page by page."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))


class Allowance:
    """The sum of the budgets that are in use or may be at any moment, and its highest value of late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._peak = 0

    def change(self, nbytes: int) -> None:
        """From now on so much more, or less."""
        with self._lock:
            self._now += nbytes
            self._peak = max(self._peak, self._now)

    def begin(self) -> None:
        """Forget the past."""
        with self._lock:
            self._peak = self._now

    def peak(self) -> int:
        """The highest since `begin`."""
        with self._lock:
            return self._peak


class Share:
    """One session's part of an allowance: its largest possible budget.

    A call that makes the budget smaller counts after returning, one that makes it larger from its beginning. Of
    calls that overlap nobody knows which came last: the largest counts until one had the session to itself.
    """

    def __init__(self, allowance: Allowance, budget: int) -> None:
        self._allowance, self._lock = allowance, threading.Lock()
        self._possible, self._counted = {budget}, 0
        self._running, self._begun = 0, 0
        self._account()

    @contextmanager
    def changing(self, budget: int, settles: bool = True) -> Iterator[None]:
        """Around a call that sets `budget`; without `settles` the call may also leave the previous one."""
        with self._lock:
            self._running += 1
            self._begun += 1
            mine, alone = self._begun, self._running == 1
            self._possible.add(budget)
            self._account()
        returned = False
        try:
            yield
            returned = True
        finally:
            with self._lock:
                self._running -= 1
                if returned and settles and alone and self._begun == mine:
                    self._possible = {budget}
                    self._account()

    def end(self) -> None:
        """The session is closed."""
        with self._lock:
            self._possible = {0}
            self._account()

    def _account(self) -> None:
        now = max(self._possible)
        self._allowance.change(now - self._counted)
        self._counted = now


class Sampler:
    """A thread that compares resident memory with the allowance, until stopped."""

    def __init__(self, allowance: Allowance, interval_s: float) -> None:
        self._allowance, self._interval_s = allowance, interval_s
        self.idle_nbytes = 0  # of the process without sessions
        self._lock, self._most = threading.Lock(), -(1 << 62)
        self.samples = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def most_over(self) -> int:
        """Bytes beyond idle process and allowance, the most since the last call."""
        with self._lock:
            most, self._most = self._most, -(1 << 62)
            return most

    def stop(self) -> None:
        """No samples any more."""
        self._stopped.set()
        self._thread.join()

    def _main(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._allowance.begin()
            found = resident_now()
            over = found - self.idle_nbytes - self._allowance.peak()
            self.samples += 1
            with self._lock:
                if self.idle_nbytes:
                    self._most = max(self._most, over)
