"""Every call of the driver fails once, at every one of its uses: a clear error or the right answer, and then the right answer.

`python -m tests.cuda.driver.faults` tries all of them, the tests some.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

import flexcomp
from flexcomp.errors import FlexcompError
from flexcomp.program import DeviceKernel
from tests.cuda.driver import tiny_cuda, toolkit
from tests.cuda.driver.fake import REFUSED, USELESS, Fake, build
from tests.runtime import tiny as tiny_program
from tests.runtime.rings import STATE, WIDTH, Rings
from tests.runtime.tiny import Tiny, close_to

_OPENING = 100  # of the first calls each is tried, or every second


class Subject(Protocol):
    """A network in the life of a session."""

    library: Path
    start: str  # of sessions

    def begin(self) -> None:
        """A new session was opened."""

    def infer(self, session: flexcomp.Session) -> None:
        """One inference; AssertionError for wrong outputs. Errors of the session do not change the subject."""


class Plain:
    """The tiny network."""

    def __init__(self, tiny: Tiny, start: str = "cold") -> None:
        self.library, self.start, self._tiny = tiny.library, start, tiny

    def begin(self) -> None:
        self._done = 0

    def infer(self, session: flexcomp.Session) -> None:
        x = np.random.default_rng(self._done).standard_normal(256).astype("f4")
        found = session(x)
        self._done += 1
        close_to(found, self._tiny.reference(x))


class OnDevice(Plain):
    """The tiny network, with outputs on the GPU."""

    def __init__(self, tiny: Tiny, fake: Fake) -> None:
        super().__init__(tiny)
        self._fake = fake

    def infer(self, session: flexcomp.Session) -> None:
        x = np.random.default_rng(self._done).standard_normal(256).astype("f4")
        found, taken = np.empty_like(x), session.run(x, outputs="cuda")["out"]
        self._fake.exchange(taken.data_ptr(), found, read=True)
        self._done += 1
        close_to(found, self._tiny.reference(x))


class Remembering:
    """A network whose states are written to in place, and read."""

    start = "cold"

    def __init__(self, folder: Path) -> None:
        self.library = toolkit.build(Rings().model(), "cuda -arch=sm_80", folder / "rings.so", state=STATE)

    def begin(self) -> None:
        self._rings, self._done = Rings(), 0

    def infer(self, session: flexcomp.Session) -> None:
        x = np.random.default_rng(self._done).standard_normal((1, WIDTH)).astype("f4")
        found = session.run({"x": x, "at": np.array([self._done])})["y"]
        np.testing.assert_allclose(found, self._rings.run(x, self._done), rtol=1e-4, atol=1e-4)
        self._done += 1
        assert self._rings.agrees(session.state())


def life(subject: Subject) -> list[str]:
    """A session is opened, runs, changes its budget and is closed; calls that were refused once, and succeeded when repeated."""
    errors = []

    def insist(function: Callable[[], object]):
        try:
            return function()
        except FlexcompError as error:
            errors.append(str(error))  # the error itself would hold tensors of its frames
            return function()

    def new() -> flexcomp.Session:
        subject.begin()
        return insist(lambda: flexcomp.load(subject.library, start=subject.start))

    session = new()
    small, large = session.ladder[0].budget_bytes, session.ladder[-1].budget_bytes

    def step(function: Callable[[flexcomp.Session], object]) -> None:
        nonlocal session
        try:
            insist(lambda: function(session))
        except FlexcompError as error:
            assert "is lost" in str(error)  # as in every later call
            session.close()
            session = new()
            function(session)

    steps = [subject.infer, lambda s: s.set_budget(small), subject.infer, lambda s: s.set_budget(large)]
    for one in [*steps, *[subject.infer] * 3]:
        step(one)
    session.close()
    return errors


def try_calls(fake: Fake, subject: Subject, code: int, *, integrated: int = 0, stride: int = 1) -> Counter:
    """Fails calls, each in a life of its own; which they were. AssertionError where something else follows."""
    fake.set(integrated=integrated)
    assert not life(subject)
    most, before, failed = fake.calls, fake.live, Counter()
    for number in [*range(1, min(most, _OPENING), min(stride, 2)), *range(min(most, _OPENING), most + 1, stride)]:
        fake.set(integrated=integrated, fail_at=number, fail_with=code)
        errors = life(subject)
        failed[fake.failed] += 1
        where = f"call {number}, {fake.failed}"
        assert len(errors) <= 1, f"{where}: {errors}"
        assert all("a GPU of tests" in error or "CUDA" in error for error in errors), f"{where}: {errors}"
        assert fake.live == before, f"{where}: {fake.live} are left"
        assert not fake.fault, f"{where}: {fake.fault}"
    return failed


def subjects(folder: Path, kernels: Mapping[str, DeviceKernel], fake: Fake) -> dict[str, Subject]:
    """The settings; kernels are those of the tiny network."""
    tiny = tiny_cuda.export(folder / "faulty.so", "faulty_", kernels=kernels)
    ahead = tiny_cuda.export(folder / "ahead.so", "faulty_ahead_", kernels=kernels, plan=tiny_program.all_ahead)
    return {
        "tiny": Plain(tiny),
        "ahead, warm": Plain(ahead, "warm"),
        "outputs on the GPU": OnDevice(tiny, fake),
        "states": Remembering(folder),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(build(Path(folder)))
        for name, subject in subjects(Path(folder), tiny_cuda.device_kernels(), fake).items():
            for integrated in (0, 1):
                for code in (REFUSED, USELESS):
                    failed = try_calls(fake, subject, code, integrated=integrated)
                    kind = "integrated" if integrated else "discrete"
                    print(f"{name}, {kind}, error {code}: {failed.total()} calls failed once: {dict(failed)}", flush=True)


if __name__ == "__main__":
    main()
