"""One open session of a soak, used by several threads at once, and its expected state."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.soak.files import Expected, Place, digest
from benchmarks.soak.memory import Allowance, Share
from flexcomp.errors import ArtifactError, BudgetError, ExecutionError, InputError, StorageError
from flexcomp.runtime.load_options import hooked

MOST_TRIES = 20  # to open a library whose files are being replaced
WATCH_S = 10.0  # within which a watch must have made a budget fit


class Wrong(Exception):
    """Something that must not be: an output, an error, or the lack of one."""


@dataclass(frozen=True)
class Wish:
    """How a session is opened."""

    expected: Expected
    place: Place
    budget: int | float | str | None
    threads: int
    options: dict
    hooks: dict

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in (self.options | self.hooks).items())
        return f"{self.place.library} budget={self.budget} threads={self.threads} {options}"


def draw_wish(chance: random.Random, networks: list[Expected], places: list[Place], threads: tuple[int, ...]) -> Wish:
    """A random network, place, budget, number of threads, and kind of storage."""
    place = chance.choice(places)
    expected = next(network for network in networks if network.name == place.library.stem)
    options: dict = {}
    hooks: dict = {}
    if chance.random() < 0.3:
        options["direct"] = False
    if chance.random() < 0.3:
        options["read_bandwidth"] = chance.choice((40e6, 100e6, 400e6))
    if chance.random() < 0.15:
        hooks["fail_read_at"] = chance.randint(1, 200)
    for name in ("trace", "verify"):
        if chance.random() < 0.2:
            options[name] = True
    if chance.random() < 0.2:
        options["affinity"] = False
    budget = chance.choice((None, "min", "min", round(chance.uniform(0.5, 1.0), 3)))
    return Wish(expected, place, budget, chance.choice(threads), options, hooks)


class Subject:
    """The session. Its methods, for any thread, raise Wrong."""

    def __init__(self, wish: Wish, allowance: Allowance) -> None:
        self._wish = wish
        self._fails_left = 1 if "fail_read_at" in wish.hooks else 0
        self._outputs = {version: table[wish.threads] for version, table in wish.expected.outputs.items()}
        self._resizes = self._resizing = 0  # calls that may make the budget smaller: since opening, and now
        self._counting = threading.Lock()
        self.closing = False
        self._share, self.session = self._open(allowance)
        self.ladder = self.session.ladder

    def __str__(self) -> str:
        return str(self._wish)

    def _open(self, allowance: Allowance) -> tuple[Share, flexcomp.Session]:
        """Files that changed meanwhile may be refused, and others may not; their version shows sooner or later."""
        wish = self._wish
        for _ in range(MOST_TRIES):
            before = wish.place.state()
            share = Share(allowance, wish.expected.largest_budget)
            try:
                with hooked(**wish.hooks):
                    session = flexcomp.load(wish.place.library, wish.budget, wish.threads, **wish.options)
            except ArtifactError as error:
                share.end()
                if wish.place.state() == before and before[0] % 2 == 0:
                    raise Wrong(f"{wish}: files that nobody touched were refused: {error}") from None
                time.sleep(0.001)
                continue
            except BaseException:
                share.end()
                raise
            if wish.place.state() == before and before[0] % 2 == 0:
                self._outputs = {before[1]: self._outputs[before[1]]}
            with share.changing(session.budget):
                pass
            return share, session
        raise Wrong(f"{wish}: could not be opened in {MOST_TRIES} tries")

    def close(self) -> None:
        """For everybody."""
        self.closing = True
        self.session.close()
        self._share.end()

    @contextmanager
    def _closed_at_most(self, what: str) -> Iterator[None]:
        """The only error that may come is that the session is closed, if somebody closed it."""
        try:
            yield
        except ExecutionError as error:
            if not (self.closing and "closed" in str(error)):
                raise Wrong(f"{what} of {self}: {type(error).__name__}: {error}") from None

    @contextmanager
    def _maybe_smaller(self) -> Iterator[None]:
        with self._counting:
            self._resizes += 1
            self._resizing += 1
        try:
            yield
        finally:
            with self._counting:
                self._resizing -= 1

    def run(self, chance: random.Random) -> None:
        """One inference, whose outputs must be those of some rung, bit for bit."""
        number = chance.randrange(len(self._wish.expected.inputs))
        with self._closed_at_most("run"):
            try:
                output = self.session.run(self._wish.expected.inputs[number])["output"]
            except StorageError as error:
                if self._fails_left == 0:
                    raise Wrong(f"run of {self}: {error}") from None
                self._fails_left = 0
                return
            self._check(number, output)

    def _check(self, number: int, output: np.ndarray) -> None:
        found = digest(output)
        versions = [version for version, table in self._outputs.items() if found in table[number]]
        if not versions:
            raise Wrong(f"wrong output of {self}, input {number}, now {self.session.stats()['budget_bytes']} bytes")
        if len(self._outputs) > 1:
            self._outputs = {version: self._outputs[version] for version in versions}

    def set_budget(self, chance: random.Random) -> None:
        """To a random rung, by a number of bytes from that to the next."""
        budgets = [rung.budget_bytes for rung in self.ladder]
        index = chance.randrange(len(budgets))
        most = budgets[index + 1] - 1 if index + 1 < len(budgets) else budgets[index] + 1000
        with self._closed_at_most("set_budget"), self._maybe_smaller(), self._share.changing(budgets[index]):
            rung = self.session.set_budget(chance.randint(budgets[index], most))
            if rung.budget_bytes != budgets[index]:
                raise Wrong(f"set_budget of {self} chose {rung.budget_bytes}, not {budgets[index]}")

    def ask_too_little(self, chance: random.Random) -> None:
        """A budget below the smallest must be refused, and nothing else happen."""
        try:
            self.session.set_budget(chance.randrange(1, self.ladder[0].budget_bytes))
        except BudgetError:
            return
        raise Wrong(f"{self} took a budget below its smallest")

    def give_nonsense(self, chance: random.Random) -> None:
        """An input of another shape must be refused."""
        (name, right), *_ = self._wish.expected.inputs[0].items()
        try:
            self.session.run({name: np.zeros((*right.shape, 2), right.dtype)})
        except InputError:
            return
        raise Wrong(f"{self} took an input of another shape")

    def ask(self, chance: random.Random) -> None:
        """The session's state must be consistent."""
        with self._closed_at_most("stats"):
            stats = self.session.stats()
            rung = self.ladder[stats["rung"]]
            if (rung.budget_bytes, rung.arena_bytes) != (stats["budget_bytes"], stats["arena_bytes"]):
                raise Wrong(f"stats of {self} mix rungs: {stats}")
            if stats["threads"] != self._wish.threads:
                raise Wrong(f"{self} has {stats['threads']} threads")

    def trace(self, chance: random.Random) -> None:
        """A trace, if the session was opened for that, and an error otherwise."""
        with self._closed_at_most("trace"):
            try:
                trace = self.session.trace()
            except InputError as error:
                if self._wish.options.get("trace"):
                    raise Wrong(f"trace of {self}: {error}") from None
                return
            if not self._wish.options.get("trace"):
                raise Wrong(f"{self} gave a trace that nobody asked for")
            if any(begin > end for begin, end in trace.steps):
                raise Wrong(f"a step of {self} ended before it began")

    def read_rate(self, chance: random.Random) -> None:
        """Storage is measured, unless the budget becomes smaller meanwhile."""
        with self._counting:
            before, disturbed = self._resizes, self._resizing > 0
        try:
            rate = self.session.read_rate(1 << chance.randint(12, 18), 1 << 19)
        except ExecutionError as error:
            if not (self.closing or disturbed or self._resizes != before):
                raise Wrong(f"read_rate of {self}: {error}") from None
        except StorageError as error:
            if self._fails_left == 0:
                raise Wrong(f"read_rate of {self}: {error}") from None
            self._fails_left = 0
        else:
            if not rate > 0:
                raise Wrong(f"read_rate of {self}: {rate}")

    def watch(self, chance: random.Random, folder: Path) -> None:
        """The budget follows a function or a control group's folder: it must come to fit, even if others set one meanwhile."""
        allowed = chance.choice(self.ladder).budget_bytes + chance.randrange(4096)
        source: object = lambda: allowed  # noqa: E731
        if chance.random() < 0.5:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.current").write_text("0\n")
            (folder / "memory.max").write_text(f"{allowed}\n")
            source = folder
        with self._maybe_smaller(), self._share.changing(allowed, settles=False):
            watch = self.session.watch(source, interval_ms=3, patience_ms=10)
            try:
                with self._closed_at_most("watch"):
                    deadline = time.monotonic() + WATCH_S
                    while not self.closing and self.session.budget > allowed:
                        if time.monotonic() > deadline:
                            raise Wrong(f"{self} has {self.session.budget} bytes while watching for {allowed}")
                        time.sleep(0.001)
                    time.sleep(chance.random() * 0.05)
            finally:
                watch.stop()
