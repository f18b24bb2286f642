"""How a recurrent layer is cut into register tiles, and how its recurrent weights lie in panels.

A block is some hidden units with all gates of a phase, so that gates are computed where their products are:

    block of R's panel    columns: gate by gate, the same units of each;  rows: the bias, then one row for each unit of the state

Units that do not fill the last block are taken from the previous block: both compute the same values. The peepholes are a
vector of the panel, 0 where a gate has none.

A state in 8 bits is multiplied by weights in 8 bits with integer arithmetic (schedules/tiles/dot.py): units of the state lie
together in the panel, and zeros follow the last ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from ..tiles.dot import DOTS, Dots
from ..tiles.panel import Panel
from ..tiles.tile import VectorUnit, most_rows, pieces, split_evenly, step_cost
from .spec import RecurrentSpec

# Products added up in a register before the sum moves to the total, for rounding errors; as direct convolutions do.
PARTIAL_TERMS = 512
# Bytes of sums of a gate, where registers do not hold them: from 1 KiB on TVM asks the runtime for memory.
_SUMS_NBYTES = 1024
# Vectors of units in a block: with few gates more of them keep the multiply-adds busy.
_MOST_VECTORS = 8
# Bytes of weights that a core's second-level cache holds from step to step, and the cost of a byte in operations: read from
# there, and from the cache that cores share.
_NEAR_NBYTES = 384 * 1024
_NEAR_FLOPS, _FAR_FLOPS = 0.6, 2.0
# Operations of an activation, at the speed of a convolution.
_ACTIVATION_FLOPS = 40
_LAUNCH_FLOPS = 300_000  # that could run while threads are told of a step


@dataclass(frozen=True)
class Phase:
    """The tiles of a phase."""

    gates: tuple[int, ...]
    units: int  # hidden units of a block
    rows: int  # of the batch in a register tile
    parts: int  # that a block's columns are computed in, one after the other
    depth: int  # steps of the reduction taken at a time (tiles/lane.py)
    panel: Panel

    @property
    def is_whole(self) -> bool:
        """Whether registers hold all sums of a block from the first product to the last."""
        return self.parts == 1 and (self.panel.taps <= PARTIAL_TERMS or self.panel.together > 1)


@dataclass(frozen=True)
class Recurrent:
    """A way to compute a recurrent layer."""

    spec: RecurrentSpec
    phases: tuple[Phase, ...]
    threads: int  # that share every step
    work: float
    dots: Dots | None = None  # the integer arithmetic, if any

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """The state before a step and after it, the cell likewise; the results of one phase for the next; the state in 8 bits."""
        buffers = {"LSTM": 4, "GRU": 2 if self.spec.linear_before_reset else 4, "RNN": 2}[self.spec.cell]
        whole = buffers * self.spec.hidden
        if self.dots:
            whole += self.phases[0].panel.taps // self.dots.together
        elif self.spec.quantised_state:
            whole += self.spec.hidden
        return ((whole * self.spec.batch,),)

    def __str__(self) -> str:
        """The part of a name that tells this way from others to compute the layer."""
        parts = (f"{one.rows}×{len(one.gates)}·{one.units}{f' by {one.parts}' if one.parts > 1 else ''}" for one in self.phases)
        return f"recurrent {', '.join(parts)}"


@functools.lru_cache(maxsize=256)
def way(spec: RecurrentSpec, unit: VectorUnit) -> Recurrent:
    """The way with the least predicted work."""
    return candidates(spec, unit)[0]


def candidates(spec: RecurrentSpec, unit: VectorUnit) -> list[Recurrent]:
    """Ways to compute a layer, that of the phases with the least predicted work first; their names are unique."""
    offers = [_phases(spec, gates, unit) for gates in spec.phases]
    if len(offers) > 1:  # of candidates with equally wide blocks the best: all would be too many
        offers = [list({phase.units: phase for phase in reversed(some)}.values())[::-1] for some in offers]
    return [_way(spec, phases, unit) for phases in itertools.product(*offers)]


def dots_of(spec: RecurrentSpec, unit: VectorUnit) -> Dots | None:
    """The integer arithmetic that a layer is computed with, if any."""
    return DOTS[unit.dots] if unit.dots and spec.quantised_state and spec.weights == "int8" else None


def _way(spec: RecurrentSpec, phases: tuple[Phase, ...], unit: VectorUnit) -> Recurrent:
    nbytes = sum(phase.panel.blocks * phase.panel.block_nbytes for phase in phases)
    threads = unit.threads if spec.is_parallel else 1
    far = max(0, nbytes - _NEAR_NBYTES * threads)  # cores that share a step cache their own part of the weights
    tiles = max(math.ceil(spec.batch / phase.rows) for phase in phases)
    dots = dots_of(spec, unit)
    step = spec.step_flops * (dots.flops if dots else 1.0) + nbytes * tiles * _NEAR_FLOPS + far * (_FAR_FLOPS - _NEAR_FLOPS)
    step += spec.batch * spec.hidden * (spec.gates + (spec.cell == "LSTM")) * _ACTIVATION_FLOPS
    if threads > 1:
        step += threads * _LAUNCH_FLOPS * len(phases)
    return Recurrent(spec, phases, threads, float(spec.steps * step), dots)


def _phases(spec: RecurrentSpec, gates: tuple[int, ...], unit: VectorUnit) -> list[Phase]:
    """Those of different units and parts, the one with the least predicted work first."""
    dots = dots_of(spec, unit)
    unit = replace(unit, registers=unit.registers - dots.registers) if dots else unit
    row_nbytes = (dots.itemsize if dots else 4) * spec.hidden if spec.batch > 1 else 0
    found: dict[tuple[int, int, int], tuple[float, int, int]] = {}
    for each in range(1, max(1, _MOST_VECTORS // len(gates)) + 1):
        units = min(each * unit.width, spec.hidden)
        columns = len(gates) * len(pieces(units, unit.width))
        for parts in range(1, columns + 1):
            vectors = math.ceil(columns / parts)
            rows = min(most_rows(vectors, unit, row_nbytes), spec.batch)
            if parts > 1 or (spec.hidden > PARTIAL_TERMS and not dots):
                rows = max(1, min(rows, (_SUMS_NBYTES - 1) // (4 * units)))
            tiles = sum(step_cost(size, vectors, unit) for _, size in split_evenly(spec.batch, rows))
            cost = tiles * parts * math.ceil(spec.hidden / units)
            key = (round(cost, 3), parts, each)
            found[units, rows, parts] = min(key, found.get((units, rows, parts), key))
    return [_phase(spec, gates, unit, *sizes) for sizes in sorted(found, key=found.__getitem__)]


def _phase(spec: RecurrentSpec, gates: tuple[int, ...], unit: VectorUnit, units: int, rows: int, parts: int) -> Phase:
    block = len(gates) * units
    blocks = math.ceil(spec.hidden / units)
    dots = dots_of(spec, unit)
    together, lowest = (dots.together, dots.lowest) if dots else (1, 0)
    taps = math.ceil(spec.hidden / together) * together
    panel = Panel(1, blocks * block, block, taps, int(spec.peepholes), spec.weights, together, lowest)
    return Phase(gates, units, rows, parts, unit.width if unit.by_lane else 1, panel)


def first_unit(spec: RecurrentSpec, phase: Phase, block):
    """The unit that a block begins with, for an integer or an array."""
    return np.minimum(block * phase.units, spec.hidden - phase.units)


def channels(spec: RecurrentSpec, phase: Phase) -> np.ndarray:
    """int64[blocks · block]: the row of R, of all directions, that is each column of the panel."""
    starts = first_unit(spec, phase, np.arange(phase.panel.blocks))
    units = starts[:, None, None] + np.arange(phase.units)
    rows = (spec.direction * spec.gates + np.array(phase.gates))[:, None] * spec.hidden + units
    return rows.reshape(-1).astype(np.int64)
