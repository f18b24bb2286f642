"""Which trials to make: layers in turn by expected gain, candidates by the cost model.

1. Every layer's defaults are measured, the most expensive layer first: nothing can be compared without them.
2. Then trials go to the layers that promise most: their share of the network's time, times what their last trials
   gained, or, after few trials, their possible gain (after the gradients of Ansor's task scheduler,
   Zheng et al., OSDI 2020, section 6).
3. Within a layer the candidates that the cost model ranks first are tried, and some at random, so that the model
   learns of parts of the space with low predictions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flexcomp.schedules.tiles.tile import VectorUnit
from flexcomp.tuning.cost_model import FAILED, CostModel, expected, features
from flexcomp.tuning.tasks import Task

_RANDOM_PART = 0.25  # of a batch
_GAIN_OF_HISTORY = 0.5  # how much the last batch's gain counts next to optimism
_OPTIMISM = 0.5  # a layer is thought to gain this part of its time over its first trials
_PATIENCE = 6.0  # trials after which that hope has halved


@dataclass
class Progress:
    """The state of a task."""

    task: Task
    seconds: dict[str, float | None] = field(default_factory=dict)  # by kernel; None: failed
    untried: list[str] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)  # proposed, and not yet told
    last_gain: float = 0.0  # part of the time that the last batch saved, per trial

    @property
    def best(self) -> tuple[str, float] | None:
        done = [(seconds, name) for name, seconds in self.seconds.items() if seconds is not None]
        return (min(done)[1], min(done)[0]) if done else None

    @property
    def default_seconds(self) -> float | None:
        return self.seconds.get(self.task.default)


class Search:
    """Proposes trials and takes their outcomes."""

    def __init__(self, tasks: Sequence[Task], unit: VectorUnit, seed: int = 0) -> None:
        self.progress = [Progress(task, untried=list(task.candidates)) for task in tasks]
        self._unit = unit
        self._rng = np.random.default_rng(seed)
        self._model = CostModel()
        self._features: dict[tuple[int, str], list[float]] = {}

    def known(self, task: int, seconds: dict[str, float | None]) -> None:
        """Take over earlier measurements."""
        mine = {name: value for name, value in seconds.items() if name in self.progress[task].task.candidates}
        for name in sorted(mine, key=lambda name: name != self.progress[task].task.default):
            self._note(task, name, mine[name])

    def propose(self, count: int) -> list[tuple[int, str]]:
        """At most `count` trials, (task, kernel); none if there is nothing left to try."""
        proposed = self._defaults(count) or self._promising(count)
        for task, name in proposed:
            self.progress[task].untried.remove(name)
            self.progress[task].pending.add(name)
        return proposed

    def tell(self, outcomes: Sequence[tuple[int, str, float | None]]) -> None:
        """Take the outcomes of proposed trials: task, kernel, seconds or None if failed."""
        before = {task: self.progress[task].best for task, _, _ in outcomes}
        # Defaults first: the model learns times relative to them.
        for task, name, seconds in sorted(outcomes, key=lambda o: o[1] != self.progress[o[0]].task.default):
            self._note(task, name, seconds)
        for task, old in before.items():
            new, trials = self.progress[task].best, sum(o[0] == task for o in outcomes)
            if old and new:
                self.progress[task].last_gain = (1 - new[1] / old[1]) / trials

    def _note(self, task: int, name: str, seconds: float | None) -> None:
        progress = self.progress[task]
        progress.seconds[name] = seconds
        progress.pending.discard(name)
        if name in progress.untried:
            progress.untried.remove(name)
        default = progress.default_seconds
        if default is not None:
            took = FAILED if seconds is None else math.log(seconds / default)
            more = self._expected(task, name) - self._expected(task, progress.task.default)
            self._model.add(self._row(task, name), took, more)

    def _defaults(self, count: int) -> list[tuple[int, str]]:
        missing = [
            (i, name)
            for i, progress in enumerate(self.progress)
            for name in progress.task.defaults
            if name in progress.untried
        ]
        missing.sort(key=lambda trial: (trial[1] != self.progress[trial[0]].task.default, -self._work(trial[0])))
        return missing[:count]

    def _work(self, task: int) -> float:
        of = self.progress[task].task
        return of.count * of.candidates[of.default].work

    def _promising(self, count: int) -> list[tuple[int, str]]:
        """Trials of the layers that promise most, each allowing for possible gains of those before."""
        shares = Counter()
        for _ in range(count):
            able = [i for i, progress in enumerate(self.progress) if shares[i] < len(progress.untried)]
            if able:
                shares[max(able, key=lambda i: (self._promise(i, shares[i]), -i))] += 1
        return [(task, name) for task, share in shares.items() for name in self._pick(task, share)]

    def _promise(self, task: int, more: int) -> float:
        """Seconds of the network that a trial of this layer may save, after `more` that are being proposed."""
        progress = self.progress[task]
        if progress.best is None:
            return 0.0  # even the defaults failed
        tried = len(progress.seconds) + len(progress.pending) + more
        hope = _OPTIMISM / _PATIENCE * 2 ** (-tried / _PATIENCE)
        gain = _GAIN_OF_HISTORY * progress.last_gain + (1 - _GAIN_OF_HISTORY) * hope
        return progress.task.count * progress.best[1] * gain

    def _pick(self, task: int, count: int) -> list[str]:
        untried = self.progress[task].untried
        at_random = int(self._rng.binomial(count, _RANDOM_PART)) if len(untried) > count else 0
        expectations = np.array([self._expected(task, name) for name in untried])
        score = expectations + self._model.correction([self._row(task, name) for name in untried])
        order = [untried[i] for i in np.argsort(score, kind="stable")]
        ranked, rest = order[: count - at_random], order[count - at_random :]
        return ranked + [str(name) for name in self._rng.permutation(rest)[:at_random]]

    def _expected(self, task: int, name: str) -> float:
        of = self.progress[task].task
        return expected(of.spec, of.candidates[name], self._unit)

    def _row(self, task: int, name: str) -> list[float]:
        if (task, name) not in self._features:
            of = self.progress[task].task
            self._features[task, name] = features(of.spec, of.candidates[name], self._unit)
        return self._features[task, name]
