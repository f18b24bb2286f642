"""A lower bound on the latency under a budget, to judge plans by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .loops import in_python
from .native import LargestCut, cut_values
from .parts.slicing import live_bytes
from .problem import Layer, Problem, Storage, of_problem


@of_problem
def _amounts(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """`live_at_cuts`; per layer the seconds, and the bytes that could be read in the loading time of its weights; the largest
    load cost.

    Layers with the same weights get an equal part each: the layers after a cut read shared weights once at most.
    """
    seconds = np.array([layer.seconds for layer in problem.layers])
    nbytes = [cost * layer.weights.nbytes / readers if layer.weights else 0 for layer, cost, readers in _priced(problem)]
    return live_at_cuts(live_bytes(problem)), seconds, np.array(nbytes, dtype=float), max(1.0, *problem.load_costs)


@of_problem
def _largest_cut(problem: Problem) -> LargestCut:
    """What `latency_bound` asks C++."""
    live, seconds, nbytes, dearest = _amounts(problem)
    return LargestCut(_upto(seconds), _upto(nbytes), live, dearest, Cuts(live, 0, problem.storage, dearest).rates)


def _priced(problem: Problem) -> Iterator[tuple[Layer, float, int]]:
    return zip(problem.layers, problem.load_costs, problem.readers, strict=True)


def latency_bound(problem: Problem, budget: int) -> float:
    """A lower bound in seconds for plans within `budget` bytes, in the steady state, on the predicted times.

    The bound is the largest of the cuts of `Cuts`, and ignores pages, overheads and fragmentation.
    """
    if not problem.layers:
        return 0.0
    if not in_python():
        return _largest_cut(problem).at(budget)
    live, seconds, nbytes, dearest = _amounts(problem)
    return float(Cuts(live, budget, problem.storage, dearest).values(seconds, nbytes).max())


def unpinned_bound(problem: Problem) -> float:
    """A lower bound in seconds for plans of any budget that keep no weights and load nothing ahead, less rounding."""
    return _unpinned(problem)[0]


def piecewise_bound(problem: Problem) -> float:
    """The same for plans with one load or more for each layer."""
    return _unpinned(problem)[1]


def on_demand_bound(problem: Problem) -> float:
    """The same for plans that load nothing while a step is computed."""
    return _unpinned(problem)[2]


@of_problem
def _unpinned(problem: Problem) -> tuple[float, float, float]:
    storage = problem.storage.in_cache  # a bound: as if all loads stayed in the caches
    weights = [(cost * layer.weights.nbytes / readers, 1 / readers) for layer, cost, readers in _priced(problem) if layer.weights]
    reading, computing = sum(part for part, _ in weights) / storage.bandwidth, sum(layer.seconds for layer in problem.layers)
    asking = sum(loads for _, loads in weights) * storage.overhead_s
    in_turn = asking + reading / storage.together + computing
    bounds = storage.least_seconds(reading, computing), storage.least_seconds(reading + asking, computing), in_turn
    return tuple(bound * (1 - 1e-9) for bound in bounds)


def live_at_cuts(live: Sequence[int]) -> np.ndarray:
    """float64[layers]: the bytes of the buffers that are live before each layer, given the bytes live in each layer."""
    return np.roll(np.array(live, dtype=float), 1)


class Cuts:
    """Lower bounds on the latency of an inference, of layers that may have other kernels, for one budget.

    When the last step of layer i - 1 ends, the weights in the arena, pinned or preloaded, are at most the budget less
    the live buffers. Of the weights of the next layers [i, j), the rest must be read after that, and the
    remaining layers are computed before or after that. Inferences follow each other, so the layers may belong to
    two inferences, each layer once at most: in the steady state an inference takes as long as the time from one
    of its moments to the same moment of the next.

    Where waiting computing helps to load, computing does not help during the layers after the cut.

    A cut with no layers after it computes all layers. Weights that do not fit are loaded meanwhile, and slow computing down
    even in a cache, or take longer than that while computing waits.
    """

    def __init__(self, live: np.ndarray, budget: int, storage: Storage, dearest: float = 1.0) -> None:
        """`live` are the bytes of `live_at_cuts`; `dearest` is an upper bound of the load costs.

        Bytes of weights are counted at their load costs, so a byte of memory holds as much as the most expensive byte costs.
        """
        storage = storage.in_cache  # a bound: as if all loads stayed in the caches
        self.count, self.budget, self.bandwidth = len(live), budget, storage.bandwidth
        self.helped = 1 - 1 / storage.together  # the part of a wait for loads that is saved by helping with them
        self.budget *= dearest
        self.held = dearest * np.maximum(0.0, budget - live)
        # by a byte that is loaded during computing, or in a wait
        beside = storage.disturbance / (1 + storage.disturbance * storage.bandwidth)
        self.delay = min(beside, 1 / (storage.bandwidth * storage.together)) / dearest

    @property
    def rates(self) -> dict[str, float]:
        """The arguments of C++ in addition to `held`."""
        return {"bandwidth": self.bandwidth, "helped": self.helped, "delay": self.delay, "budget": self.budget}

    def values(self, seconds: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """float64[layers, layers + 1], in seconds: [i, k] is the bound of the cut before layer i with k layers after."""
        upto = _upto(seconds), _upto(nbytes)
        if not in_python():
            return cut_values(*upto, self.held, **self.rates)
        computing, total = (sums[self.count] for sums in upto)
        read, computed = self._read(nbytes), self._behind(seconds)
        values = read - self.helped * np.maximum(0.0, read - computed) + (computing - computed)
        values[:, 0] += self.delay * max(0.0, total - self.budget)
        return values

    def prices(self, weights: np.ndarray, seconds: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The growth of the cuts' weighted sum per second and per byte of each layer (`weights` add up to one)."""
        read = self._read(nbytes)
        weights_of_waits = weights * (1 - self.helped * (read > self._behind(seconds)))
        delay = self.delay * in_turn(weights[:, 0]) if in_turn(nbytes) > self.budget else 0.0
        per_byte = self._covered(weights_of_waits * (read > 0)) / self.bandwidth + delay
        return 1.0 - self._covered(weights_of_waits), per_byte

    def _read(self, nbytes: np.ndarray) -> np.ndarray:
        """Seconds in which one core reads the bytes that must be read after every cut."""
        return np.maximum(0.0, self._behind(nbytes) - self.held[:, None]) / self.bandwidth

    def _behind(self, amounts: np.ndarray) -> np.ndarray:
        """Sums over the layers after every cut."""
        upto = _upto(amounts)
        return sliding_window_view(upto, self.count + 1)[: self.count] - upto[: self.count, None]

    def _covered(self, weights: np.ndarray) -> np.ndarray:
        """Per layer the sum of `weights` over the cuts before the layer."""
        ends = np.add.outer(np.arange(self.count), np.arange(self.count + 1))
        change = np.bincount(ends.ravel(), weights=-weights.ravel(), minlength=2 * self.count + 1)
        change[: self.count] += np.cumsum(weights, axis=1)[:, -1]
        covered = np.cumsum(change)
        return covered[: self.count] + covered[self.count : 2 * self.count]


def in_turn(amounts: np.ndarray) -> float:
    """The sum, added up one after the other as in C++ (NumPy sums pairwise)."""
    return float(np.cumsum(amounts)[-1])


def _upto(amounts: np.ndarray) -> np.ndarray:
    """Sums over the first layers of two inferences, for each number of layers."""
    return np.concatenate([[0.0], np.cumsum(np.concatenate([amounts, amounts]))])
