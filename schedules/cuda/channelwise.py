"""Convolutions in groups of few channels, depthwise ones among them: a thread computes LANES channels of a pixel.

There is too little to multiply for tiles: each input is used once per tap of the kernel, and caches serve these reads.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import maybe_serial
from ..tiles.layer_function import Operands, layer_function
from ..tiles.panel import panel_of
from ..tiles.spec import ConvSpec
from .emit import LANES, both, ceil_div, copy, fill, launched, only_if, registers
from .panels import ThreadPanel
from .results import Results

COLUMNS = 32  # channels of a block of the panel
_THREADS = 128


def eligible(spec: ConvSpec) -> bool:
    """Whether a block of the panel holds channels of several groups."""
    return spec.groups > 1 and spec.group_out < COLUMNS


def kernel(spec: ConvSpec) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y), as on CPUs, with blocks of COLUMNS channels."""
    panel = panel_of(spec, COLUMNS)
    pixels = spec.batch * spec.out_height * spec.out_width
    across = COLUMNS // LANES

    def emit(given: Operands) -> None:
        blocks = ceil_div(pixels * across, _THREADS), given.count
        with launched(blocks, _THREADS) as ((part, offset), thread):
            weights = ThreadPanel(given.panel, offset)
            results = Results(spec, given, weights, given.first + offset)
            index = T.bind(part * _THREADS + thread)
            lane, pixel = T.bind(index % across * LANES), T.bind(index // across)
            with only_if(pixel < pixels):
                sums = registers(LANES)
                fill(sums, LANES)
                channel = T.bind(results.channel + lane)
                image = pixel // (spec.out_height * spec.out_width)
                rest = pixel % (spec.out_height * spec.out_width)
                top = T.bind(rest // spec.out_width * spec.stride[0] - spec.padding[0])
                left = T.bind(rest % spec.out_width * spec.stride[1] - spec.padding[1])
                with T.serial(spec.kernel[0]) as down, T.unroll(spec.kernel[1]) as right:
                    y, x = top + down * spec.dilation[0], left + right * spec.dilation[1]
                    with only_if(both(y >= 0, y < spec.height, x >= 0, x < spec.width)):
                        place = T.bind(((image * spec.height + y) * spec.width + x) * spec.in_channels)
                        _add(spec, given.x, weights, sums, place, down * spec.kernel[1] + right, channel, lane)
                results.store(pixel, lane, lambda i: sums[i])

    return layer_function(spec, panel, emit, in_place=spec.tensors > 0)


def _add(spec: ConvSpec, x: tirx.Buffer, weights: ThreadPanel, sums: tirx.Buffer, place, tap, channel, lane) -> None:
    """Add the products of a tap for LANES channels; `place` is where the tap's pixel begins."""
    with maybe_serial(0, spec.group_in) as within:
        loaded, inputs = weights.ahead(1), registers(LANES)
        weights.load(loaded, 0, tap * spec.group_in + within, lane)
        if spec.depthwise and spec.in_channels % LANES == 0:
            with only_if(True if spec.out_channels % COLUMNS == 0 else channel < spec.out_channels):
                copy(inputs, 0, x, place + channel)
        elif spec.group_out % LANES == 0:  # all of one group
            value = T.bind(x[place + tirx.min(channel, spec.out_channels - 1) // spec.group_out * spec.group_in + within])
            for i in range(LANES):
                T.buffer_store(inputs, value, [i])
        else:
            for i in range(LANES):
                group = tirx.min(channel + i, spec.out_channels - 1) // spec.group_out
                T.buffer_store(inputs, x[place + group * spec.group_in + within], [i])
        for i, weight in enumerate(weights.weights(loaded, 0)):
            T.buffer_store(sums, sums[i] + inputs[i] * weight, [i])
