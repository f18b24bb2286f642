"""How fast could any plan be? A lower bound on the latency under a budget, to judge plans by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .loops import in_python
from .native import cut_values
from .parts.slicing import live_bytes
from .problem import Layer, Problem, Storage


@lru_cache(maxsize=256)
def _amounts(problem: Problem) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Per layer the bytes of live tensors, the seconds, and bytes that are read in the time in which its weights are loaded.

    Of weights that several layers have each has a part: whichever of them are behind a cut, these are read once at most.
    """
    seconds = np.array([layer.seconds for layer in problem.layers])
    nbytes = [cost * layer.weights.nbytes / readers if layer.weights else 0 for layer, cost, readers in _priced(problem)]
    nbytes = np.array(nbytes, dtype=float)
    return live_bytes(problem), seconds, nbytes


def _priced(problem: Problem) -> Iterator[tuple[Layer, float, int]]:
    return zip(problem.layers, problem.load_costs, problem.readers, strict=True)


def latency_bound(problem: Problem, budget: int) -> float:
    """Seconds below which no plan for `budget` bytes gets, in the steady state, on the predicted times.

    It is the largest of the cuts of `Cuts`; it knows nothing of pages, overheads and fragmentation.
    """
    if not problem.layers:
        return 0.0
    live, seconds, nbytes = _amounts(problem)
    return float(Cuts(live, budget, problem.storage, max(1.0, *problem.load_costs)).values(seconds, nbytes).max())


def unpinned_bound(problem: Problem) -> float:
    """Seconds below which no plan gets that keeps no weights and loads nothing ahead, whatever its budget, but for rounding."""
    return _unpinned(problem)[0]


def piecewise_bound(problem: Problem) -> float:
    """The same of plans with a load, or several, for each layer."""
    return _unpinned(problem)[1]


def on_demand_bound(problem: Problem) -> float:
    """The same of those where nothing is loaded while a step is computed."""
    return _unpinned(problem)[2]


@lru_cache(maxsize=256)
def _unpinned(problem: Problem) -> tuple[float, float, float]:
    storage = problem.storage.in_cache  # all loads may be
    weights = [(cost * layer.weights.nbytes / readers, 1 / readers) for layer, cost, readers in _priced(problem) if layer.weights]
    reading, computing = sum(part for part, _ in weights) / storage.bandwidth, sum(layer.seconds for layer in problem.layers)
    asking = sum(loads for _, loads in weights) * storage.overhead_s
    in_turn = asking + reading / storage.together + computing
    bounds = storage.least_seconds(reading, computing), storage.least_seconds(reading + asking, computing), in_turn
    return tuple(bound * (1 - 1e-9) for bound in bounds)


class Cuts:
    """Lower bounds on the latency of an inference, of layers that may have other kernels, for one budget.

    When the last step of layer i - 1 ends, the weights in the arena, pinned or preloaded, are at most the budget less
    the tensors live in it. Of the weights of the layers [i, j) behind it, the rest must be read after that, and the
    remaining layers are computed before or after that. Inferences follow each other, so the layers may be those of
    two inferences, all of them once at the most: in the steady state an inference takes as long as the time from a
    moment of it to the same moment of the next.

    Where computing that waits helps to load, it does not do so while it computes the layers behind the cut.

    Where no layers are behind the cut, all of them are computed. What does not fit is loaded beside that, and slows it down,
    be it in a cache, or takes longer than that while computing waits.
    """

    def __init__(self, live: Sequence[int], budget: int, storage: Storage, dearest: float = 1.0) -> None:
        """`live` has the bytes of the tensors live in each layer; no weights have a larger load cost than `dearest`.

        Bytes of weights are counted at their load costs, so that a byte of memory holds as many as the dearest costs.
        """
        storage = storage.in_cache  # all loads may be
        self.count, self.budget, self.bandwidth = len(live), budget, storage.bandwidth
        self.helped = 1 - 1 / storage.together  # the part of a wait for loads that is saved by helping with them
        self.budget *= dearest
        self.held = dearest * np.maximum(0.0, budget - np.roll(np.array(live, dtype=float), 1))
        # by a byte that is loaded beside computing, or in a wait
        beside = storage.disturbance / (1 + storage.disturbance * storage.bandwidth)
        self.delay = min(beside, 1 / (storage.bandwidth * storage.together)) / dearest

    @property
    def rates(self) -> dict[str, float]:
        """What C++ is told besides what is held."""
        return {"bandwidth": self.bandwidth, "helped": self.helped, "delay": self.delay, "budget": self.budget}

    def values(self, seconds: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """float64[layers, layers + 1], in seconds: [i, k] is the bound of the cut before layer i with k layers behind it."""
        upto = _upto(seconds), _upto(nbytes)
        if not in_python():
            return cut_values(*upto, self.held, **self.rates)
        computing, total = (sums[self.count] for sums in upto)
        read, computed = self._read(nbytes), self._behind(seconds)
        values = read - self.helped * np.maximum(0.0, read - computed) + (computing - computed)
        values[:, 0] += self.delay * max(0.0, total - self.budget)
        return values

    def prices(self, weights: np.ndarray, seconds: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a second and a byte more of each layer add to the cuts' weighted sum (`weights` add up to one)."""
        read = self._read(nbytes)
        weights_of_waits = weights * (1 - self.helped * (read > self._behind(seconds)))
        delay = self.delay * in_turn(weights[:, 0]) if in_turn(nbytes) > self.budget else 0.0
        per_byte = self._covered(weights_of_waits * (read > 0)) / self.bandwidth + delay
        return 1.0 - self._covered(weights_of_waits), per_byte

    def _read(self, nbytes: np.ndarray) -> np.ndarray:
        """Seconds in which one core reads what must be read behind every cut."""
        return np.maximum(0.0, self._behind(nbytes) - self.held[:, None]) / self.bandwidth

    def _behind(self, amounts: np.ndarray) -> np.ndarray:
        """Sums over the layers behind every cut."""
        upto = _upto(amounts)
        return sliding_window_view(upto, self.count + 1)[: self.count] - upto[: self.count, None]

    def _covered(self, weights: np.ndarray) -> np.ndarray:
        """Per layer the weights of the cuts that it is behind."""
        ends = np.add.outer(np.arange(self.count), np.arange(self.count + 1))
        change = np.bincount(ends.ravel(), weights=-weights.ravel(), minlength=2 * self.count + 1)
        change[: self.count] += np.cumsum(weights, axis=1)[:, -1]
        covered = np.cumsum(change)
        return covered[: self.count] + covered[self.count : 2 * self.count]


def in_turn(amounts: np.ndarray) -> float:
    """The sum, added up one after the other as C++ does (NumPy's own is of parts)."""
    return float(np.cumsum(amounts)[-1])


def _upto(amounts: np.ndarray) -> np.ndarray:
    """Sums over the first so many of the layers of two inferences."""
    return np.concatenate([[0.0], np.cumsum(np.concatenate([amounts, amounts]))])
