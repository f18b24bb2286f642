"""Every call of the driver fails once, at every one of its uses: a clear error or the right answer, and then the right answer.

`python -m tests.cuda.driver.faults` tries all of them, the tests some.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import flexcomp
from flexcomp.errors import FlexcompError
from tests.cuda.driver import tiny_cuda
from tests.cuda.driver.fake import Fake, build
from tests.runtime.tiny import Tiny, close_to

REFUSED, USELESS = 2, 999  # out of memory; an error after which a context gives nothing else
_OPENING = 100  # of the first calls each is tried


def life(tiny: Tiny, x: np.ndarray) -> list[FlexcompError]:
    """A session is opened, runs, changes its budget and is closed; what it refused once, and did when it was asked again."""
    small, middle, large = (rung.budget for rung in tiny.program.rungs)
    errors = []

    def insist(function):
        try:
            return function()
        except FlexcompError as error:
            errors.append(error)
            return function()

    def new() -> flexcomp.Session:
        return insist(lambda: flexcomp.load(tiny.library, budget=middle))

    session = new()

    def step(function) -> None:
        nonlocal session
        try:
            insist(lambda: function(session))
        except FlexcompError as error:
            assert "is lost" in str(error)  # which is said whenever it is asked
            session.close()
            session = new()
            function(session)

    steps = [lambda s: close_to(s(x), tiny.reference(x))]
    steps += [lambda s: s.set_budget(small), steps[0], lambda s: s.set_budget(large), *[steps[0]] * 3]
    for one in steps:
        step(one)
    session.close()
    return errors


def try_calls(fake: Fake, tiny: Tiny, code: int, *, integrated: int = 0, stride: int = 1) -> Counter:
    """Fails calls, each in a life of its own; which they were. AssertionError where something else follows."""
    x = np.random.default_rng(1).standard_normal(256).astype("f4")
    fake.set(integrated=integrated)
    assert not life(tiny, x)
    most, before, failed = fake.calls, fake.live, Counter()
    for number in [*range(1, min(most, _OPENING)), *range(_OPENING, most, stride)]:
        fake.set(integrated=integrated, fail_at=number, fail_with=code)
        errors = life(tiny, x)
        failed[fake.failed] += 1
        where = f"call {number}, {fake.failed}"
        assert len(errors) <= 1, f"{where}: {errors}"
        assert all("a GPU of tests" in str(error) or "CUDA" in str(error) for error in errors), f"{where}: {errors}"
        assert fake.live == before, f"{where}: {fake.live} are left"
        assert not fake.fault, f"{where}: {fake.fault}"
    return failed


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(build(Path(folder)))
        tiny = tiny_cuda.export(Path(folder) / "tiny.so")
        for integrated in (0, 1):
            for code in (REFUSED, USELESS):
                failed = try_calls(fake, tiny, code, integrated=integrated)
                kind = "integrated" if integrated else "discrete"
                print(f"{kind}, error {code}: {failed.total()} calls failed once: {dict(failed)}")


if __name__ == "__main__":
    main()
