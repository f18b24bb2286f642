"""Sums of products go through the epilogue and are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import epilogue as ep
from ..tiles.layer_function import Operands
from ..tiles.spec import ConvSpec
from .emit import LANES, copy, only_if, registers
from .panels import ThreadPanel


class Results:
    """The results of a block of a panel; a thread stores those of one pixel and LANES channels at a time."""

    def __init__(self, spec: ConvSpec, given: Operands, weights: ThreadPanel, block) -> None:
        panel = weights.panel
        self.spec, self.given, self.weights = spec, given, weights
        start = tirx.min(block % panel.blocks_per_group * panel.block, max(panel.group_channels - panel.block, 0))
        group = block // panel.blocks_per_group if panel.groups > 1 else 0
        self.channel = T.bind(group * panel.group_channels + start)
        aligned = (spec.y_stride, spec.y_start, panel.group_channels)
        self.lanes = LANES if all(number % LANES == 0 for number in aligned) else 1
        self.pixels = math.prod(spec.out_shape[:-1])

    def store(self, pixel, lane, total: Callable[[int], ir.Expr], lanes: int = LANES) -> None:
        """Store the results of the sums `total(0)`, …, `total(lanes - 1)` of a pixel and the block's channels from `lane` on."""
        spec, panel = self.spec, self.weights.panel
        with only_if(pixel < self.pixels):
            place = T.bind(pixel * spec.y_stride + (spec.y_start + self.channel) + lane)
            each = min(lanes, self.lanes)
            for first in range(0, lanes, each):
                inside = True if panel.block <= panel.group_channels else lane + first < panel.group_channels
                with only_if(inside):
                    self._store(place + first, lane + first, lambda i, first=first: total(first + i), each)

    def _store(self, place, lane, total: Callable[[int], ir.Expr], lanes: int) -> None:
        through_epilogue(
            self.spec.epilogue,
            self.given.y,
            self.given.tensors,
            place,
            lanes,
            lambda i: self.weights.finish(lane + i, total(i)),
            lambda number, i: self.weights.channel(number, lane + i),
        )


def through_epilogue(
    epilogue: ep.Epilogue,
    y: tirx.Buffer,
    tensors: Sequence[tirx.Buffer],
    place,
    lanes: int,
    total: Callable[[int], ir.Expr],
    channel: Callable[[int, int], ir.Expr] | None = None,
) -> None:
    """y[place : place + lanes] = the epilogue of `total(0)`, …, at once.

    Tensors are read at the same place just before; `channel(number, i)` is element i of a channel vector.
    """
    operands = []
    for tensor in tensors:
        operands.append(registers(lanes))
        copy(operands[-1], 0, tensor, place, lanes)
    results = registers(lanes)
    for i in range(lanes):
        value = ep.evaluate(
            epilogue,
            total(i),
            tensor=lambda number, i=i: operands[number][i],
            channel=lambda number, i=i: channel(number, i),
        )
        T.buffer_store(results, value, [i])
    copy(y, place, results, 0, lanes)
