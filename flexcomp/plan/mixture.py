"""Chooses a kernel per layer for a budget, by the bound on latency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from .bound import Cuts, in_turn, live_at_cuts
from .loops import in_python
from .native import mix_kernels
from .parts.slicing import finest_segment, live_bytes
from .problem import PAGE, Layer, Problem

# The maximum of the cuts is softened to (sum of value ** p) ** (1 / p): squarings that make p, and the part of the largest
# value below which others do not count.
_SOFTNESS = ((3, 0.1), (5, 0.5), (7, 0.85), (9, 0.96), (10, 0.98))
_ROUNDS = 60  # per softness, at most
_STARTS = 1  # descents, from the best starts: option n everywhere, or the last allowed option before n
_NEGLIGIBLE = 1e-9  # seconds
_BETTER = 1e-9  # part of a cost
_SINGLES = 12  # layers that are tried alone, where no larger step helps


class Mixture:
    """The choices between kernels for the layers of a network."""

    def __init__(self, problem: Problem, options: Sequence[Sequence[Layer]]) -> None:
        """`problem` has the buffers and the storage; the first of the `options` of a layer is the layer in `problem`."""
        self._storage, live = problem.storage, live_bytes(problem)
        self._live = live_at_cuts(live)
        shape = len(options), max((len(layers) for layers in options), default=1)
        self._seconds, self._nbytes, self._needs = np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
        costs = [problem.storage.load_cost(layer.weights) for layers in options for layer in layers if layer.weights]
        self._dearest = max(1.0, *costs) if costs else 1.0
        readers = Counter(weights for layers in options for weights in {layer.weights for layer in layers})  # at most
        for row, layers in enumerate(options):
            for column, layer in enumerate(layers):
                need = -(-(live[row] + layer.scratch + finest_segment(layer)) // PAGE) * PAGE
                self._needs[row, column] = need if column else 0
                self._seconds[row, column] = layer.seconds
                weights = layer.weights
                nbytes = problem.storage.load_cost(weights) * weights.nbytes if weights else 0
                self._nbytes[row, column] = nbytes / readers[weights] if weights else 0
        self._options = options if any(count > 1 for weights, count in readers.items() if weights) else None

    def best(self, budget: int, limit: int | None = None) -> list[int]:
        """Per layer the index of one of its options, for the smallest latency bound under `budget` bytes.

        An option other than the first is taken only if the layer needs at most `limit` bytes at once (by default the budget).

        The bound is the largest of many cuts (`Cuts`). Within a cut a layer costs the time to load it, outside the time
        to compute it: prices of bytes and of seconds that differ from layer to layer. A softened maximum weighs the
        cuts; layers change to the cheapest option at these prices, largest gains first, as many layers at once
        as lower the softened bound. The maximum becomes harder from round to round.
        """
        if not len(self._live):
            return []
        cuts = Cuts(self._live, budget, self._storage, self._dearest)
        allowed = self._needs <= (budget if limit is None else limit)
        picks = self._descend(cuts, allowed)
        if self._options is None:
            return picks
        # Layers that read the same weights with different kernels share nothing; the descent ignores that.
        return min(picks, [0] * len(picks), key=lambda each: self._exact_bound(cuts, each))

    def _descend(self, cuts: Cuts, allowed: np.ndarray) -> list[int]:
        if in_python():
            return _Descent(cuts, self._seconds, self._nbytes, allowed).run()
        limits = {"rounds": _ROUNDS, "starts": _STARTS, "singles": _SINGLES, "least": _NEGLIGIBLE, "better": _BETTER}
        return mix_kernels(self._seconds, self._nbytes, allowed, cuts.held, cuts.rates, _SOFTNESS, **limits)

    def _exact_bound(self, cuts: Cuts, picks: Sequence[int]) -> float:
        """The latency bound of the picked layers, by the readers that their weights really have."""
        rows = np.arange(len(picks))
        layers = [options[pick] for options, pick in zip(self._options, picks, strict=True)]
        most = Counter(weights for options in self._options for weights in {layer.weights for layer in options})
        readers = Counter(layer.weights for layer in layers)
        parts = np.array([most[layer.weights] / readers[layer.weights] for layer in layers])
        return float(cuts.values(self._seconds[rows, picks], self._nbytes[rows, picks] * parts).max())


class _Descent:
    def __init__(self, cuts: Cuts, seconds: np.ndarray, nbytes: np.ndarray, allowed: np.ndarray) -> None:
        self.cuts, self.seconds, self.nbytes, self.allowed, self.rows = cuts, seconds, nbytes, allowed, np.arange(len(seconds))

    def run(self) -> list[int]:
        columns = np.arange(self.seconds.shape[1])
        starts = [np.where(self.allowed, columns, 0)[:, : column + 1].max(axis=1) for column in columns]
        starts = [np.array(start) for start in dict.fromkeys(tuple(start) for start in starts)]
        starts.sort(key=self._bound)
        found = [self._descend(start) for start in starts[:_STARTS]]
        return [int(pick) for pick in min(found, key=self._bound)]

    def _descend(self, picks: np.ndarray) -> np.ndarray:
        best, chosen = self._bound(picks), picks
        for softness in _SOFTNESS:
            for _ in range(_ROUNDS):
                better = self._improved(picks, *softness) if best > _NEGLIGIBLE else None
                if better is None:
                    break
                picks = better
                bound = self._bound(picks)
                if bound < best:
                    best, chosen = bound, picks
            picks = chosen
        return chosen

    def _values(self, picks: np.ndarray) -> np.ndarray:
        return self.cuts.values(self.seconds[self.rows, picks], self.nbytes[self.rows, picks])

    def _bound(self, picks: np.ndarray) -> float:
        return float(self._values(picks).max())

    def _improved(self, picks: np.ndarray, squarings: int, negligible: float) -> np.ndarray | None:
        """Picks whose softened cost is less; None if none was found."""

        def cost(picks: np.ndarray) -> tuple[float, np.ndarray]:
            """The softened maximum of the cuts, and their parts in the maximum."""
            values = self._values(picks)
            top = values.max()
            if not top:
                return 0.0, values
            powers = np.where(values < negligible * top, 0.0, values / top)
            for _ in range(squarings):
                powers *= powers
            norm = total = in_turn(powers.ravel())
            for _ in range(squarings):
                norm = math.sqrt(norm)
            return float(top * norm), powers / total

        now, weights = cost(picks)
        per_second, per_byte = self.cuts.prices(weights, self.seconds[self.rows, picks], self.nbytes[self.rows, picks])
        prices = per_second[:, None] * self.seconds + per_byte[:, None] * self.nbytes
        prices[~self.allowed] = np.inf
        cheapest = prices.argmin(axis=1)
        gains = prices[self.rows, picks] - prices[self.rows, cheapest]
        movers = [row for row in np.argsort(-gains, kind="stable") if gains[row] > 0]
        sizes = [len(movers)]
        while sizes[-1]:
            sizes.append(sizes[-1] * 2 // 3)
        for moving in [*(movers[:size] for size in sizes[:-1]), *([row] for row in movers[1:_SINGLES])]:
            moved = picks.copy()
            moved[moving] = cheapest[moving]
            if cost(moved)[0] < now * (1 - _BETTER):
                return moved
        return None
