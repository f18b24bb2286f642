"""Which layers to compute in bands of rows, and how high the bands are: peak memory against repeated work.

For a limit in bytes, the cheapest way to keep every layer below this limit is a shortest path over the layers: each is
computed whole, if that fits, or belongs to a region whose bands fit. Repeated rows cost computing, and every band
loads the weights of its layers again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexcomp import plan
from flexcomp.plan import finest_segment
from flexcomp.program import ValueArg

from ..lowered import Lowered, operand_bytes
from .split import Chain, Region, chain_of

# Layers of a region at most: the halo grows with each, and so does the work that is done twice.
_LONGEST = 8
# Bands of a region at most; more make steps of a few rows.
_MOST_BANDS = 32
# Tried limits are this factor apart; the smallest possible one is found to within this part.
_RATIO = 0.85
_PRECISION = 0.01
# Bands may add this multiple of the network's computing and loading; with more, less memory is not worth it.
_MOST_REPEATED = 2.0
# Of the splits that are offered to the planner, each has at most this part of the steps of the next finer one.
_FEWER = 0.75


@dataclass(frozen=True)
class Split:
    """Regions of a network that keep the network below a limit."""

    regions: tuple[Region, ...]
    peak: int  # bytes of the largest layer or band; multiple of the page
    seconds: float  # that bands add
    steps: int  # layers outside of the regions and bands of those inside


@dataclass(frozen=True)
class _Option:
    region: Region
    peak: int
    seconds: float
    steps: int


def splits(
    lowered: Lowered, problem: plan.Problem, seconds_of: Callable[[float, int], float]
) -> tuple[Split, ...]:
    """Ways to split a network into bands, the one with the smallest memory first; none if bands do not help.

    `problem` is the network with whole layers; `seconds_of(work, nbytes)` predicts the time of a kernel.
    """
    if not problem.layers:
        return ()
    options = _Options(lowered, problem, seconds_of)
    loading = sum(problem.storage.seconds_of(layer.weights) for layer in problem.layers if layer.weights)
    most = _MOST_REPEATED * (loading + sum(layer.seconds for layer in problem.layers))
    found: list[Split] = []
    limit = max(options.bounds) - 1
    while (split := options.cheapest(limit)) is not None and split.seconds <= most:
        found.append(split)
        limit = min(split.peak - 1, int(limit * _RATIO))
    if not found:
        return ()
    low, high = limit, found[-1].peak  # somewhere between them splitting becomes impossible, or too expensive
    while high - low > _PRECISION * high:
        middle = (low + high) // 2
        split = options.cheapest(middle)
        if split is None or split.seconds > most:
            low = middle
        else:
            found.append(split)
            high = split.peak
    return tuple(spread(sorted(found, key=lambda split: split.peak)))


def spread(found: Sequence[Split]) -> list[Split]:
    """Of splits by their peaks the first, the last, and as many between them as bring the steps down evenly.

    Were they far apart, the finest bands, which repeat most, would serve budgets far above their need.
    """
    kept = [found[0]]
    for split in found[1:-1]:
        if split.steps <= _FEWER * kept[-1].steps:
            kept.append(split)
    return kept if len(found) == 1 else [*kept, found[-1]]


class _Options:
    """The regions of a network and their memory, each examined once."""

    def __init__(self, lowered: Lowered, problem: plan.Problem, seconds_of: Callable[[float, int], float]) -> None:
        self.lowered, self.problem, self.seconds_of = lowered, problem, seconds_of
        self.bounds = plan.layer_bounds(problem)
        self.lives = lowered.lifetimes()
        self._known: dict[int, list[list[_Option]]] = {}

    def cheapest(self, limit: int) -> Split | None:
        """The split that adds least to keep every layer below `limit` bytes; None if there is none."""
        count = len(self.bounds)
        best: list[tuple[float, int, int, _Option | None]] = [(math.inf, 0, 0, None)] * (count + 1)
        best[0] = (0.0, 0, 0, None)  # seconds, peak, start and split of the last part
        for start in range(count):
            seconds, peak, *_ = best[start]
            if math.isinf(seconds):
                continue
            if self.bounds[start] <= limit:
                best[start + 1] = min(best[start + 1], (seconds, max(peak, self.bounds[start]), start, None), key=_cost)
            if max(self.bounds[start : start + _LONGEST]) <= limit:
                continue
            for stop, options in enumerate(self._from(start), start + 2):
                if max(self.bounds[start:stop]) <= limit:
                    continue
                for option in options:
                    if option.peak <= limit:
                        part = (seconds + option.seconds, max(peak, option.peak), start, option)
                        best[stop] = min(best[stop], part, key=_cost)
        if math.isinf(best[count][0]):
            return None
        regions, steps, at = [], 0, count
        while at:
            _, _, start, option = best[at]
            steps += option.steps if option else 1
            if option is not None:
                regions.append(option.region)
            at = start
        return Split(tuple(reversed(regions)), best[count][1], best[count][0], steps)

    def _from(self, start: int) -> list[list[_Option]]:
        """The options of the regions that start at a layer, by their length from two on."""
        if start not in self._known:
            self._known[start] = [
                self._of_chain(chain, start, stop) if (chain := chain_of(self.lowered, start, stop)) else []
                for stop in range(start + 2, min(start + _LONGEST, len(self.bounds)) + 1)
            ]
        return self._known[start]

    def _of_chain(self, chain: Chain, start: int, stop: int) -> list[_Option]:
        rows = chain.out_rows
        heights = sorted({-(-rows // bands) for bands in range(2, min(_MOST_BANDS, rows) + 1)}, reverse=True)
        return [option for height in heights if (option := self._option(chain, Region(start, stop, height)))]

    def _option(self, chain: Chain, region: Region) -> _Option | None:
        parts = chain.split(region.height)
        if parts is None:
            return None
        inner = {
            arg.value
            for layer in self.lowered.layers[region.start : region.stop - 1]
            for arg in layer.args
            if isinstance(arg, ValueArg) and arg.written
        }
        inner -= {arg.value for arg in self.lowered.layers[region.stop - 1].args if isinstance(arg, ValueArg) and arg.written}
        outside = sum(
            self.lowered.values[value].nbytes
            for value, (start, end) in self.lives.items()
            if start < region.stop and end > region.start and value not in inner
        )
        layers = [self.problem.layers[link.layer] for link in chain.links]
        peak = max(
            outside + live + finest_segment(layer)
            for rows in parts
            for live, layer in zip(chain.inner_nbytes(rows), layers, strict=True)
        )
        steps = len(parts) * (region.stop - region.start)
        return _Option(region, plan.PAGE * -(-peak // plan.PAGE), self._added_seconds(chain, region, parts), steps)

    def _added_seconds(self, chain: Chain, region: Region, parts: Sequence) -> float:
        storage = self.problem.storage
        added = 0.0
        for position, link in enumerate(chain.links):
            layer, planned = self.lowered.layers[link.layer], self.problem.layers[link.layer]
            shares = [rows[position].count / link.kernel.out_rows for rows in parts]
            work, nbytes = self.lowered.work[link.layer], operand_bytes(layer)
            added += sum(self.seconds_of(work * share, int(nbytes * share)) for share in shares) - planned.seconds
            if planned.weights:
                added += (len(parts) - 1) * storage.seconds_of(planned.weights)
        return added


def _cost(part: tuple) -> tuple[float, int]:
    return part[0], part[1]
