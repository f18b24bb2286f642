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
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec
from .architecture import Architecture
from .block_tile import BlockTile
from .bringing import Room, or_zeros
from .emit import LANES, RESIDENT, ceil_div, copy, launched, registers, within
from .image import Image
from .panels import ThreadPanel
from .product import Operand, Product
from .results import Results
from .tensor_product import product_of

_LARGEST = 256  # threads of a block


def kernel(spec: ConvSpec, tile: BlockTile, architecture: Architecture) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as on CPUs, with blocks of `tile.columns` channels."""
    panel = panel_of(spec, tile.columns)
    assert panel.block <= spec.group_out or spec.groups == 1, "a block of a panel has channels of one group"
    pixels = spec.batch * spec.out_height * spec.out_width

    def emit(given: Operands) -> None:
        with launched((ceil_div(pixels, tile.rows), given.count), tile.threads) as ((part, offset), thread):
            block = T.bind(given.first + offset)
            group = block // panel.blocks_per_group if panel.groups > 1 else 0
            weights = ThreadPanel(given.panel, offset)
            product = product_of(tile, thread, spec.taps, architecture)
            image = Image(spec, product, given.x, group, part * tile.rows)

            product.compute(image, _weights(spec, weights, product))
            results = Results(spec, given, weights, block)
            product.for_each_row(
                lambda row, column, at: results.store(
                    part * tile.rows + row, column, lambda i: product.sums[at + i], product.stored
                )
            )

    function = layer_function(spec, panel, emit, in_place=spec.tensors > 0)
    # Without registers for loads a multiprocessor holds two such blocks, by threads with 128 registers each.
    is_light = architecture.fetches and not panel.narrow and spec.kernel != (1, 1) and spec.group_in % tile.depth == 0
    return function.with_attr(RESIDENT, 2 * tile.threads) if is_light and tile.threads == _LARGEST else function


def _weights(spec: ConvSpec, weights: ThreadPanel, product: Product) -> Operand:
    return (_Narrow if weights.panel.narrow else _Float)(spec, weights, product)


class _Float:
    """The right operand: a block of the panel."""

    lanes, is_short = LANES, False

    def __init__(self, spec: ConvSpec, weights: ThreadPanel, product: Product) -> None:
        self.weights, self.taps, self.depth = weights, spec.taps, product.tile.depth
        self.apart = product.products_apart
        self.way = product.way(product.columns_loaded)
        self.keep = self.way.keep
        words, begin = weights.place(*product.first_vector())
        self.source = self.way.source(words, begin // LANES, LANES)

    def load(self, i: int, first, at, column, room: Room) -> None:
        units = self.weights.panel.block // LANES  # of a product
        self.way.bring(i, 0, self.source, first * units, i * self.apart * units, within(first + at, self.taps, self.depth), room)


class _Narrow:
    """The right operand, of numbers that are widened on their way from registers to shared memory."""

    lanes, is_short = LANES, True

    def __init__(self, spec: ConvSpec, weights: ThreadPanel, product: Product) -> None:
        self.weights, self.taps, self.depth = weights, spec.taps, product.tile.depth
        self.ahead = weights.ahead(product.columns_loaded)

    def load(self, i: int, first, at, column, room: Room) -> None:
        words = self.weights.words
        with or_zeros(self.ahead, i * words, words, within(first + at, self.taps, self.depth)):
            self.weights.load(self.ahead, i, first + at, column)

    def keep(self, i: int, room: Room) -> None:
        wide = registers(LANES)
        for lane, weight in enumerate(self.weights.weights(self.ahead, i)):
            T.buffer_store(wide, weight, [lane])
        copy(room.buffer, room.at, wide, 0)
