"""Which sets of kernels the planner is offered: some for all budgets, and one made for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from flexcomp import plan
from flexcomp.device import DeviceProfile

from . import preparing
from .forms import Form, Planning, costs_of, form_of, planned_layer, planning_of
from .variants import Choice, Network

# How many different sets of alternatives the planner is offered on every budget, besides none and all.
_SETS = 4
# The part by which plans are taken to fall short of the storage's bandwidth: they come within a few percent of the bound.
_SHORT = 0.03
# Attempts to fit a set for a budget into that budget.
_ATTEMPTS = 4


@dataclass(frozen=True)
class _Step:
    """From one kernel of a layer to the next faster one that is worth its weights."""

    saved_s: float
    added: int  # bytes of weights
    base: int
    alternative: int

    @property
    def worth(self) -> float:
        return self.saved_s / self.added if self.added > 0 else float("inf")


def planning(network: Network, profile: DeviceProfile, threads: int) -> Planning:
    """The problems among which the planner chooses on every rung.

    Steps from each layer's smallest kernel over the corners of the convex hull of (bytes of weights, seconds) to its
    fastest, in the order of seconds saved per additional byte: a choice is the first few of them, from none (where
    loading is the bottleneck) to all (where memory is plenty).
    """
    costs = costs_of(network, profile, threads)
    steps = sorted(_steps(network, costs.seconds), key=lambda step: (-step.worth, step.base, step.alternative))
    counts = sorted({round(len(steps) * part / (_SETS + 1)) for part in range(_SETS + 2)})
    return planning_of(network, [_after(steps[:count]) for count in counts], costs)


def _after(steps: Iterable[_Step]) -> Choice:
    return frozenset({step.base: step.alternative for step in steps}.values())


def _steps(network: Network, seconds: Sequence[float]) -> Iterable[_Step]:
    count = len(network.base.layers)
    of_layer: dict[int, list[int]] = {}
    for index, alternative in enumerate(network.alternatives):
        of_layer.setdefault(alternative.base, []).append(index)
    for base, indices in of_layer.items():
        steps: list[_Step] = []
        layer = network.base.layers[base]
        at = {-1: (layer.weights.nbytes if layer.weights else 0, seconds[base])}
        at |= {i: (network.alternatives[i].layer.weights.nbytes, seconds[count + i]) for i in indices}
        now = -1
        while faster := [i for i in indices if at[i][1] < at[now][1]]:
            options = [_Step(at[now][1] - at[i][1], at[i][0] - at[now][0], base, i) for i in faster]
            best = max(options, key=lambda step: (step.worth, step.saved_s))
            steps.append(best)
            now = best.alternative
        yield from steps


class FitToBudget:
    """Makes forms with the bands of one, its skeleton, whose kernels suit a budget.

    Kernels are chosen for the least `plan.latency_bound`: fast ones where loading waits, small ones where computing
    does. A kernel is considered only where its scratch and one block of its weights fit.
    """

    def __init__(self, planning: Planning, skeleton: Form) -> None:
        self._network, self._costs = planning.network, planning.costs
        rivals, layers = self._network.rivals(), self._network.layers
        self._indices = [[index, *rivals.get(index, ())] for index in skeleton.layers]
        storage = replace(self._costs.storage, bandwidth=(1 - _SHORT) * self._costs.storage.bandwidth)
        options = [[planned_layer(layers[i], i, self._costs) for i in same] for same in self._indices]
        self._mixture = plan.Mixture(replace(skeleton.problem, storage=storage), options)
        self._least = plan.minimum_budget(skeleton.problem).nbytes
        self._made: dict[tuple[int, ...], Form] = {}  # by the picks
        self.form = lru_cache(maxsize=None)(self._form)

    def _form(self, budget: int) -> Form | None:
        """The form for a budget in bytes; None for the skeleton, or if not even that fits."""
        limit = budget
        for _ in range(_ATTEMPTS if self._least <= budget else 0):
            picks = self._mixture.best(budget, limit)
            if not any(picks):
                return None
            form = self._of(tuple(picks))
            if plan.fits(form.problem, budget):
                return form
            limit = max(
                need for need, pick in zip(plan.layer_bounds(form.problem), picks, strict=True) if pick
            ) - plan.PAGE - preparing.room_nbytes(form.piece)  # which the mixture does not know of
        return None

    def _of(self, picks: tuple[int, ...]) -> Form:
        if picks not in self._made:
            layers = [same[pick] for same, pick in zip(self._indices, picks, strict=True)]
            self._made[picks] = form_of(self._network, layers, self._costs)
        return self._made[picks]
