"""Convolution as an implicit matrix product over NHWC images; dense layers are the case of one pixel per row.

    rows      pixels of the result, of all images
    columns   output channels: one block of the panel, so that a step computes blocks [first, first + count)
    products  kernel row, kernel column, input channel

A tile reads its pixels from the image in place; pixels outside of the image are zeros in registers.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.layer_function import Operands, layer_function
from ..tiles.panel import Panel, panel_of
from ..tiles.spec import ConvSpec
from .architecture import Architecture
from .block_tile import BlockTile
from .copy_stage import SharedVector, or_zeros
from .emit import LANES, RESIDENT, ceil_div, copy, launched, only_if, registers, within
from .image import Image
from .main_loop import MainLoop, Operand
from .panels import ThreadPanel
from .results import Results
from .tensor_core_loop import main_loop

_LARGEST = 256  # threads of a block
_ADDERS = 128  # threads of a block that adds up parts of sums


def kernel(spec: ConvSpec, tile: BlockTile, architecture: Architecture) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as on CPUs, with blocks of `tile.columns` channels."""
    panel = panel_of(spec, tile.columns)
    assert panel.block <= spec.group_out or spec.groups == 1, "a block of a panel has channels of one group"
    pixels = spec.batch * spec.out_height * spec.out_width

    def emit(given: Operands) -> None:
        with launched((ceil_div(pixels, tile.rows), tile.parts, given.count), tile.threads) as ((rows, part, offset), thread):
            block = T.bind(given.first + offset)
            group = block // panel.blocks_per_group if panel.groups > 1 else 0
            weights = ThreadPanel(given.panel, offset)
            loop = main_loop(tile, thread, spec.taps, architecture)
            image = Image(spec, loop, given.x, group, rows * tile.rows)

            loop.compute(image, _weights(spec, weights, loop), part)
            if tile.parts == 1:
                results = Results(spec, given, weights, block)
                loop.for_each_row(
                    lambda row, column, at: results.store(
                        rows * tile.rows + row, column, lambda i: loop.sums[at + i], loop.stored
                    )
                )
                return

            def keep(row, column, at) -> None:
                pixel = rows * tile.rows + row
                with only_if(within(pixel, pixels, tile.rows)):
                    place = (part * panel.blocks + offset) * (pixels * tile.columns) + pixel * tile.columns + column
                    copy(given.scratch[0], place, loop.sums, at, loop.stored)

            loop.for_each_row(keep)
        _add_parts(given, spec, tile, panel)

    scratch = scratch_of(spec, tile)
    function = layer_function(spec, panel, emit, scratch, in_place=spec.tensors > 0)
    # Without registers for loads a multiprocessor holds two such blocks, by threads with 128 registers each; the tensors of an
    # epilogue would be two registers too many.
    is_light = architecture.fetches and not panel.narrow and spec.kernel != (1, 1) and spec.group_in % tile.depth == 0
    is_light = is_light and not spec.tensors
    return function.with_attr(RESIDENT, 2 * tile.threads) if is_light and tile.threads == _LARGEST else function


def scratch_of(spec: ConvSpec, tile: BlockTile) -> tuple[tuple[int, ...], ...]:
    """The shapes of the kernel's scratch: sums of the parts of the products."""
    pixels = spec.batch * spec.out_height * spec.out_width
    return ((tile.parts, panel_of(spec, tile.columns).blocks, pixels, tile.columns),) if tile.parts > 1 else ()


def _add_parts(given: Operands, spec: ConvSpec, tile: BlockTile, panel: Panel) -> None:
    """A launch in which a thread adds up the parts of LANES neighbouring sums of a pixel, in their order."""
    pixels, across = spec.batch * spec.out_height * spec.out_width, tile.columns // LANES
    with launched((ceil_div(pixels * across, _ADDERS), given.count), _ADDERS) as ((group, offset), thread):
        vector = T.bind(group * _ADDERS + thread)
        total, part = registers(LANES), registers(LANES)
        with only_if(within(vector, pixels * across, _ADDERS)):
            for number in range(tile.parts):
                place = ((number * panel.blocks + offset) * (pixels * across) + vector) * LANES
                copy(part if number else total, 0, given.scratch[0], place)
                for i in range(LANES if number else 0):
                    T.buffer_store(total, total[i] + part[i], [i])
            results = Results(spec, given, ThreadPanel(given.panel, offset), T.bind(given.first + offset))
            results.store(vector // across, vector % across * LANES, lambda i: total[i])


def _weights(spec: ConvSpec, weights: ThreadPanel, loop: MainLoop) -> Operand:
    return (_Narrow if weights.panel.narrow else _Float)(spec, weights, loop)


class _Float:
    """The right operand: a block of the panel."""

    lanes, is_short = LANES, False

    def __init__(self, spec: ConvSpec, weights: ThreadPanel, loop: MainLoop) -> None:
        self.weights, self.taps, self.depth = weights, spec.taps, loop.tile.depth
        self.apart = loop.products_apart
        self.stage = loop.stage(loop.columns_loaded)
        self.store_shared = self.stage.store_shared
        words, begin = weights.place(*loop.first_vector())
        self.source = self.stage.source(words, begin // LANES, LANES)

    def load(self, i: int, first, at, column, to: SharedVector) -> None:
        units = self.weights.panel.block // LANES  # of a product
        self.stage.issue(i, 0, self.source, first * units, i * self.apart * units, within(first + at, self.taps, self.depth), to)


class _Narrow:
    """The right operand, of numbers that are widened on their way from registers to shared memory."""

    lanes, is_short = LANES, True

    def __init__(self, spec: ConvSpec, weights: ThreadPanel, loop: MainLoop) -> None:
        self.weights, self.taps, self.depth = weights, spec.taps, loop.tile.depth
        self.ahead = weights.ahead(loop.columns_loaded)

    def load(self, i: int, first, at, column, to: SharedVector) -> None:
        words = self.weights.words
        with or_zeros(self.ahead, i * words, words, within(first + at, self.taps, self.depth)):
            self.weights.load(self.ahead, i, first + at, column)

    def store_shared(self, i: int, to: SharedVector) -> None:
        wide = registers(LANES)
        for lane, weight in enumerate(self.weights.weights(self.ahead, i)):
            T.buffer_store(wide, weight, [lane])
        copy(to.buffer, to.at, wide, 0)
