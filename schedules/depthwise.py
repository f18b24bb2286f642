"""Depthwise convolution over NHWC images: vectors of channels, without scratch.

1. Weights lie in panels of `tile.channels` channels: bias, one row per tap, then the epilogue's vectors.
2. Tasks are (part of the output, block of channels), the block innermost.
3. A tile is a few neighbouring pixels of one row; the taps of a kernel row are unrolled, so that an input vector
   that several pixels need is loaded once: all of them, or as many as the code may be long.
4. Borders as in the direct convolution: bounds of the kernel row's loop, tiles of their own left and right.
5. Where vectors are short, narrow weights are widened once for all tiles of a task, onto the stack (schedules/tiles/widening.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .conv import DirectEmitter, as_row, sums_in_registers
from .direct_work import float32_flops, with_products
from .family import Candidate, Family
from .row_bands import Bands, row_kernel
from .tiles.emit import converted, maybe_serial, vector
from .tiles.panel import panel_of
from .tiles.spec import ARITHMETIC, ConvSpec
from .tiles.taps import Reach, Taps
from .tiles.tile import Tile, VectorUnit
from .tiles.trials import tiles
from .tiles.widening import widens_on_stack

# Pixels of a tile: a kernel row's taps of seven neighbours and their accumulators fill 32 registers.
_ROWS = 7
_VECTORS = 2
_MOST_TRIED_ROWS = 14
# Above this value of inputs + 3 × weights of a kernel row LLVM was seen to move vectors to the stack and back in the
# inner loop, the inputs being loaded early (benchmarks/lab/arm/mca.py).
_LIVE = 21
# Cost of a tap compared with a direct one, whose operands are reused: a vector is loaded for every FMA.
_SLOWDOWN = 1.3

# Taps of a long kernel row that are unrolled together, in code that all tiles share, and in the code of a border.
_TOGETHER, _TOGETHER_AT_BORDER = 32, 8


def kernel(spec: ConvSpec, tile: Tile, vector_width: int, threads: int = 1) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y); shapes as for the direct convolution."""
    return ChannelEmitter(spec, as_row(spec), tile, vector_width, threads).prim_func()


class ChannelEmitter(DirectEmitter):
    """The direct convolution's loops around another tile: channel i of the input meets channel i of the filter."""

    multiplies_pairs = False

    def __init__(self, declared: ConvSpec, spec: ConvSpec, tile: Tile, vector_width: int, threads: int) -> None:
        super().__init__(declared, spec, tile, vector_width, threads)
        self.widens = widens_on_stack(spec, vector_width)

    def _unrolled_rows(self, taps: Taps, size: int) -> int:
        return size * self.spec.kernel[1] if taps is Reach.INNER else sum(map(len, taps))

    @property
    def _unrolls_channels(self) -> bool:
        return True

    def _units(self, low, size) -> None:
        if self.widens:
            self._widen()
        super()._units(low, size)

    def _widen(self) -> None:
        """Write the block's weights to a buffer for each vector of channels: together possibly too large for the stack."""
        taps = self.spec.taps
        self.wide = {start: T.alloc_buffer((taps * lanes,), "float32", scope="global") for start, lanes in self.pieces}
        with T.serial(taps) as tap:
            for start, lanes in self.pieces:
                value = self.w.weights(self.w.weights_at(self.panel_at, tap) + start, lanes)
                T.buffer_store(self.wide[start], value, [vector(tap * lanes, lanes)])

    def inputs(self, index, lanes: int) -> tirx.Expr:
        """Neighbouring elements of the input, in the type of the sums."""
        return converted(self.x[vector(index, lanes)], lanes, self.spec.dtype, self.acc.dtype)

    def weights(self, start: int, lanes: int, *taps, then: int = 0) -> tirx.Expr:
        """A vector of channels of the tap that comes `then` after the one whose number is the sum of `taps`."""
        if self.widens:
            return self.wide[start][vector(sum(taps, then) * lanes, lanes)]
        return self.w.weights(self.w.weights_at(self.panel_at, *taps) + then * self.panel.block + start, lanes)

    def _tile(self, column, size: int, taps: Taps) -> None:
        spec = self.spec
        self.total = self.acc
        self.acc.fill(size, self.begin)
        for kernel_row, kernel_column, reached, pixel in self.reach(column, size, taps):
            tap = kernel_row * spec.kernel[1], kernel_column
            self.acc.accumulate(
                reached,
                lambda row, start, lanes, pixel=pixel: self.inputs(
                    pixel + row * spec.stride[1] * spec.in_channels + start, lanes
                ),
                lambda start, lanes, tap=tap: self.weights(start, lanes, *tap),
            )
        self._store(column, size)

    def reach(self, column, size: int, taps: Taps) -> Iterator[tuple]:
        """(kernel row, kernel column, pixels that the tap reaches, where the block's channels of the first lie in the input)."""
        spec = self.spec
        with maybe_serial(*self.kernel_rows) as kernel_row:
            self.acc.begin_steps()
            in_row = self.image * spec.height + self.in_row + kernel_row * spec.dilation[0]
            for kernel_column, reached in self._columns(column, size, taps):
                in_column = column * spec.stride[1] - spec.padding[1] + kernel_column * spec.dilation[1]
                pixel = (in_row * spec.width + in_column) * spec.in_channels + self.out_channel
                yield kernel_row, kernel_column, reached, pixel

    def _columns(self, column, size: int, taps: Taps) -> Iterator[tuple]:
        """(kernel column, pixels reached): unrolled, or in loops."""
        if not self.loops_taps:
            for tap in range(self.spec.kernel[1]):
                yield tap, list(range(size)) if taps is Reach.INNER else taps[tap]
            return
        whole, some = self._spans(column, size, taps)
        for span in some:
            with T.serial(span.count) as tap:
                yield T.bind(span.low + tap), span.reached
        together = _TOGETHER_AT_BORDER
        if taps is Reach.INNER:
            together = whole.count // math.ceil(whole.count / _TOGETHER)
        with maybe_serial(0, whole.count // together) as group:
            for tap in range(together):
                yield T.bind(whole.low + group * together + tap), whole.reached
        rest = whole.count % together
        if not isinstance(rest, int) or rest:
            with maybe_serial(0, rest) as tap:
                yield T.bind(whole.low + whole.count // together * together + tap), whole.reached


def _candidate(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    rows = row_kernel(_BANDS, spec, unit.width, tile)
    code = lambda: kernel(spec, tile, unit.width, unit.threads)  # noqa: E731
    work = float32_flops(with_products(spec)) * _SLOWDOWN
    return Candidate("depthwise", tile, panel_of(spec, tile.channels), 0, work, code, rows=rows)


def _eligible(spec: ConvSpec) -> bool:
    return spec.depthwise and sums_in_registers(spec)


def _candidates(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    if _eligible(spec):
        block = min(_VECTORS * unit.width, spec.out_channels)
        yield _candidate(spec, Tile(min(_most_rows(spec, unit), spec.out_width), block), unit)


def _trials(spec: ConvSpec, unit: VectorUnit) -> Iterator[Candidate]:
    for tile in tiles(min(spec.out_width, _MOST_TRIED_ROWS), spec.out_channels, unit) if _eligible(spec) else ():
        yield _candidate(spec, replace(tile, depth=1), unit)


def _most_rows(spec: ConvSpec, unit: VectorUnit) -> int:
    """Pixels of a tile: fewer where 128-bit registers would not hold the inputs of large kernels with strides."""
    rows = _ROWS
    if unit.by_lane and unit.independent_fmas <= _ROWS + 1:
        while rows > 1 and (rows - 1) * spec.stride[1] + 3 * spec.kernel[1] > _LIVE:
            rows -= 1
    return rows


_BANDS = Bands(ConvSpec, kernel, "depthwise")
FAMILY = Family("depthwise", ConvSpec, _candidates, _trials, dtypes=tuple(ARITHMETIC), bands=_BANDS)
