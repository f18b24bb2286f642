"""Which kernel for which layer, when each has several, is best for a budget: judged by the bound on latency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bound import Cuts
from .parts.slicing import finest_segment, live_bytes
from .problem import PAGE, Layer, Problem

# Temperatures of the descent, as parts of the bound: cuts that far below the largest still count.
_TEMPERATURES = (0.1, 0.03, 0.01, 0.003, 0.001)
_ROUNDS = 60  # at one temperature, at most
_STARTS = 3  # from the best of: each option everywhere, or the last before it
_NEGLIGIBLE = 1e-9  # seconds
_SINGLES = 12  # layers that are tried alone, where no larger step helps


def mix(problem: Problem, options: Sequence[Sequence[Layer]], budget: int, limit: int | None = None) -> list[int]:
    """Per layer the index of one of its `options`, for the smallest latency bound under `budget` bytes.

    `problem` has the tensors, and the storage; the first options are its own layers. An option is taken only if what the
    layer needs at once is at most `limit` bytes (the budget, if it is not given), or if it is the first.

    The bound is the largest of many cuts (`Cuts`). Within a cut a layer costs the time to load it, outside the time
    to compute it: prices of bytes and of seconds that differ from layer to layer. A softened maximum weighs the
    cuts; layers change to the option that is cheapest at these prices, those first that gain most, as many at once
    as lower the softened bound. The maximum becomes harder from round to round.
    """
    limit = budget if limit is None else limit
    live = live_bytes(problem)
    count, width = len(options), max((len(layers) for layers in options), default=1)
    seconds, nbytes, allowed = np.zeros((count, width)), np.zeros((count, width)), np.zeros((count, width), bool)
    for row, layers in enumerate(options):
        for column, layer in enumerate(layers):
            need = -(-(live[row] + layer.scratch + finest_segment(layer)) // PAGE) * PAGE
            if column == 0 or need <= limit:
                allowed[row, column] = True
                seconds[row, column] = layer.seconds
                nbytes[row, column] = layer.weights.nbytes if layer.weights else 0
    return _Descent(problem, live, seconds, nbytes, allowed, budget).run()


class _Descent:
    def __init__(
        self,
        problem: Problem,
        live: Sequence[int],
        seconds: np.ndarray,
        nbytes: np.ndarray,
        allowed: np.ndarray,
        budget: int,
    ) -> None:
        self.seconds, self.nbytes, self.allowed, self.rows = seconds, nbytes, allowed, np.arange(len(seconds))
        self.cuts = Cuts(live, budget, problem.storage)
        self.known: tuple[bytes, np.ndarray] = b"", np.empty(0)  # the picks of which values were asked last, and these

    def run(self) -> list[int]:
        count, width = self.seconds.shape
        if not count:
            return []
        columns = np.arange(width)
        starts = [np.where(self.allowed, columns, 0)[:, : column + 1].max(axis=1) for column in columns]
        starts.sort(key=lambda picks: self._cost(picks, 0.0))
        found = [self._descend(start) for start in starts[:_STARTS]]
        return [int(pick) for pick in min(found, key=lambda picks: self._cost(picks, 0.0))]

    def _descend(self, picks: np.ndarray) -> np.ndarray:
        best, chosen = self._cost(picks, 0.0), picks
        for part in _TEMPERATURES:
            for _ in range(_ROUNDS):
                better = self._improved(picks, part * best) if best > _NEGLIGIBLE else None
                if better is None:
                    break
                picks = better
                cost = self._cost(picks, 0.0)
                if cost < best:
                    best, chosen = cost, picks
            picks = chosen
        return chosen

    def _values(self, picks: np.ndarray) -> np.ndarray:
        if self.known[0] != picks.tobytes():
            values = self.cuts.values(self.seconds[self.rows, picks], self.nbytes[self.rows, picks])
            self.known = picks.tobytes(), values
        return self.known[1]

    def _cost(self, picks: np.ndarray, heat: float, values: np.ndarray | None = None) -> float:
        values = self._values(picks) if values is None else values
        top = values.max()
        return float(top + heat * np.log(_softened(values, top, heat).sum()) if heat else top + 0.0)

    def _improved(self, picks: np.ndarray, heat: float) -> np.ndarray | None:
        """Picks whose softened cost is less; None if none was found."""
        values = self._values(picks)
        cost = self._cost(picks, heat, values)
        weights = _softened(values, values.max(), heat)
        now = self.seconds[self.rows, picks], self.nbytes[self.rows, picks]
        per_second, per_byte = self.cuts.prices(weights / weights.sum(), *now)
        prices = per_second[:, None] * self.seconds + per_byte[:, None] * self.nbytes
        prices[~self.allowed] = np.inf
        cheapest = prices.argmin(axis=1)
        gains = prices[self.rows, picks] - prices[self.rows, cheapest]
        movers = [row for row in np.argsort(-gains, kind="stable") if gains[row] > 0]
        size = len(movers)
        while size:
            moved = picks.copy()
            moved[movers[:size]] = cheapest[movers[:size]]
            if self._cost(moved, heat) < cost * (1 - 1e-9):
                return moved
            size = size * 2 // 3
        for row in movers[1:_SINGLES]:
            moved = picks.copy()
            moved[row] = cheapest[row]
            if self._cost(moved, heat) < cost * (1 - 1e-9):
                return moved
        return None


def _softened(values: np.ndarray, top: float, heat: float) -> np.ndarray:
    """exp((values - top) / heat), in one array."""
    result = values - top
    result /= heat
    return np.exp(result, out=result)
