"""All rungs of a network's libraries, run in turns: a few inferences of each, and all over again.

Slow seconds of a machine that others use then strike all of them, and the runs that are profiled. The libraries are open
in one process, and take turns within the second at every rung.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flexcomp.profiling.observing import Runs, spread
from flexcomp.program.program import Rung
from flexcomp.program.program_bytes import decode_program
from flexcomp.runtime import made_inputs, runner, session
from flexcomp.runtime.budget import resolve
from flexcomp.runtime.library import read_program
from flexcomp.runtime.trace import Traces

ROUNDS = 4
PAIRS = 3  # turns that each library takes at a rung in a round
ALONE = "alone"  # a rung's kernels with everything resident
FASTEST = "fastest"  # the fastest ones
_REQUEST = 1 << 20  # bytes of a read when bandwidth is measured
_MOST = 10  # inferences of a turn


class Compiled:
    """A library and its program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program = decode_program(read_program(path))

    def kernels(self, rung: Rung) -> tuple[str, ...]:
        """The layers of a rung, in any library."""
        return tuple(self.program.layers[layer].name for layer in rung.order)

    def traces(self, rung: Rung, seconds: float, **options) -> Traces:
        """Traces of a process of its own, of about as many seconds."""
        return runner.traces(self.path, budget=rung.budget, repeat=_inferences(rung, seconds), warmup=1, **options)


@dataclass(frozen=True)
class Turn:
    """A few inferences in a row."""

    latency_ms: tuple[float, ...]  # from the end of one to the end of the next
    stall_ms: float  # of the last
    bytes_read: int  # by the last


class Contender:
    """A library that is open."""

    def __init__(self, compiled: Compiled, options: dict) -> None:
        self.session = session.load(compiled.path, "min", **options)
        self.inputs = dict(zip((port.name for port in self.session.inputs), made_inputs(self.session.inputs), strict=True))

    def prepare(self, rung: Rung) -> None:
        """Read the weights that a rung keeps between inferences."""
        self.session.set_budget(rung.budget)
        self.session.run(self.inputs)

    def take(self, inferences: int) -> Turn:
        """So many inferences, after one for the caches, which another library used, and for loads that were read ahead."""
        ends = []
        for _ in range(1 + inferences):
            self.session.run(self.inputs)
            ends.append(time.perf_counter() * 1e3)
        stats = self.session.stats()
        return Turn(tuple(np.diff(ends)), stats["stall_ms"], stats["bytes_read"])


def evenly(budgets: Sequence[int], count: int) -> list[int]:
    """So many of the budgets, which ascend, or fewer: those that serve as many bytes, each as many times the one before."""
    wanted = np.geomspace(budgets[0], budgets[-1], count)
    places = np.searchsorted(budgets, np.round(wanted), side="right") - 1
    return sorted({budgets[place] for place in places})


def serving(rungs: Sequence[Rung], budget: str) -> int:
    """The budget of the rung that serves one, which is written as for `flexcomp run`. Raises BudgetError."""
    budgets = [rung.budget for rung in rungs]
    wanted = resolve(budget, budgets[0], budgets[-1], budgets[-1])
    return budgets[bisect.bisect_right(budgets, wanted) - 1]


def _inferences(rung: Rung, seconds: float, least: int = 2) -> int:
    """How many of a rung take so many seconds, within limits."""
    return max(least, min(_MOST, round(seconds / rung.seconds)))


class Turns:
    """Runs of all rungs on one storage, about `seconds` of each.

    With `budgets`, of so many of the first library's (`evenly`); `at` a budget, of the rungs that serve that in each library,
    and of the fastest kernels with everything resident.
    """

    def __init__(
        self, resident: Compiled, libraries: dict[str, Compiled], seconds: float, options: dict,
        budgets: int | None = None, at: str | None = None,
    ) -> None:  # fmt: skip
        self.libraries, self.seconds, self.options = libraries, seconds, options
        self.first = next(iter(libraries))
        self.alone = {resident.kernels(rung): rung for rung in resident.program.rungs}
        self.rungs: dict[int, dict[str, Rung]] = {}  # by budget and strategy
        for strategy, library in libraries.items():
            for rung in library.program.rungs:
                self.rungs.setdefault(rung.budget, {})[strategy] = rung
        if at is not None:
            kept = {serving(library.program.rungs, at) for library in libraries.values()}
            self.rungs = {budget: rungs for budget, rungs in self.rungs.items() if budget in kept}
        elif budgets is not None:
            kept = evenly([rung.budget for rung in libraries[self.first].program.rungs], budgets)
            self.rungs = {budget: rungs for budget, rungs in self.rungs.items() if budget in kept}
        self.contenders = {strategy: Contender(library, options) for strategy, library in libraries.items()}
        # everything is read before timing
        self.yardsticks = {ALONE: None} | ({FASTEST: min(self.alone.values(), key=lambda rung: rung.seconds)} if at else {})
        for name in self.yardsticks:
            self.contenders[name] = Contender(resident, options | {"read_bandwidth": None})
        measured = [rungs[self.first] for _, rungs in sorted(self.rungs.items()) if self.first in rungs]
        # All that one rung loads may be prepared, which tells nothing of the storage.
        self.for_profile = spread(measured if at is None else libraries[self.first].program.rungs)
        self.profiled = Runs()
        self.taken: dict[tuple[int, str], list[Turn]] = {}  # by budget, and strategy or ALONE
        self.bandwidths: dict[tuple[int, str], list[float]] = {}  # bytes per second, one for every turn

    def take(self) -> None:
        """Run every rung for a round."""
        first = self.libraries[self.first]
        for rung in self.for_profile:
            self.profiled.add(first.program, first.traces(rung, self.seconds / ROUNDS, **self.options))
        for budget, rungs in sorted(self.rungs.items()):
            if rung := rungs.get(self.first):
                rungs = self.yardsticks | {ALONE: self.alone[first.kernels(rung)]} | rungs
            for name, rung in rungs.items():
                self.contenders[name].prepare(rung)
            for _ in range(PAIRS):
                for name, rung in rungs.items():
                    turn = self.contenders[name].take(_inferences(rung, self.seconds / ROUNDS / PAIRS, least=1))
                    self.taken.setdefault((budget, name), []).append(turn)
            for name in rungs.keys() - self.yardsticks.keys():
                rate = self.contenders[name].session.read_rate(min(_REQUEST, rungs[name].arena))
                self.bandwidths.setdefault((budget, name), []).extend([rate] * PAIRS)

    def close(self) -> None:
        """Give all memory back."""
        for contender in self.contenders.values():
            contender.session.close()
