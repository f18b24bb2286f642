"""Convolution in groups of a few channels each, over NHWC images, without scratch.

Targets groups of as many outputs as inputs, a power of two and fewer than a vector has lanes. A tile of the direct
kernel would fill a part of each vector. Here a vector holds the outputs of several groups:

1. Weights lie in panels of `tile.channels` output channels: bias, for each tap one row for every input channel of a group,
   then the epilogue's vectors.
2. The vector of inputs at the place of a vector of outputs holds the inputs of these groups. For each k the vector is shuffled,
   so that each lane has input k of its own group, and multiplied by the row of weights.
3. Tasks, rows and borders as in the depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .conv import as_row, sums_in_registers
from .depthwise import ChannelEmitter
from .direct_work import direct_work, float32_flops, with_products
from .family import OTHER, Candidate, Family
from .row_bands import Bands, row_kernel
from .tiles.panel import panel_of
from .tiles.spec import ARITHMETIC, ConvSpec
from .tiles.taps import Taps
from .tiles.tile import Tile, VectorUnit

# Vectors of a tile, registers that hold neither sums nor inputs, and the cost of a product compared with a direct one: every
# product takes a shuffle.
_VECTORS = 2
_OTHERS = 4
_SLOWDOWN = 1.5
_MOST_TRIED_ROWS = 9
_MOST_COLUMNS = 8  # of a kernel whose first taps some channels lack: all of its columns are unrolled


def eligible(spec: ConvSpec, unit: VectorUnit) -> bool:
    """Whether several groups fill a vector."""
    size = spec.group_in
    able = spec.groups > 1 and not spec.depthwise and size == spec.group_out and size < unit.width and size & (size - 1) == 0
    if spec.first_taps is not None:
        return able and spec.dtype == "float32" and spec.kernel[1] <= _MOST_COLUMNS
    return able and sums_in_registers(spec)


def kernel(spec: ConvSpec, tile: Tile, vector_width: int, threads: int = 1) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y); shapes as for the direct convolution."""
    return _Emitter(spec, as_row(spec), tile, vector_width, threads).prim_func()


class _Emitter(ChannelEmitter):
    """The depthwise convolution's loops around another tile."""

    def _tile(self, column, size: int, taps: Taps) -> None:
        self.total = self.acc
        self.add_up(size, lambda: self._products(column, size, taps))
        self._store(column, size)

    def _products(self, column, size: int, taps: Taps) -> None:
        for kernel_row, kernel_column, reached, pixel in self.reach(column, size, taps):
            with self.of_present(kernel_column):
                self._add((kernel_row * self.spec.kernel[1] + kernel_column) * self.spec.group_in, reached, pixel)

    def _add(self, tap, reached: list[int], pixel) -> None:
        """The products of a tap whose first input channel is number `tap` of the weights."""
        inputs = self.spec.group_in
        for start, lanes in self.pieces:
            step = self.spec.stride[1] * self.spec.in_channels
            pixels = {row: T.bind(self.inputs(pixel + row * step + start, lanes)) for row in reached}
            for i in range(inputs):
                own = [lane // inputs * inputs + i for lane in range(lanes)]
                weights = T.bind(self.weights(start, lanes, tap, then=i))
                for row in reached:
                    self.acc.add_product(row, start, lanes, tirx.Shuffle([pixels[row]], own), weights)


def _tile(spec: ConvSpec, unit: VectorUnit) -> Tile:
    """Pixels whose sums, inputs and shuffled inputs fit the registers: twice as many take up to 1.6 times as long."""
    vectors = min(_VECTORS, max(1, spec.out_channels // unit.width))
    rows = (unit.registers - _OTHERS) // (2 * (vectors + 1))
    return Tile(max(1, min(rows, spec.out_width)), min(vectors * unit.width, spec.out_channels))


def _candidate(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    rows = row_kernel(_BANDS, spec, unit.width, tile)
    code = lambda: kernel(spec, tile, unit.width, unit.threads)  # noqa: E731
    computed = with_products(spec)
    work = direct_work(computed, tile, unit) + float32_flops(computed) * (_SLOWDOWN - 1)
    return Candidate("grouped", tile, panel_of(spec, tile.channels), 0, work, code, rows=rows)


def _candidates(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    if eligible(spec, unit):
        yield _candidate(spec, _tile(spec, unit), unit)


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    if eligible(spec, unit):
        for rows in range(1, min(_MOST_TRIED_ROWS, spec.out_width) + 1):
            yield _candidate(spec, replace(_tile(spec, unit), rows=rows), unit)


_BANDS = Bands(ConvSpec, kernel, "grouped")
FAMILY = Family("grouped", ConvSpec, _candidates, _trials, dtypes=tuple(ARITHMETIC), bands=_BANDS, group=OTHER)
