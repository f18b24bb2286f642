"""Direct convolution: an implicit matrix product over NHWC images, without scratch.

Targets any stride, padding, dilation and number of groups; fully connected layers (a 1×M image) and
pointwise convolutions are the case without neighbours.

1. Weights lie in panels of `tile.channels` output channels (schedules/tiles/panel.py); a step computes blocks
   [first, first + count).
2. Tasks are (part of the output, block), the block innermost, so that the part's input stays in the cache while the
   panels stream past. A part is a band of rows, or a range of tiles where neighbours do not matter; there are
   enough for equal shares of all threads (schedules/tiles/parts.py). In one pass the part is innermost: the block's weights
   stay in the cache while the input streams past.
3. A row of pixels is cut evenly into tiles of at most `tile.rows` pixels. Accumulators start as the bias, live
   in registers over the whole reduction and pass through the epilogue before the only store. The
   epilogue's tensors are fetched into the cache while the reduction runs.
4. A long reduction is added up in parts of a few hundred products, so that rounding errors stay small. Where products are of
   float16, these parts have at most 128 products, and their sums are float16; totals are float32. Products of bfloat16 are
   added up in float32, those of two neighbouring input channels by one instruction, or of four on AArch64; after the last
   channel are zeros.
5. Padding costs neither a copy nor a test in the inner loop: kernel rows outside the image are left out by the
   bounds of the loop, and the few tiles that touch the left or right border are emitted on their own, each with
   the taps that exist. Long kernels have too many of both, and loops over taps (schedules/tiles/taps.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .tiles import epilogue as ep
from .tiles import lane
from .tiles import taps as kernel_taps
from .tiles.asking import ask, share
from .tiles.emit import (
    Accumulators,
    PairAccumulators,
    converted,
    loop,
    maybe_serial,
    prefetch,
    spread,
    vector,
    zero,
)
from .tiles.first_taps import MaskedAccumulators
from .tiles.half import HalfAccumulators, HalfByLane
from .tiles.layer_function import Operands, layer_function
from .tiles.matrix import MatrixAccumulators
from .tiles.panel import Panel, panel_of
from .tiles.parts import choose_parts
from .tiles.spec import ConvSpec
from .tiles.taps import Reach, Span, Taps
from .tiles.tile import Tile, VectorUnit, pieces

# Bytes of input that should stay in the second-level cache while all blocks pass over it: twice as many where the weights, which
# are read once for each such band, come from memory because they are larger than that cache.
_BAND_NBYTES = 256 * 1024
_LARGE_NBYTES = 1024 * 1024
# Input channels up to which the whole reduction over them is unrolled: a loop of three steps would not pay.
UNROLL_CHANNELS = 4
# Products added up in a register before the sum moves to the total. Rounding errors grow with the number of terms
# added one after the other: 25,088 of them lose a digit against ONNX Runtime, which also adds up in parts. The largest error over
# the largest sum of 2,304 products of float16: 2e-3 in parts of 128, 3e-3 in parts of 256, 1e-2 in one.
PARTIAL_TERMS = {"float32": 512, "float16": 128, "bfloat16": 512}
PAIR, MATRIX = 2, 4  # products of bfloat16 that vdpbf16ps adds up, and bfmmla

_NEON = 4  # float32 lanes
# A loop of one or two steps inside others over taps is unrolled by LLVM, which then loads this many vectors early.
_EARLY_LOADS = 5


def kernel(
    spec: ConvSpec, tile: Tile, vector_width: int, threads: int = 1, one_pass: bool = False, asks: bool = False
) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), cut for `threads` threads.

    x is spec.dtype[batch, height, width, in_channels], y and the tensors spec.dtype[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks, the first of which is block `first` of the layer.
    """
    return DirectEmitter(spec, as_row(spec), tile, vector_width, threads, one_pass, asks).prim_func()


def as_row(spec: ConvSpec) -> ConvSpec:
    """A pointwise convolution sees one long row of pixels."""
    if not spec.pointwise:
        return spec
    return replace(spec, batch=1, height=1, width=spec.batch * spec.height * spec.width)


def unit_for(spec: ConvSpec, unit: VectorUnit) -> VectorUnit:
    """The vector unit that tiles of a layer are chosen for."""
    joins = _may_join_columns(spec)
    inputs = spec.group_in * (spec.kernel[1] if joins else 1)
    in_loops = joins or (spec.dtype == "float16" and spec.taps > spec.group_in)
    few = unit.by_lane and in_loops and inputs < 3 * unit.width
    return replace(unit, registers=unit.registers - _EARLY_LOADS) if few else unit


def _may_join_columns(spec: ConvSpec) -> bool:
    return spec.group_in <= UNROLL_CHANNELS and spec.groups == 1 and spec.dilation[1] == 1


def _first_apart(low, high, apart: bool) -> list[tuple[tuple, bool]]:
    """(bounds, whether 0 is all within them): of [low, high), with 0 apart from the others if wanted."""
    if not apart:
        return [((low, high), False)]
    if isinstance(low, int) and isinstance(high, int):
        bounds = [((low, min(high, 1)), True), ((max(low, 1), high), False)]
        return [(some, is_first) for some, is_first in bounds if some[0] < some[1]]
    return [((low, tirx.max(low, tirx.min(high, 1))), True), ((tirx.max(low, 1), high), False)]


def together(spec: ConvSpec, vector_width: int) -> int:
    """Input channels of which an instruction adds up the products: of those for bfloat16, AArch64's has vectors of 128 bits."""
    return (MATRIX if vector_width == _NEON else PAIR) if spec.dtype == "bfloat16" else 1


def sums_in_registers(spec: ConvSpec) -> bool:
    """Whether all products of an output may be added up one after the other: in float32, or few of float16."""
    return spec.dtype != "float16" or spec.taps <= PARTIAL_TERMS[spec.dtype]


def _units(spec: ConvSpec, tile: Tile) -> int:
    """Rows of the output, or tiles of the only one."""
    return math.ceil(spec.out_width / tile.rows) if spec.pointwise else spec.out_height


def parts_of(spec: ConvSpec, tile: Tile, panel: Panel, threads: int, one_pass: bool = False) -> int:
    """Parts of the units of an image of which each is computed for all blocks, or one after the other for a block."""
    if one_pass:
        return choose_parts(_units(spec, tile), panel.blocks * spec.batch, 1, threads)
    wide = 2 if panel.blocks * panel.block_nbytes > _LARGE_NBYTES else 1
    bands = math.ceil(spec.read_nbytes / (wide * _BAND_NBYTES))
    return choose_parts(_units(spec, tile), panel.blocks * spec.batch, bands, threads, keeps_rows(spec, panel))


def passing(spec: ConvSpec, tile: Tile, parts: int, one_pass: bool) -> int:
    """Register tiles that pass over a block, one after the other."""
    units = _units(spec, tile)
    return (units if one_pass else math.ceil(units / parts)) * (1 if spec.pointwise else math.ceil(spec.out_width / tile.rows))


def keeps_rows(spec: ConvSpec, panel: Panel) -> bool:
    """Whether threads share rows, and read all weights, rather than channels, and read all of the input."""
    tensors = spec.height * spec.width * spec.in_channels + spec.out_height * spec.out_width * spec.out_channels
    return 2 * math.prod(panel.shape) <= tensors


class DirectEmitter:
    """Loops over tasks, rows and tiles; `_tile` emits a tile."""

    multiplies_pairs = True  # of bfloat16, two input channels at a time
    scratch: Sequence[tuple[int, ...]] = ()  # shapes, of float32

    def __init__(
        self, declared: ConvSpec, spec: ConvSpec, tile: Tile, vector_width: int, threads: int, one_pass: bool = False,
        asks: bool = False,
    ) -> None:  # fmt: skip
        assert not spec.pointwise or spec.batch == spec.height == 1, "a pointwise convolution is seen as one row"
        self.declared, self.spec, self.tile = declared, spec, tile
        self.together = together(spec, vector_width) if self.multiplies_pairs else 1
        self.panel = panel_of(spec, tile.channels, self.together)
        self.pieces = pieces(tile.channels, vector_width)
        self.stores = pieces(min(tile.channels, self.panel.group_channels), vector_width)
        self.units = _units(spec, tile)
        self.parts, self.one_pass = parts_of(spec, tile, self.panel, threads, one_pass), one_pass
        # Their reductions are so short that writing takes longer than computing if the lines are not there yet.
        self.fetches_output = spec.in_channels <= UNROLL_CHANNELS
        self.most_terms = PARTIAL_TERMS[spec.dtype]
        # Widening fills the window in which a core looks for loads to start early.
        self.fetches_weights = self.panel.narrow and spec.pointwise and spec.out_width == 1
        # Few input channels make no vector; those of neighbouring columns do, and their weights are neighbours too.
        self.joins_columns = tile.depth > 1 and _may_join_columns(spec)
        # Whether products are left out of channels that lack a tap.
        self.by_taps = spec.first_taps is not None and spec.first_taps.is_uniform(self.panel.block)
        self.joins_columns = self.joins_columns and not self.by_taps
        self.runs = [] if spec.pointwise else kernel_taps.unrolled(spec, tile.rows)
        self.loops_taps = self._unrolled() > kernel_taps.MOST_UNROLLED
        if self.loops_taps:
            self.runs = kernel_taps.looped(spec, tile.rows)
        self.row_tiles = 1 if spec.pointwise else sum(run.count for run in self.runs)
        self.asked = share(self.panel.block, passing(spec, tile, self.parts, one_pass)) if asks else 0
        self.first_unit: tirx.Expr | int = 0  # of those that pass over a block
        self.number: tirx.Expr | int = 0  # of a tile among those

    def _unrolled(self) -> int:
        """Statements of all reductions, where taps are unrolled."""
        rows = sum(self._unrolled_rows(run.taps, run.size) for run in self.runs)
        steps = self.spec.group_in if self._unrolls_channels else 1 if self.tile.depth == 1 else 1 + self.tile.depth
        if self._adds_columns:  # to the total
            steps += 2
        return rows * steps * len(self.pieces)

    def _unrolled_rows(self, taps: Taps, size: int) -> int:
        """Rows of a tile, each as often as its taps are unrolled."""
        if taps is Reach.INNER:
            return size * (self.spec.kernel[1] if self._unrolls_channels or self._unrolls_columns else 1)
        reached = [span.reached for span in kernel_taps.joined(taps)] if self.joins_columns else taps
        return sum(map(len, reached))

    @property
    def _adds_columns(self) -> bool:
        """Whether a tap has so many channels, or a row of taps so many products of float16, that a tap's sum is made in parts."""
        if self.spec.dtype == "float16":
            return self.spec.group_in * self.spec.kernel[1] > self.most_terms
        return self.spec.group_in >= 2 * self.most_terms

    @property
    def _unrolls_channels(self) -> bool:
        return self.spec.group_in <= UNROLL_CHANNELS and not self.joins_columns

    @property
    def _unrolls_columns(self) -> bool:
        """Whether the first column of a kernel row has code of its own, because some channels lack it."""
        return self.by_taps and self.spec.first_taps.columns < self.spec.first_taps.period

    def prim_func(self) -> tirx.PrimFunc:
        # Accumulators are in registers either way: LLVM's promise that buffers are distinct gains nothing here.
        return layer_function(self.declared, self.panel, self._body, self.scratch, in_place=self.spec.tensors > 0)

    def _body(self, given: Operands) -> None:
        self.x, self.w, self.y, self.tensors = given.x, given.panel, given.y, given.tensors
        self._tasks(given.first, given.count)

    def _tasks(self, first, count) -> None:
        with loop(count * (self.spec.batch * self.parts), self.spec.flops) as task:
            self._task(task, first, count)

    def _task(self, task, first, count) -> None:
        spec, panel = self.spec, self.panel
        self.acc, self.total = self._registers()
        if self.one_pass:
            parts = spec.batch * self.parts
            offset, part = T.bind(task // parts), T.bind(task % parts)
        else:
            offset = T.bind(task % count)
            part = T.bind(task // count)
        block = T.bind(first + offset)
        start = tirx.min(block % panel.blocks_per_group * panel.block, max(panel.group_channels - panel.block, 0))
        group = block // panel.blocks_per_group
        # Blocks that are wider than a group are whole groups.
        self.place_in_group = start if panel.block < spec.group_out else 0
        self.in_channel = T.bind(group * spec.group_in) if panel.groups > 1 else 0
        self.out_channel = T.bind(group * panel.group_channels + start) if panel.blocks > 1 else 0
        self.panel_at = T.bind(self.w.block_at(offset))
        if self.asked:
            self.next_at = T.bind(self.w.block_at(tirx.min(offset + 1, count - 1)))
        self.image = T.bind(part // self.parts) if spec.batch > 1 else 0
        self._units(*self._part_of_units(part % self.parts if spec.batch > 1 else part))

    def _registers(self) -> tuple[Accumulators, Accumulators]:
        """Registers for sums, and for the total of long reductions."""
        kind = MaskedAccumulators if self.spec.first_taps else Accumulators
        if self.together == MATRIX:
            kind = of_products = MatrixAccumulators
        else:
            half = HalfByLane if self.tile.depth > 1 else HalfAccumulators
            of_products = half if self.spec.dtype == "float16" else PairAccumulators if self.together > 1 else kind
        acc = of_products(self.tile.rows, self.pieces)
        return acc, kind(self.tile.rows, self.pieces) if self.spec.taps > self.most_terms else acc

    def begin(self, start: int, lanes: int) -> tirx.Expr:
        """The start of a total."""
        bias = self.w.begin(self.panel_at, start, lanes)
        return converted(bias, lanes, "float32", "float16") if self.total.dtype == "float16" else bias

    def _finished(self, start: int, lanes: int, index, total: tirx.Expr) -> tirx.Expr:
        """What is stored at `index`: a total that began with `begin`, through the epilogue."""
        spec, total_type = self.spec, "float16" if self.total.dtype == "float16" else "float32"
        computed = total_type if ep.is_for_half(spec.epilogue) else "float32"
        value = ep.evaluate(
            spec.epilogue,
            converted(self.w.finish(self.panel_at, start, lanes, total), lanes, total_type, computed),
            tensor=lambda i: converted(self.tensors[i][index], lanes, spec.dtype, computed),
            channel=lambda i: converted(self.w.channel(self.panel_at, i, start, lanes), lanes, "float32", computed),
        )
        return converted(value, lanes, computed, spec.dtype)

    def _units(self, low, size) -> None:
        """Units [low, low + size) of the output: rows, or tiles of the only one."""
        self.first_unit = 0 if self.one_pass else low
        if self.spec.pointwise:
            self._pointwise(low, size)
        else:
            with T.serial(size) as row:
                self._row(low + row)

    def _part_of_units(self, part) -> tuple:
        """First unit of a part and the number of its units; the first `larger` parts have one more."""
        base, larger = divmod(self.units, self.parts)
        if self.parts == 1:
            return 0, self.units
        if not larger:
            return T.bind(part * base), base
        return T.bind(part * base + tirx.min(part, larger)), T.bind(tirx.if_then_else(part < larger, base + 1, base))

    def _pointwise(self, low, count) -> None:
        """Tiles [low, low + count) of the only row; the first `larger` of the row have one pixel more."""
        self.out_row, self.in_row, self.kernel_rows = 0, 0, (0, 1)
        size, larger = divmod(self.spec.out_width, self.units)
        if isinstance(count, int) and count == self.units:
            larger_count, smaller_count = larger, self.units - larger
        else:
            larger_count = T.bind(tirx.max(tirx.min(larger - low, count), 0)) if larger else 0
            smaller_count = count - larger_count
        if larger:
            with T.serial(larger_count) as i:
                self.number = low + i - self.first_unit
                self._tile((low + i) * (size + 1), size + 1, Reach.INNER)
        with T.serial(smaller_count) as i:
            self.number = low + larger_count + i - self.first_unit
            self._tile((low + larger_count + i) * size + larger, size, Reach.INNER)

    def _row(self, out_row) -> None:
        spec = self.spec
        (kernel_rows, _), (stride, _), (dilation, _) = spec.kernel, spec.stride, spec.dilation
        start = T.bind(out_row * stride - spec.padding[0]) if spec.padding[0] or stride > 1 else out_row
        self.out_row, self.in_row = out_row, start
        low, high = 0, kernel_rows
        if spec.padding[0]:
            low = T.bind((tirx.max(0 - start, 0) + (dilation - 1)) // dilation)
        if (spec.out_height - 1) * stride - spec.padding[0] + (kernel_rows - 1) * dilation >= spec.height:
            high = T.bind(tirx.min(kernel_rows, (spec.height - start + (dilation - 1)) // dilation))
        self.kernel_rows = (low, high)
        number = (out_row - self.first_unit) * self.row_tiles
        for run in self.runs:
            self.number = number
            if run.count == 1:
                self._tile(run.start, run.size, run.taps)
            else:
                with T.serial(run.count) as i:
                    self.number = number + i
                    self._tile(run.start + i * run.size, run.size, run.taps)
            number += run.count

    def _tile(self, column, size: int, taps: Taps) -> None:
        """One register tile at output pixels [column, column + size)."""
        self._prefetch(column, size)
        self.add_up(size, lambda: self._products(column, size, taps))
        self._store(column, size)

    def add_up(self, size: int, products: Callable[[], None]) -> None:
        """Sums of what `products` emits, of the taps that each channel has.

        Where a block has channels with different taps, all are taken first. Only if that makes some sum no number, as a missing
        tap's zero times infinity does, the tile is computed again, by masks.
        """
        self.total.fill(size, self.begin)
        taps = self.spec.first_taps
        for _ in self._kernel_row_ranges():
            products()
        if taps is None or self.by_taps:
            return
        with T.If(self.total.has_nan(size)), T.Then():
            joins_columns, self.joins_columns, self.by_taps = self.joins_columns, False, True
            self.total.fill(size, self.begin)
            for _ in self._kernel_row_ranges():
                products()
            self.joins_columns, self.by_taps = joins_columns, False

    def _kernel_row_ranges(self) -> Iterator[None]:
        """Once for all kernel rows; where channels that lack the first one are told apart, for that row and for the others."""
        rows = self.kernel_rows
        apart = self.by_taps and self.spec.first_taps.rows < self.spec.group_out
        for self.kernel_rows, self.in_first_row in _first_apart(*rows, apart):
            yield
        self.kernel_rows = rows

    def _products(self, column, size: int, taps: Taps) -> None:
        """Add the products of the kernel rows."""
        spec, every = self.spec, list(range(size))
        if self.loops_taps:
            self._looped_products(column, size, taps)
            return
        with self._kernel_rows_in_parts(size) as kernel_row:
            if self.joins_columns:
                for span in kernel_taps.joined([every] * spec.kernel[1] if taps is Reach.INNER else taps):
                    self._span(kernel_row, span, column, size)
            elif taps is Reach.INNER and spec.group_in > UNROLL_CHANNELS and not self._unrolls_columns:
                with maybe_serial(0, spec.kernel[1]) as kernel_column:
                    self._channels(kernel_row, kernel_column, column, every, size)
            else:
                for kernel_column in range(spec.kernel[1]):
                    reached = every if taps is Reach.INNER else taps[kernel_column]
                    if reached:
                        self._channels(kernel_row, kernel_column, column, reached, size)

    def _looped_products(self, column, size: int, taps: Taps) -> None:
        """As `_products`, with loops over the taps that reach the same pixels; long ones are added up in parts as well."""
        whole, some = self._spans(column, size, taps)
        with self._kernel_row() as kernel_row:
            if some:
                with self._part(size, not self._adds_columns):
                    for span in some:
                        self._span(kernel_row, span, column, size)
            if self._adds_columns or self.total is self.acc:
                self._span(kernel_row, whole, column, size)
                return
            each = max(1, self.most_terms // self.spec.group_in)
            with T.serial((whole.count + (each - 1)) // each) as part, self._part(size):
                low = T.bind(whole.low + part * each)
                span = Span(low, T.bind(tirx.min(low + each, whole.high)), whole.reached)
                self._span(kernel_row, span, column, size)

    def _spans(self, column, size: int, taps: Taps) -> tuple[Span, list[Span]]:
        """The taps that reach all pixels of a looped tile, and the taps that reach some."""
        if taps is Reach.INNER:
            return Span(0, self.spec.kernel[1], list(range(size))), []
        return kernel_taps.spans(self.spec, column, size)

    def _span(self, kernel_row, span: Span, column, size: int) -> None:
        """Taps that reach the same pixels, in a loop."""
        if self.joins_columns:
            self._reduce(kernel_row, span.low, column, span.reached, 0, span.count * self.spec.group_in)
            return
        if not self._unrolls_columns:
            with T.serial(span.count) as tap:
                self._channels(kernel_row, T.bind(span.low + tap), column, span.reached, size)
            return
        for bounds, is_first in _first_apart(span.low, span.high, True):
            with maybe_serial(*bounds) as tap:
                self._channels(kernel_row, 0 if is_first else tap, column, span.reached, size)

    def _kernel_row(self) -> AbstractContextManager:
        """A loop over the kernel rows that meet the image."""
        return maybe_serial(*self.kernel_rows)

    @contextmanager
    def _part(self, size: int, wanted: bool = True) -> Iterator[None]:
        """Sums inside start from zero and are added to the total, if the reduction is a long one."""
        if not wanted or self.total is self.acc:
            yield
            return
        self.acc.fill(size, lambda start, lanes: zero(lanes, self.acc.dtype))
        yield
        self.total.add(size, self.acc)

    @contextmanager
    def _kernel_rows_in_parts(self, size: int) -> Iterator[tirx.Expr | int]:
        """A loop over the kernel rows that meet the image: each is a part of the sums, or several of few products of float16."""
        spec = self.spec
        together = 1 if spec.dtype != "float16" else math.ceil(spec.kernel[0] / math.ceil(spec.taps / self.most_terms))
        if together == 1 or self._adds_columns or self.total is self.acc:
            with self._kernel_row() as kernel_row, self._part(size, not self._adds_columns):
                yield kernel_row
            return
        low, high = self.kernel_rows
        with T.serial((high - low + (together - 1)) // together) as part, self._part(size):
            first = T.bind(low + part * together)
            with T.serial(first, tirx.min(first + together, high)) as kernel_row:
                yield kernel_row

    def _channels(self, kernel_row, kernel_column, column, reached: list[int], size: int) -> None:
        """Reduce over the input channels of one tap, in parts if there are many."""
        channels = self.spec.group_in
        parts = math.ceil(channels / self.most_terms) if self.total is not self.acc else 1
        unit = max(self.tile.depth, self.together)
        each = math.ceil(channels / (parts * unit)) * unit
        if not self._adds_columns:
            self._reduce(kernel_row, kernel_column, column, reached, 0, channels)
            return
        with maybe_serial(0, parts) as part, self._part(size):
            start = part * each
            count = tirx.min(each, channels - start) if channels % each else each
            self._reduce(kernel_row, kernel_column, column, reached, start, count)

    def _reduce(self, kernel_row, kernel_column, column, reached: list[int], start_channel, count) -> None:
        spec, block = self.spec, self.panel.block
        in_row = self.image * spec.height + self.in_row + kernel_row * spec.dilation[0]
        in_column = column * spec.stride[1] - spec.padding[1] + kernel_column * spec.dilation[1]
        pixel = (in_row * spec.width + in_column) * spec.in_channels + self.in_channel + start_channel
        tap = self._weights_at(kernel_row, kernel_column, start_channel)

        def left(row: int, step, lanes: int) -> tirx.Expr:
            return self.x[vector(pixel + (row * spec.stride[1] * spec.in_channels) + step, lanes)]

        def right(step, start: int, lanes: int) -> tirx.Expr:
            return self._weights(tap + step * block + start, lanes)

        with self.of_present(kernel_column):
            if self.together > 1:
                self._add_words(pixel, tap, reached, count)
            elif self._unrolls_channels:
                for step in range(spec.group_in):
                    self.acc.accumulate(
                        reached,
                        lambda row, start, lanes, step=step: spread(left(row, step, 1), lanes),
                        lambda start, lanes, step=step: right(step, start, lanes),
                    )
            else:
                depth = self.tile.depth  # parts of a long reduction are multiples of this
                fetch = (lambda step: self.w.fetch_ahead(tap + step * block)) if self.fetches_weights else None
                if self.asked:
                    done = self.number * spec.taps + (tap - self.panel_at) // block  # steps, of all tiles
                    fetch = ask(self.w.buffer, self.next_at, done, self.asked)
                lane.reduce(self.acc, reached, count, left, right, depth, rest=spec.group_in % depth, fetch=fetch)

    def _add_words(self, pixel, tap, reached: list[int], count) -> None:
        """Add the products of `count` channels, a word of them at a time; zeros fill the last one."""
        spec, block, each = self.spec, self.panel.block, self.together

        def add(channel, given: int) -> None:
            def left(row: int, start: int, lanes: int) -> tirx.Expr:
                return spread(self._word(pixel + (row * spec.stride[1] * spec.in_channels) + channel, given), lanes)

            def right(start: int, lanes: int) -> tirx.Expr:
                some = self.w.buffer[vector(tap + channel * block + each * start, each * lanes)]
                words = each * lanes // PAIR
                return tirx.reinterpret("int32" if words == 1 else f"int32x{words}", some)

            if self.fetches_weights:
                self.w.fetch_ahead(tap + channel * block)
            self.acc.accumulate(reached, left, right)

        if self._unrolls_channels:
            for channel in range(0, spec.group_in, each):
                add(channel, min(each, spec.group_in - channel))
            return
        with T.serial(count // each) as step:
            add(step * each, each)
        if rest := spec.group_in % each:
            with maybe_serial(count // each, (count + (each - 1)) // each) as step:
                add(step * each, rest)

    def _word(self, at, given: int) -> tirx.Expr:
        """So many channels from an element on, as bits of an integer: those of a word, or zeros after the last."""
        kind, word, done = f"int{16 * self.together}", None, 0
        while done < given:
            size = 1 << ((given - done).bit_length() - 1)
            some = self.x[vector(at + done, size)]
            if size == self.together:
                return tirx.reinterpret(kind, some)
            bits = tirx.Cast(kind, tirx.reinterpret(f"uint{16 * size}", some))
            word = bits if word is None else word | (bits << tirx.const(16 * done, kind))
            done += size
        return word

    @contextmanager
    def of_present(self, kernel_column) -> Iterator[None]:
        """Products inside are those of channels that have a tap."""
        if not self.by_taps:
            yield
            return
        taps, place = self.spec.first_taps, self.place_in_group
        first = self.in_first_row, isinstance(kernel_column, int) and kernel_column == 0
        if any(first) and taps.is_uniform(self.panel.block):
            with T.If(taps.condition(*first, place)), T.Then():
                yield
            return
        self.acc.present = {start: taps.present(*first, place + start, lanes) for start, lanes in self.pieces}
        yield
        self.acc.present = {}

    def _weights_at(self, kernel_row, kernel_column, channel):
        each = math.ceil(self.spec.group_in / self.together) * self.together
        position = (kernel_row * self.spec.kernel[1] + kernel_column) * each
        return self.w.weights_at(self.panel_at, position, channel)

    def _weights(self, index, lanes: int) -> tirx.Expr:
        return self.w.weights(index, lanes)

    def _place(self, column):
        """Where the first output channel of a pixel lies in y, and in the tensors."""
        out_row = self.image * self.spec.out_height + self.out_row
        pixel = out_row * self.spec.out_width + column
        return pixel * self.spec.y_stride + (self.spec.y_start + self.out_channel)

    def _prefetch(self, column, size: int) -> None:
        """Ask for the lines that the tile's epilogue reads, and may be writes: the reduction hides the latency."""
        for row in range(size if self.tensors or self.fetches_output else 0):
            place = T.bind(self._place(column + row))
            for tensor in self.tensors:
                prefetch(tensor, place, self.panel.block)
            if self.fetches_output:
                prefetch(self.y, place, self.panel.block, write=True)

    def _sum(self, column, row: int, start: int, lanes: int) -> tirx.Expr:
        """The sum of all products of pixel `column + row`."""
        return self.total.get(row, start, lanes)

    def _store(self, column, size: int) -> None:
        for row in range(size):
            place = self._place(column + row)
            for start, lanes in self.stores:
                index = vector(place + start, lanes)
                value = self._finished(start, lanes, index, self._sum(column, row, start, lanes))
                T.buffer_store(self.y, value, [index])
