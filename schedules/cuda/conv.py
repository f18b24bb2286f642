"""Convolution as an implicit matrix product over NHWC images; dense layers are the case of one pixel per row.

    rows      pixels of the result, of all images
    columns   output channels: one block of the panel, so that a step computes blocks [first, first + count)
    products  kernel row, kernel column, input channel

What a tile multiplies is read from the image where it lies; pixels outside of it are zeros in registers.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.layer_function import Operands, layer_function
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec
from .emit import LANES, ceil_div, launched, registers
from .image import Image
from .panels import ThreadPanel
from .product import BlockTile, Product, or_zeros
from .results import Results


def kernel(spec: ConvSpec, tile: BlockTile) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as on CPUs, with blocks of `tile.columns` channels."""
    panel = panel_of(spec, tile.columns)
    assert panel.block <= spec.group_out or spec.groups == 1, "a block of a panel has channels of one group"
    pixels = spec.batch * spec.out_height * spec.out_width

    def emit(given: Operands) -> None:
        with launched((ceil_div(pixels, tile.rows), given.count), tile.threads) as ((part, offset), thread):
            block = T.bind(given.first + offset)
            group = block // panel.blocks_per_group if panel.groups > 1 else 0
            weights = ThreadPanel(given.panel, offset)
            product = Product(tile, thread, spec.taps)
            image = Image(spec, product, given.x, group, part * tile.rows)

            product.compute(image, _Weights(spec, tile.depth, weights, product.columns_loaded))
            results = Results(spec, given, weights, block)
            product.for_each_row(
                lambda row, column, at: results.store(part * tile.rows + row, column, lambda i: product.sums[at + i])
            )

    return layer_function(spec, panel, emit, in_place=spec.tensors > 0)


class _Weights:
    """The right operand: a block of the panel, whose numbers are widened when they are needed."""

    def __init__(self, spec: ConvSpec, depth: int, weights: ThreadPanel, vectors: int) -> None:
        self.weights, self.taps, self.is_whole = weights, spec.taps, spec.taps % depth == 0
        self.ahead = weights.ahead(vectors)

    def load(self, i: int, first, at, column) -> None:
        inside = True if self.is_whole else first + at < self.taps
        with or_zeros(self.ahead, i * self.weights.words, self.weights.words, inside):
            self.weights.load(self.ahead, i, first + at, column)

    def loaded(self, i: int) -> tuple[tirx.Buffer, int]:
        if not self.weights.panel.narrow:
            return self.ahead, i * LANES
        wide = registers(LANES)
        for lane, weight in enumerate(self.weights.weights(self.ahead, i)):
            T.buffer_store(wide, weight, [lane])
        return wide, 0
