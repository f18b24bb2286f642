"""How good a candidate will be on the device at hand, learnt with gradient-boosted trees from measurements there.

The model learns by how much a candidate takes longer than expected, relative to the layer's default kernel, so that
layers of all sizes teach the model. The expected time counts multiply-adds and operand loads, and is all that candidates
are ranked by before there is anything to learn from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flexcomp.schedules.direct import tile_width
from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.registry import FAMILIES, Candidate
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit, pieces, split_evenly
from flexcomp.tuning.specs import TunedSpec

_FEWEST_SAMPLES = 12
_ROUNDS = 120
_PARAMS = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.15,
    "subsample": 0.9,
    "min_child_weight": 1,
    "nthread": 1,
    "seed": 0,
    "verbosity": 0,
}
FAILED = math.log(10.0)  # a failed trial counts as ten times as slow as the default
# Multiply-adds that a step of a register tile waits for at least, and the cost of loading an operand relative to one.
_IN_FLIGHT = 8
_LOAD = 0.2


def expected(spec: TunedSpec, candidate: Candidate, unit: VectorUnit) -> float:
    """Log of the time that a candidate should take, in arbitrary units that candidates of one layer share."""
    if candidate.scratch:
        return math.log(candidate.work)  # the family's prediction knows the tile
    tile, vectors = candidate.tile, len(pieces(candidate.tile.channels, unit.width))
    width, channels = _extents(spec)
    steps = math.fsum(max(r * vectors, _IN_FLIGHT) + _LOAD * (r + vectors) for _, r in split_evenly(width, tile.rows))
    ideal = width * channels / unit.width
    return math.log(candidate.work * math.ceil(channels / tile.channels) * steps / ideal)


def _extents(spec: TunedSpec) -> tuple[int, int]:
    """Pixels in a row, and channels, that tiles are cut from."""
    if isinstance(spec, RecurrentSpec):
        return spec.batch, len(spec.phases[0]) * spec.hidden
    return (tile_width(spec), spec.group_out) if isinstance(spec, ConvSpec) else (spec.m, spec.n)


def features(spec: TunedSpec, candidate: Candidate, unit: VectorUnit) -> list[float]:
    """Features of a candidate that may decide its speed. Sizes are logarithms."""
    tile = candidate.tile
    vectors = len(pieces(tile.channels, unit.width))
    width, channels = _extents(spec)
    if isinstance(spec, ConvSpec):
        pixels = spec.batch * spec.out_height * spec.out_width
        depth = spec.taps
        shape = [pixels, spec.out_width, spec.in_channels, spec.out_channels, spec.kernel[0], spec.stride[0], spec.groups]
    elif isinstance(spec, RecurrentSpec):
        depth = spec.hidden
        shape = [spec.steps * spec.batch, spec.batch, spec.hidden, spec.gates * spec.hidden, 1, 1, spec.directions]
    else:
        depth = spec.k
        shape = [spec.batch * spec.m, spec.m, spec.k, spec.n, 1, 1, spec.batch]
    parts = [size for _, size in split_evenly(width, tile.rows)]
    panel = candidate.panel or next(iter(candidate.panels), None)
    scratch = [extent for shape_ in candidate.scratch for extent in shape_][:6]
    return [
        *(math.log2(extent) for extent in shape),
        math.log2(depth),
        math.log2(max(spec.flops, 1)),
        *(float(candidate.family == family.name) for family in FAMILIES if isinstance(unit, family.machine)),
        float(tile.rows),
        float(tile.channels),
        float(vectors),
        float(tile.channels % unit.width > 0),
        float(tile.rows * vectors),
        (tile.rows + 1) * vectors / unit.registers,
        min(parts) / tile.rows,
        width / (len(parts) * tile.rows),
        channels / (math.ceil(channels / tile.channels) * tile.channels),
        math.log2(1 + (panel.block_nbytes if panel else 0)),
        math.log2(1 + (panel.blocks if panel else 0)),
        math.log2(1 + (panel.blocks * panel.block_nbytes if panel else 0)),
        math.log2(1 + candidate.scratch_nbytes),
        *(math.log2(extent) for extent in scratch),
        *([0.0] * (6 - len(scratch))),
        float(getattr(candidate.transform, "m", 0)),  # of Winograd's tiles
        math.log2(candidate.work / max(spec.flops, 1)),
    ]


class CostModel:
    """Samples of one device, and trees fitted to them."""

    def __init__(self) -> None:
        self._rows: list[Sequence[float]] = []
        self._targets: list[float] = []
        self._trees = None
        self._fitted = 0

    def add(self, row: Sequence[float], log_ratio: float, expected_log_ratio: float) -> None:
        """Learn from a sample: logs of a candidate's measured and expected times over those of the default."""
        self._rows.append(row)
        self._targets.append(min(log_ratio, FAILED) - expected_log_ratio)

    def correction(self, rows: Sequence[Sequence[float]]) -> np.ndarray:
        """float[len(rows)]: corrections to the expected logs; zeros while there are too few samples."""
        if len(self._rows) < _FEWEST_SAMPLES:
            return np.zeros(len(rows))
        import xgboost

        if self._fitted < len(self._rows):
            data = xgboost.DMatrix(np.asarray(self._rows, np.float32), np.asarray(self._targets, np.float32), nthread=1)
            self._trees = xgboost.train(_PARAMS, data, _ROUNDS)
            self._fitted = len(self._rows)
        return self._trees.predict(xgboost.DMatrix(np.asarray(rows, np.float32), nthread=1))
