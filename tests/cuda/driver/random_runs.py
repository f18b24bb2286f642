"""Random sessions on the GPU of tests: budgets change while inferences run, streams are late, calls and reads fail.

`python -m tests.cuda.driver.random_runs 5000` runs so many inferences, and prints its counts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import flexcomp
from flexcomp.errors import FlexcompError
from flexcomp.program import PAGE
from flexcomp.runtime import RungInfo
from tests.cuda.driver import tiny_cuda
from tests.cuda.driver.fake import REFUSED, USELESS, Fake, build
from tests.cuda.driver.faults import Plain, Remembering, Subject
from tests.runtime import hooks

_PIECES = (PAGE, 64 << 10)  # of device memory
_MOST_CALLS = 600  # until a call fails, if one is to


class Wrong(AssertionError):
    """A wrong result."""


def session_of(fake: Fake, subject: Subject, ladder: Sequence[RungInfo], seed: int, inferences: int, seen: Counter) -> None:
    """Some inferences of one session; events are counted in `seen`. Raises Wrong."""
    chance = random.Random(seed)
    integrated = chance.random() < 0.3
    faults = chance.random() < 0.5
    piece = chance.choice(_PIECES)
    settings = {
        "integrated": integrated, "seed": seed, "granularity": piece,
        "compute_delay_us": chance.choice((0, 50, 300)), "copy_delay_us": chance.choice((0, 50, 300)),
    }  # fmt: skip
    if faults:
        settings |= {"fail_at": chance.randrange(1, _MOST_CALLS), "fail_with": chance.choice((REFUSED, REFUSED, USELESS))}
    fake.revive()
    fake.set(**settings)
    options = {"fail_read_at": chance.randrange(1, 40)} if chance.random() < 0.2 else {}
    start = chance.choice(ladder)
    try:
        session = hooks.load(subject.library, start.budget_bytes, **options)
    except FlexcompError as error:
        _refused(error, faults, options, seen)
        return
    subject.begin()
    switcher = _Switcher(fake, session, ladder, start, piece, chance, seen)
    switcher.start()
    try:
        for _ in range(inferences):
            try:
                subject.infer(session)
            except FlexcompError as error:
                _refused(error, faults, options, seen)
                continue
            except AssertionError as error:
                raise Wrong(f"seed {seed}: a wrong output") from error
            seen["right"] += 1
    finally:
        switcher.end()
        session.close()
    if switcher.too_much:
        raise Wrong(f"seed {seed}: {switcher.too_much}")
    if fake.peak > (most := _whole(ladder[-1].arena_bytes, piece)):
        raise Wrong(f"seed {seed}: {fake.peak} bytes of device memory, the largest budget takes {most}")
    if fake.fault:
        raise Wrong(f"seed {seed}: {fake.fault}")


def _whole(nbytes: int, piece: int) -> int:
    return -(-nbytes // piece) * piece


def _refused(error: FlexcompError, faults: bool, options: dict, seen: Counter) -> None:
    if not faults and not (options and isinstance(error, flexcomp.StorageError)):
        raise Wrong(f"an error for no reason: {error}")
    seen[type(error).__name__] += 1


class _Switcher(threading.Thread):
    """Changes the budget of a session until told to end, and checks the device's memory after each change."""

    def __init__(
        self,
        fake: Fake,
        session: flexcomp.Session,
        ladder: Sequence[RungInfo],
        start: RungInfo,
        piece: int,
        chance: random.Random,
        seen: Counter,
    ) -> None:
        super().__init__()
        self.too_much = ""  # the fault; empty: none
        self._fake, self._session, self._ladder, self._piece, self._seen = fake, session, ladder, piece, seen
        self._in_force, self._chance, self._ending = start, random.Random(chance.random()), threading.Event()

    def run(self) -> None:
        while not self._ending.wait(self._chance.random() * 0.02):
            try:
                self._in_force = self._session.set_budget(self._chance.choice(self._ladder).budget_bytes)
                self._seen["switches"] += 1
            except FlexcompError:  # the budget before stays
                self._seen["refused switches"] += 1
            self._look()

    def end(self) -> None:
        self._ending.set()
        self.join()

    def _look(self) -> None:
        """Nobody else changes budgets: the budget in force stays until the next change."""
        used, most = self._fake.used, _whole(self._in_force.arena_bytes, self._piece)
        # A device that refuses for good does not give memory back, either.
        if used > most and not (self._fake.failed and self._fake.fails_for_good):
            self.too_much = f"{used} bytes of device memory, the budget in force takes {most}"


def run(fake: Fake, subject: Subject, runs: int, seed: int = 0) -> Counter:
    """At least so many inferences, in sessions of ten. Raises Wrong with the seed of the session that went wrong."""
    seen: Counter = Counter()
    fake.set()
    with flexcomp.load(subject.library) as session:
        ladder = session.ladder
    while (done := sum(seen[kind] for kind in seen if "switches" not in kind)) < runs:
        before = fake.live
        session_of(fake, subject, ladder, seed, min(10, runs - done), seen)
        left = fake.live
        if left != before:
            raise Wrong(f"seed {seed}: left {left}, before it was {before}")
        seed += 1
    return seen


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(build(Path(folder)))
        subjects = {"tiny": Plain(tiny_cuda.export(Path(folder) / "tiny.so")), "states": Remembering(Path(folder))}
        for name, subject in subjects.items():
            print(f"{name}: {dict(run(fake, subject, runs))}", flush=True)


if __name__ == "__main__":
    main()
