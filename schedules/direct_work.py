"""The predicted time of a direct kernel: operations on pixels that exist, and waiting for weights and results."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from .tiles.memory import Memory
from .tiles.panel import nbytes_of
from .tiles.spec import ConvSpec
from .tiles.tile import Tile, VectorUnit

# In operations at a core's peak: per operation, and per byte of the result and of the tensors that the epilogue reads. Then the
# part of the time of reading weights that passes while nothing is computed: nothing asks for them ahead. Fitted to the layers of
# ResNet-50 on one Zen 4 core (118 GFLOP/s): within 4 % of all that were measured. Where tiles ask for the next block's weights,
# some are late: those of the first block, and those that only tiles at a border would ask for, which leave taps out.
_DIRECT_FLOPS = 1.025
_RESULT_FLOPS = 0.95
_LATE = 5 / 9
_LATE_ASKED = 1 / 8


def float32_flops(spec: ConvSpec) -> float:
    """Operations in float32 that take as long as the layer's: a register has more of narrower numbers."""
    return spec.flops * spec.itemsize / 4


def with_products(spec: ConvSpec) -> ConvSpec:
    """The layer whose products take as long as those of single channels of bfloat16: float32 ones."""
    return replace(spec, dtype="float32") if spec.dtype == "bfloat16" else spec


@functools.cache
def direct_work(spec: ConvSpec, tile: Tile, unit: VectorUnit, parts: int = 1, blocks: int = 1, asks: bool = False) -> float:
    """Operations at a core's peak that take as long.

    Weights are read once for each of the `parts` of the output, and the input once for each of the `blocks` of weights. Tiles
    may ask for the next block's weights.
    """
    inside = _taps_inside(spec, 0) * _taps_inside(spec, 1) / (spec.out_height * spec.out_width * math.prod(spec.kernel))
    products = float32_flops(spec) * (unit.pair_cost if spec.dtype == "bfloat16" else 1)
    computed = _DIRECT_FLOPS * products * inside
    rows = 1 if spec.pointwise else spec.batch * spec.out_height
    tiles = rows * math.ceil(spec.batch * spec.out_height * spec.out_width / rows / tile.rows)
    # The input lies in order: a core asks for it ahead.
    again = (blocks - 1) * max(0.0, unit.memory.again(spec.batch * spec.read_nbytes) - computed / blocks)
    return computed + result_work(spec) + weight_work(spec, unit.memory, parts, computed, tiles, asks) + again


def result_work(spec: ConvSpec) -> float:
    """Of this, waiting for results and for the tensors that the epilogue reads."""
    return _RESULT_FLOPS * spec.itemsize * math.prod(spec.out_shape) * (1 + spec.tensors)


def weight_work(spec: ConvSpec, memory: Memory, parts: int, computed: float, tiles: int, asks: bool = False) -> float:
    """Of this, waiting for weights, in `parts` of so many `tiles` together that do `computed` operations."""
    nbytes = round(nbytes_of(spec.weights) * spec.out_channels * spec.taps)
    if asks:
        return memory.waiting(nbytes, parts, computed, 1, _LATE_ASKED)
    return memory.waiting(nbytes, parts, computed, max(1, tiles // parts), _LATE)


def _taps_inside(spec: ConvSpec, axis: int) -> int:
    """Pairs of an output row (or column) and a kernel row (or column) that meet the image."""
    inputs, outputs = ((spec.height, spec.out_height), (spec.width, spec.out_width))[axis]
    stride, pairs = spec.stride[axis], 0
    for tap in range(spec.kernel[axis]):
        before = spec.padding[axis] - tap * spec.dilation[axis]  # how far output 0 lies outside
        first, end = max(0, -(-before // stride)), min(outputs, (inputs - 1 + before) // stride + 1)
        pairs += max(0, end - first)
    return pairs
