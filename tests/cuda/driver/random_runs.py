"""Random sessions on the GPU of tests: budgets change while inferences run, streams are late, calls and reads fail.

`python -m tests.cuda.driver.random_runs 5000` runs so many inferences, and says what it saw.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import numpy as np

import flexcomp
from flexcomp.errors import FlexcompError
from tests.cuda.driver import tiny_cuda
from tests.cuda.driver.fake import Fake, build
from tests.runtime.tiny import Tiny

PIECE = 64 << 10
REFUSED, USELESS = 2, 999
_MOST_CALLS = 600  # until a call fails, if one is to


class Wrong(AssertionError):
    """What must not happen."""


def session_of(fake: Fake, tiny: Tiny, seed: int, inferences: int, seen: Counter) -> None:
    """Some inferences of one session; what happened is counted in `seen`. Raises Wrong."""
    chance = random.Random(seed)
    rungs = tiny.program.rungs
    integrated = chance.random() < 0.3
    faults = chance.random() < 0.5
    settings = {
        "integrated": integrated, "seed": seed,
        "compute_delay_us": chance.choice((0, 50, 300)), "copy_delay_us": chance.choice((0, 50, 300)),
    }  # fmt: skip
    if faults:
        settings |= {"fail_at": chance.randrange(1, _MOST_CALLS), "fail_with": chance.choice((REFUSED, REFUSED, USELESS))}
    fake.revive()
    fake.set(**settings)
    most = _pieces(rungs[-1].arena)
    options = {"fail_read_at": chance.randrange(1, 40)} if chance.random() < 0.2 else {}
    try:
        session = flexcomp.load(tiny.library, budget=chance.choice(rungs).budget, **options)
    except FlexcompError as error:
        _refused(error, faults, options, seen)
        return
    stop = threading.Event()
    switcher = threading.Thread(target=_switch, args=(session, [rung.budget for rung in rungs], chance.random(), stop, seen))
    switcher.start()
    try:
        for _ in range(inferences):
            x = np.random.default_rng(chance.randrange(100)).standard_normal(256).astype("f4")
            try:
                result = session(x)
            except FlexcompError as error:
                _refused(error, faults, options, seen)
                continue
            if not np.allclose(result, tiny.reference(x), rtol=1e-4, atol=1e-5):
                raise Wrong(f"seed {seed}: a wrong output")
            seen["right"] += 1
    finally:
        stop.set()
        switcher.join()
        session.close()
    if fake.peak > most:
        raise Wrong(f"seed {seed}: {fake.peak} bytes of device memory, the largest budget takes {most}")
    if fake.fault:
        raise Wrong(f"seed {seed}: {fake.fault}")


def _pieces(nbytes: int) -> int:
    return -(-nbytes // PIECE) * PIECE


def _refused(error: FlexcompError, faults: bool, options: dict, seen: Counter) -> None:
    if not faults and not (options and isinstance(error, flexcomp.StorageError)):
        raise Wrong(f"an error for no reason: {error}")
    seen[type(error).__name__] += 1


def _switch(session: flexcomp.Session, budgets: list[int], seed: float, stop: threading.Event, seen: Counter) -> None:
    chance = random.Random(seed)
    while not stop.wait(chance.random() * 0.02):
        try:
            session.set_budget(chance.choice(budgets))
            seen["switches"] += 1
        except FlexcompError:
            seen["refused switches"] += 1


def run(fake: Fake, tiny: Tiny, runs: int, seed: int = 0) -> Counter:
    """At least so many inferences, in sessions of ten. Raises Wrong with the seed of the session that went wrong."""
    seen: Counter = Counter()
    fake.set()
    while (done := sum(seen[kind] for kind in seen if "switches" not in kind)) < runs:
        before = fake.live
        session_of(fake, tiny, seed, min(10, runs - done), seen)
        left = fake.live
        if left != before:
            raise Wrong(f"seed {seed}: left {left}, before it was {before}")
        seed += 1
    return seen


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(build(Path(folder)))
        tiny = tiny_cuda.export(Path(folder) / "tiny.so")
        print(dict(run(fake, tiny, runs)))


if __name__ == "__main__":
    main()
