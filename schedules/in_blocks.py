"""Dense layers whose weights are in blocks of inputs (`tiles/blocks.py`): exact to these values, in float32.

Weights stay as they are stored up to the registers:

    one row      products with a block's integers are added up first, and the block's sum is multiplied by its scale
    few rows     weights are widened and scaled in registers, for every tile
    many rows    weights are widened and scaled once for many tiles, into scratch (`widened.py`)

Loops over tasks and tiles, and the epilogue, are those of direct convolutions (`conv.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import one_pixel, widened
from .conv import DirectEmitter, as_row
from .direct_work import direct_work
from .family import PRODUCTS, READING, Candidate, Family
from .tiles.blocks import blocks_of
from .tiles.emit import Accumulators, maybe_serial, spread, vector, zero
from .tiles.panel import panel_of
from .tiles.spec import ConvSpec
from .tiles.taps import Taps
from .tiles.tile import Tile, VectorUnit, choose
from .tiles.trials import MOST_VECTORS, tiles

# Instructions that widen and scale a vector, as multiply-adds that could run instead.
_WIDENING = 4.0
_MOST_VECTORS_OF_A_PIXEL = 8
# Products added up before the sum moves to the total, at most, where a tile has several rows; as for direct kernels.
_PARTIAL_TERMS = 512


def kernel(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as for direct convolutions (`conv.py`)."""
    return _Emitter(spec, as_row(spec), tile, unit).prim_func()


class _Emitter(DirectEmitter):
    def __init__(self, declared: ConvSpec, spec: ConvSpec, tile: Tile, unit: VectorUnit) -> None:
        super().__init__(declared, spec, tile, unit.width, unit.threads)
        form = self.panel.in_blocks
        assert form and spec.pointwise and spec.groups == 1, f"not a dense layer with weights in blocks: {spec}"
        self.size, self.unit = form.size, unit

    def _registers(self) -> tuple[Accumulators, Accumulators]:
        acc = Accumulators(self.tile.rows, self.pieces)
        apart = self.tile.rows == 1 or self.spec.taps > _PARTIAL_TERMS
        return acc, Accumulators(self.tile.rows, self.pieces) if apart else acc

    def _products(self, column, size: int, taps: Taps) -> None:
        """Add the products of all blocks of inputs."""
        whole, rest = divmod(self.spec.taps, self.size)
        if self.tile.rows == 1:
            with T.serial(whole) as block:
                self._sum_of_block(column, block, self.size)
            if rest:
                self._sum_of_block(column, whole, rest)
            return
        each = max(1, _PARTIAL_TERMS // self.size) if self.total is not self.acc else max(1, whole)
        parts = math.ceil(whole / each)
        with maybe_serial(0, parts) as part, self._part(size):
            end = whole if parts == 1 else tirx.min((part + 1) * each, whole) if whole % each else (part + 1) * each
            with T.serial(part * each, end) as block:
                self._block(column, size, block, self.size)
        if rest:
            with self._part(size):
                self._block(column, size, whole, rest)

    def _sum_of_block(self, column, block, count: int) -> None:
        """Add the products of a block of inputs, whose scale is that of their sum."""
        self.acc.fill(1, lambda start, lanes: zero(lanes))
        self._add(column, 1, block, count, None)
        for start, lanes in self.pieces:
            scale = self.w.lanes.scales(self.panel_at, block, start, lanes)
            self.total.add_to(0, start, lanes, self.acc.get(0, start, lanes) * scale)

    def _block(self, column, size: int, block, count: int) -> None:
        """Add the products of a block of inputs, each weight of which is scaled for all rows."""
        scales = {start: T.bind(self.w.lanes.scales(self.panel_at, block, start, lanes)) for start, lanes in self.pieces}
        self._add(column, size, block, count, scales)

    def _add(self, column, size: int, block, count: int, scales: dict[int, tirx.Expr] | None) -> None:
        zeros = {start: self.w.lanes.zeros(self.panel_at, block, start, lanes) for start, lanes in self.pieces}
        self.zeros = {start: value if value is None else T.bind(value) for start, value in zeros.items()}
        self.scales = scales
        # Inputs whose factors are loaded at a time. With more, LLVM starts so early on the next that registers run out.
        together = 2 if self.tile.rows == 1 else max(2, self.tile.depth)
        tap = T.bind(block * self.size)
        with T.serial(count // together) as step:
            self._steps(column, size, T.bind(tap + step * together), together, by_lane=together > 2)
        done = count // together * together
        for first in range(done, count, 2):
            self._steps(column, size, tap + first, min(2, count - first), by_lane=False)

    def _steps(self, column, size: int, tap, count: int, by_lane: bool) -> None:
        """Add the products of `count` inputs from an even one on."""
        rows = range(size)
        pixel = {row: (column + row) * self.spec.in_channels + tap for row in rows}
        vectors = {row: T.bind(self.x[vector(pixel[row], count)]) for row in rows} if by_lane else {}

        def factor(row: int, step: int, lanes: int) -> tirx.Expr:
            if by_lane:
                return tirx.Shuffle([vectors[row]], [step] * lanes)
            return spread(self.x[pixel[row] + step], lanes)

        for pair in range(0, count, 2):
            if self.fetches_weights:
                self.w.fetch_taps_ahead(self.panel_at, tap + pair)
            for start, lanes, values in self.w.lanes.pairs(self.panel_at, tap + pair, self.pieces, self.zeros, self.unit):
                for step, value in enumerate(values[: count - pair], start=pair):
                    weights = T.bind(value if self.scales is None else value * self.scales[start])
                    for row in rows:
                        self.acc.add_product(row, start, lanes, factor(row, step, lanes), weights)


def _candidate(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    panel = panel_of(spec, tile.channels)
    work = direct_work(spec, tile, unit) * (1 if _is_row(spec) else 1 + _WIDENING / tile.rows)
    disjoint = panel.group_channels % panel.block == 0
    code = lambda: kernel(spec, tile, unit)  # noqa: E731
    return Candidate(_NAMES[_is_row(spec)], tile, panel, 0, work, code, in_place=disjoint)


def _widened(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    way = widened.Widened(spec, tile, unit.threads)
    panel = panel_of(spec, tile.channels)
    return Candidate(
        _NAMES[False],
        tile,
        panel,
        way.scratch_nbytes,
        direct_work(spec, tile, unit) * (1 + _WIDENING / widened.TILES_OF_A_GROUP / tile.rows),
        lambda: widened.kernel(way, unit.width),
        variant="widened",
        scratch=way.scratch,
        in_place=panel.group_channels % panel.block == 0,
    )


def _rows(spec: ConvSpec) -> int:
    return spec.batch * spec.height * spec.width


def _is_row(spec: ConvSpec) -> bool:
    return _rows(spec) == 1


def _with_tile(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Iterator[Candidate]:
    yield _candidate(spec, tile, unit)
    if widened.eligible(spec, tile):
        yield _widened(spec, tile, unit)


def _candidates(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    tile = choose(_rows(spec), spec.out_channels, unit, row_nbytes=4 * spec.in_channels, weight_nbytes=1)
    if _is_row(spec):
        tile = one_pixel.with_less_padding(spec, tile, unit)
    return _with_tile(spec, tile, unit)


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    most = _MOST_VECTORS_OF_A_PIXEL if _is_row(spec) else MOST_VECTORS
    for tile in tiles(_rows(spec), spec.out_channels, unit, most):
        yield from _with_tile(spec, tile, unit)


def _family(of_one_row: bool, **more: object) -> Family:
    """One of the two, with its part of the layers."""

    def of(offer):
        able = lambda spec: blocks_of(spec.weights).together == 1 and _is_row(spec) == of_one_row  # noqa: E731
        return lambda spec, unit: offer(spec, unit) if able(spec) else ()

    return Family(_NAMES[of_one_row], ConvSpec, of(_candidates), of(_trials), in_blocks=True, **more)


_NAMES = {True: "blockgemv", False: "blockgemm"}
FAMILY = _family(False, group=PRODUCTS)
ONE_ROW = _family(True, bound_by=READING)
