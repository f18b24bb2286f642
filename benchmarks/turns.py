"""All rungs of a network's libraries, run in turns: a few inferences of each, and all over again.

Slow seconds of a machine that others use then strike all of them, and the runs that are profiled.
"""

from __future__ import annotations

from pathlib import Path

from flexcomp import runner
from flexcomp.artifact import decode_program
from flexcomp.observing import Runs, spread
from flexcomp.program import Rung
from flexcomp.rungs import layers_of
from flexcomp.session import read_program
from flexcomp.trace import Traces

ROUNDS = 6
ALONE = "alone"  # a rung's kernels with everything resident
_REQUEST = 1 << 20  # bytes of a read when bandwidth is measured
_LEAST, _MOST = 2, 15  # inferences of a rung in a round


class Compiled:
    """A library and its program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program = decode_program(read_program(path))

    def kernels(self, rung: Rung) -> tuple[str, ...]:
        """What a rung computes, whichever library it is of."""
        return tuple(self.program.layers[layer].name for layer in layers_of(rung))

    def run(self, rung: Rung, seconds: float, **options) -> dict:
        """What the runner reports of one of the rounds that take `seconds` together."""
        return runner.run(self.path, budget=rung.budget, repeat=_inferences(rung, seconds), warmup=1, **options)

    def traces(self, rung: Rung, seconds: float, **options) -> Traces:
        """The same, traced."""
        return runner.traces(self.path, budget=rung.budget, repeat=_inferences(rung, seconds), warmup=1, **options)


def _inferences(rung: Rung, seconds: float) -> int:
    """How many of a rung are a round, of those that take `seconds` together."""
    return max(_LEAST, min(_MOST, round(seconds / ROUNDS / rung.predicted_s)))


class Turns:
    """Runs of all rungs on one storage."""

    def __init__(self, resident: Compiled, libraries: dict[str, Compiled], seconds: float, options: dict) -> None:
        self.resident, self.libraries, self.seconds, self.options = resident, libraries, seconds, options
        self.alone_options = options | {"read_bandwidth": None}  # it has read everything before it is timed
        self.first = next(iter(libraries))
        self.alone = {resident.kernels(rung): rung for rung in resident.program.rungs}
        self.rungs: dict[int, dict[str, Rung]] = {}  # by budget and strategy
        for strategy, library in libraries.items():
            for rung in library.program.rungs:
                self.rungs.setdefault(rung.budget, {})[strategy] = rung
        self.profiled = Runs()
        self.reports: dict[tuple[int, str], list[dict]] = {}  # by budget, and strategy or ALONE

    def take(self) -> None:
        """Run every rung for a round."""
        first = self.libraries[self.first]
        for_profile = spread(first.program.rungs)
        for budget, rungs in sorted(self.rungs.items()):
            if rung := rungs.get(self.first):
                if rung in for_profile:
                    self.profiled.add(first.program, first.traces(rung, self.seconds, **self.options))
                alone = self.alone[first.kernels(rung)]
                self._note(budget, ALONE, self.resident.run(alone, self.seconds, **self.alone_options))
            for strategy, rung in rungs.items():
                request = min(_REQUEST, rung.arena)
                report = self.libraries[strategy].run(rung, self.seconds, read_rate=request, **self.options)
                self._note(budget, strategy, report)

    def _note(self, budget: int, what: str, report: dict) -> None:
        self.reports.setdefault((budget, what), []).append(report)
