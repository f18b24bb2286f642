"""Preparations: blocks of weights in the form of one kernel, made of the stored blocks of another.

Weights lie in the file once, as panels of a layer's smallest kernel. Other kernels' weights are made from these panels
during loading: panels of another width, with narrow weights widened if necessary; the transforms of Winograd's and
Strassen's algorithms. Source: NNV12 (Yi et al., Boosting DNN Cold Inference on Edge Devices, MobiSys 2023), section 3.1,
"weights transformation", there layer by layer; here for any range of blocks, so that slices can be prepared, too.

All are sums of a few stored weights with constant factors, for one input channel and a vector of output channels at a
time: a straight line of vector code in a loop over the input channels.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .registry import FAMILIES
from .tiles.emit import flat, spread, vector, zero
from .tiles.layer_function import reader
from .tiles.panel import Panel
from .tiles.panel_reader import PanelReader
from .transform import Transform

_MOST_LANES = 16


@dataclass(frozen=True)
class WeightForm:
    """The weights that a kernel takes: how to compute these from a layer's weights, and their layout in the panel."""

    panel: Panel
    kernel: tuple[int, int]  # rows and columns of the layer's weights
    in_channels: int
    transform: Transform | None = None

    def encode(self) -> str:
        """As text, for an attribute of the kernel."""
        kind = type(self.transform).__name__ if self.transform else None
        panel = asdict(self.panel)
        if self.panel.together == 1:
            del panel["together"], panel["lowest"]  # the defaults
        return json.dumps([panel, self.kernel, self.in_channels, kind, asdict(self.transform) if kind else {}])

    @staticmethod
    def decode(text: str) -> WeightForm:
        """The inverse of `encode`."""
        panel, kernel, in_channels, kind, fields = json.loads(text)
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        known = {family.transform.__name__: family.transform for family in FAMILIES if family.transform}
        transform = known[kind](**fields) if kind else None
        return WeightForm(Panel(**panel), tuple(kernel), in_channels, transform)


def preparation(stored: WeightForm, prepared: WeightForm) -> Preparation | None:
    """How weights of one form are made from another form of the same layer; None if that is impossible."""
    known = stored.transform is None and eligible(stored.panel, prepared.panel)
    return Preparation(stored.panel, prepared.panel, stored.kernel, stored.in_channels, prepared.transform) if known else None


@dataclass(frozen=True)
class Preparation:
    """How the panel of a kernel is made of the one that is stored, for a layer of one group."""

    stored: Panel
    prepared: Panel
    kernel: tuple[int, int]  # rows and columns of the layer's weights
    in_channels: int
    transform: Transform | None = None

    def stored_range(self, first: int, count: int) -> tuple[int, int]:
        """The stored blocks, first and count, that blocks [first, first + count) are made of."""
        low = min(self._start(self.prepared, first) // self.stored.block, self.stored.blocks - 1)
        last = self._start(self.prepared, first + count - 1) + self.prepared.block - 1
        return low, last // self.stored.block + 1 - low

    @staticmethod
    def _start(panel: Panel, block: int) -> int:
        """The first output channel of a block."""
        return min(block * panel.block, panel.group_channels - panel.block)

    @property
    def lanes(self) -> int:
        """Output channels that are prepared at a time, together in the stored block and in the prepared one."""
        parts = self.transform.parts if self.transform else 1
        together = math.gcd(self.stored.group_channels, self.stored.block, self.prepared.block // parts)
        return min(together & -together, _MOST_LANES)

    @property
    def as_kept(self) -> bool:
        """Whether weights are copied without conversion."""
        return self.transform is None and self.prepared.kept == self.stored.kept


def eligible(stored: Panel, prepared: Panel) -> bool:
    """Whether there is a preparation between panels of one layer."""
    whole = all(panel.groups == 1 and panel.block <= panel.group_channels for panel in (stored, prepared))
    alike = (stored.together, stored.lowest) == (prepared.together, prepared.lowest)
    kept = prepared.kept == stored.kept or (prepared.kept == "float32" and prepared.together == 1)
    return whole and alike and kept and stored.vectors == prepared.vectors


@lru_cache(256)  # layers that are alike have one
def function(preparation: Preparation) -> tirx.PrimFunc:
    """A PrimFunc (stored, first, count, prepared): blocks [first, first + count) of the prepared panel.

    stored[…, rows, block] begins with the first block of `stored_range(first, count)`, prepared[count, rows, block] with block
    `first`; the types are those of the panels. Rows of padding are not written.
    """
    source, target = preparation.stored, preparation.prepared
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            stored = T.arg("stored", T.buffer(source.shape, source.dtype))
            first, count = T.arg("first", T.int64()), T.arg("count", T.int64())
            prepared = T.arg("prepared", T.buffer(target.shape, target.dtype))
            source_reader = reader(source, flat(stored, math.prod(source.shape), source.dtype))
            written = flat(prepared, math.prod(target.shape), target.dtype)
            _Emitter(preparation, source_reader, written).emit(T.Cast("int32", first), T.Cast("int32", count))
    return builder.get()


class _Emitter:
    def __init__(self, preparation: Preparation, stored: PanelReader, prepared: tirx.Buffer) -> None:
        self.of, self.stored, self.prepared = preparation, stored, prepared
        self.lanes = preparation.lanes
        self.target = reader(preparation.prepared, prepared)

    def emit(self, first, count) -> None:
        of, panel = self.of, self.of.prepared
        self.first_stored = T.bind(self._place(self._start(first))[0])
        with T.serial(count) as offset:
            self.begin = T.bind(self._start(first + offset))
            self.at = T.bind(self.target.block_at(offset))
            with T.serial(panel.block // self.lanes) as piece:
                self.head(T.bind(piece * self.lanes))
            if of.transform is not None:
                of.transform.prepare(self, of.kernel, of.in_channels, panel.block)
            else:
                self.move()

    def _start(self, block):
        panel = self.of.prepared
        return tirx.min(block * panel.block, panel.group_channels - panel.block)

    def _place(self, channel):
        """The stored block in which an output channel lies, and its lane there."""
        panel = self.of.stored
        block = tirx.min(channel // panel.block, panel.blocks - 1)
        return block, channel - tirx.min(block * panel.block, panel.group_channels - panel.block)

    def source(self, channel) -> tuple:
        """Where the stored block of output channels from `channel` on begins, and their lane."""
        block, lane = self._place(self.begin + channel)
        return T.bind(self.stored.block_at(block - self.first_stored)), T.bind(lane)

    def head(self, channel) -> None:
        """The bias and the channel vectors of the epilogue."""
        panel, lanes = self.of.prepared, self.lanes
        at, lane = self.source(channel)
        rows = [self.stored.bias(at, lane, lanes)]
        rows += [self.stored.channel(at, i, lane, lanes) for i in range(panel.vectors)]
        if panel.scaled:
            rows.append(self.stored.factor(at, lane, lanes))
        if panel.packs:
            rows += [self.stored.beginning(at, lane, lanes), spread(self.stored.offset(at), lanes)]
        for number, value in enumerate(rows):
            if panel.narrow:
                each = 4 // panel.itemsize
                place, bits = vector(self.at + (number * panel.block + channel) * each, lanes * each), lanes * each
                T.buffer_store(self.prepared, tirx.reinterpret(f"{panel.dtype}x{bits}", value), [place])
            else:
                row = number + panel.taps if number else 0
                T.buffer_store(self.prepared, value, [vector(self.at + row * panel.block + channel, lanes)])

    def weights(self, at, lane, tap) -> tirx.Expr:
        """Stored weights of a tap, as float32."""
        value = self.stored.weights(self.stored.weights_at(at, tap) + lane, self.lanes)
        return T.bind(self.stored.scale(at, lane, self.lanes, value))

    def write(self, index, value: tirx.Expr | None) -> None:
        """Write a vector at an index of the prepared weights."""
        place = self.target.weights_at(self.at, 0) + index
        T.buffer_store(self.prepared, zero(self.lanes) if value is None else value, [vector(place, self.lanes)])

    def move(self) -> None:
        panel = self.of.prepared
        with T.serial(panel.block // self.lanes) as piece:
            channel = T.bind(piece * self.lanes)
            at, lane = self.source(channel)
            if panel.in_blocks:
                self._move_blocks(at, lane, channel)
                return
            if panel.together > 1:
                each, lanes = panel.together, panel.together * self.lanes
                with T.serial(panel.taps // each) as group:
                    value = self.stored.buffer[vector(self.stored.weights_at(at, group * each) + lane * each, lanes)]
                    place = self.target.weights_at(self.at, group * each) + channel * each
                    T.buffer_store(self.prepared, value, [vector(place, lanes)])
                return
            with T.serial(panel.taps) as tap:
                if self.of.as_kept:
                    value = self.stored.buffer[vector(self.stored.weights_at(at, tap) + lane, self.lanes)]
                else:
                    value = self.weights(at, lane, tap)
                self.write(tap * panel.block + channel, value)

    def _move_blocks(self, at, lane, channel) -> None:
        """Scales of weights in blocks, then rows of bytes: zero points and weights."""
        source, target = self.stored.lanes, self.target.lanes
        form = target.form

        def copy(width: int, begin, place) -> None:
            value = self.stored.buffer[vector(begin + lane * width, self.lanes * width)]
            T.buffer_store(self.prepared, value, [vector(place + channel * width, self.lanes * width)])

        with T.serial(target.count) as block:
            copy(form.scale_nbytes, source.scale_at(at, block), target.scale_at(self.at, block))
        bytes_of = [(1, source.zero_row, target.zero_row, form.zero_rows(target.taps))]
        bytes_of += [(form.together, source.tap_row, target.tap_row, form.tap_rows(target.taps))]
        for width, given, made, rows in bytes_of:
            with T.serial(rows // width) as row:
                copy(width, at + (given + row * width) * source.stride, self.at + (made + row * width) * target.stride)
