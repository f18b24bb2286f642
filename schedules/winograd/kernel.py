"""The code of a Winograd convolution; schedules/winograd/ways.py has the algebra, the order and the scratch."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import epilogue as ep
from ..tiles import lane
from ..tiles.asking import ask, in_order
from ..tiles.emit import Accumulators, loop, maybe_serial, prefetch, vector, zero
from ..tiles.layer_function import Operands, layer_function
from ..tiles.tile import pieces
from .transforms import input_line, output_line
from .ways import Winograd, eligible


def kernel(way: Winograd, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, v, m).

    x is float32[batch, height, width, in_channels], y and the tensors float32[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks of transformed weights, the first of which is block `first` of the
    layer; v and m are scratch of the shapes `way.scratch`.
    """
    assert eligible(way.spec), f"no Winograd convolution for {way.spec}"
    return _Emitter(way, vector_width).prim_func()


def bind(value):
    """A name for a value that several expressions use."""
    return T.bind(value)


class _Span(NamedTuple):
    """Rows (or columns) of tiles before `stop` that see the same part [low, high) of the a inputs, or m outputs."""

    stop: int
    low: int
    high: int
    last: bool = False  # that part ends where the image does


def _spans(count: int, bounds: Callable[[int], tuple]) -> list[_Span]:
    spans: list[_Span] = []
    for i in range(count):
        span = _Span(i + 1, *bounds(i))
        if spans and spans[-1][1:] == span[1:]:
            spans.pop()
        spans.append(span)
    return spans


def _dispatch(index, spans: list[_Span], emit: Callable[[_Span], None]) -> None:
    """Emit code for the span that holds `index`."""
    if len(spans) == 1:
        emit(spans[0])
        return
    with T.If(index < spans[0].stop):
        with T.Then():
            emit(spans[0])
        with T.Else():
            _dispatch(index, spans[1:], emit)


class _Emitter:
    def __init__(self, way: Winograd, vector_width: int) -> None:
        self.way, self.spec, self.panel, self.width = way, way.spec, way.panel, vector_width
        self.pieces = pieces(way.tile.channels, vector_width)
        self.stores = pieces(min(way.tile.channels, self.panel.group_channels), vector_width)
        self.small, self.larger = divmod(way.tiles, way.all_groups)

    def prim_func(self) -> tirx.PrimFunc:
        return layer_function(self.spec, self.panel, self._body, self.way.scratch)

    def _body(self, given: Operands) -> None:
        self.x, self.w, self.y, self.tensors = given.x, given.panel, given.y, given.tensors
        self.v, self.m = given.scratch
        self._tile_blocks(given.first, given.count)

    def _tile_blocks(self, first, count) -> None:
        way = self.way
        if way.slots == 1:
            with maybe_serial(0, way.tile_blocks) as block:
                self._tile_block(block, 0, first, count)
            return
        each = math.ceil(way.tile_blocks / way.slots)
        with T.parallel(way.slots) as slot:
            stop = T.bind(tirx.min((slot + 1) * each, way.tile_blocks))
            with T.serial(slot * each, stop) as block:
                self._tile_block(block, slot, first, count)

    def _loop(self, extent, flops: int) -> AbstractContextManager:
        """A loop within a stage; `flops` are those of all of its iterations."""
        return loop(extent, flops) if self.way.slots == 1 else T.serial(extent)

    def _start(self, group):
        """The first Winograd tile of a register tile; the first `larger` of them have one tile more."""
        if not self.larger:
            return group * self.small
        return group * self.small + tirx.min(group, self.larger)

    def _tile_block(self, block, slot, first, count) -> None:
        way = self.way
        if way.tile_blocks == 1:
            groups, start, tiles = (0, way.all_groups), 0, way.tiles
        else:
            low = T.bind(block * way.groups)
            high = T.bind(tirx.min(low + way.groups, way.all_groups))
            groups, start = (low, high), T.bind(self._start(low))
            tiles = T.bind(self._start(high) - start)
        self.v_at = T.bind(slot * math.prod(way.scratch[0][1:])) if way.slots > 1 else 0
        self.m_at = T.bind(slot * math.prod(way.scratch[1][1:])) if way.slots > 1 else 0
        products = 2 * way.block_tiles * way.positions * way.depth * way.tile.channels
        with self._loop(tiles, way.block_tiles * way.positions * way.depth * way.a) as tile:
            self._transform_input(start + tile, self.v_at + tile * way.v_tile)
        with T.serial((count + (way.chunk - 1)) // way.chunk) as chunk:
            blocks = T.bind(tirx.min(way.chunk, count - chunk * way.chunk)) if way.chunk > 1 else 1
            with self._loop(blocks * way.positions, way.chunk * products) as task:
                inside = T.bind(task // way.positions) if way.chunk > 1 else 0
                position = T.bind(task % way.positions) if way.chunk > 1 else task
                self._product(groups, start, chunk * way.chunk + inside, inside, position)
            with self._loop(tiles, way.chunk * products // way.depth * way.a) as tile:
                with maybe_serial(0, blocks) as inside:
                    offset = T.bind(chunk * way.chunk + inside)
                    self._transform_output(start + tile, tile, inside, T.bind(first + offset), offset)

    def _place(self, tile) -> tuple:
        """Image, row and column of a Winograd tile."""
        way = self.way
        image = T.bind(tile // (way.rows * way.columns)) if self.spec.batch > 1 else 0
        row = tile // way.columns % way.rows if self.spec.batch > 1 else tile // way.columns
        return image, T.bind(row), T.bind(tile % way.columns)

    def _transform_input(self, tile, v_at) -> None:
        spec, way, (down, across), (tall, wide) = self.spec, self.way, self.way.outputs, self.way.inputs
        top, left = way.padding
        step, height, width = way.stride, spec.height // way.stride, spec.width // way.stride
        image, row, column = self._place(T.bind(tile))
        pixel = (image * height + row * down - top) * step * spec.width + (column * across - left) * step
        at = T.bind(pixel * spec.in_channels)

        def emit(rows: _Span, columns: _Span) -> None:
            def vectors(offset, place_at, lanes: int) -> None:
                for position in range(way.positions if way.prefetches_v else 0):
                    prefetch(self.v, v_at + position * way.v_position + place_at, lanes, write=True)
                done = []
                for j in range(wide):
                    line = [
                        T.bind(self.x[vector(at + (i * spec.width + j) * (step * spec.in_channels) + offset, lanes)])
                        if rows.low <= i < rows.high and columns.low <= j < columns.high
                        else None
                        for i in range(tall)
                    ]
                    done.append(input_line(line, lanes, bind))
                for i in range(tall):
                    for j, value in enumerate(input_line([line[i] for line in done], lanes, bind)):
                        place = vector(v_at + (i * wide + j) * way.v_position + place_at, lanes)
                        T.buffer_store(self.v, zero(lanes) if value is None else value, [place])

            if way.stride > 1:
                self._pairs(vectors, last=columns.last)
            else:
                self._channels(lambda start, lanes: vectors(start, start, lanes))

        rows = _spans(way.rows, lambda i: (max(0, top - i * down), min(tall, height + top - i * down)))
        columns = _spans(
            way.columns,
            lambda i: (
                max(0, left - i * across),
                min(wide, width + left - i * across),
                way.stride > 1 and i * across - left + wide >= width,
            ),
        )
        _dispatch(row, rows, lambda r: _dispatch(column, columns, lambda c: emit(r, c)))

    def _pairs(self, emit: Callable, *, last: bool) -> None:
        """`emit(offset, place, lanes)` for the rows of a pair: neighbours in the image, read as one vector.

        The vector may be longer: the next pair's pixels are overwritten by the next row, or never read. The last
        pair of a row has none.
        """
        floats = 2 * self.spec.in_channels
        for row in range(2):
            offset, place = row * self.spec.width * self.spec.in_channels, row * floats
            if last:
                for start, lanes in pieces(floats, self.width):
                    emit(offset + start, place + start, lanes)
            else:
                emit(offset, place, 1 << (floats - 1).bit_length())

    def _channels(self, emit: Callable) -> None:
        """`emit(start, lanes)` for vectors of all input channels; the last of several overlaps the previous one."""
        channels, width = self.spec.in_channels, self.width
        if channels < width:
            for start, lanes in pieces(channels, width):
                emit(start, lanes)
            return
        with maybe_serial(0, math.ceil(channels / width)) as i:
            start = i * width if channels % width == 0 else tirx.min(i * width, channels - width)
            emit(T.bind(start) if channels > width else 0, width)

    def _product(self, groups: tuple, first_tile, block, inside, position) -> None:
        """M of one position and one block of output channels, for the register tiles `groups`."""
        way = self.way
        size = self.way.tile.channels
        channels = way.depth
        u_at = T.bind(self.w.weights_at(self.w.block_at(block), position * channels))
        v_at = T.bind(self.v_at + position * self.way.v_position)
        m_at = T.bind(self.m_at + (inside * self.way.positions + position) * size)
        acc = Accumulators(self.small + (1 if self.larger else 0), self.pieces)

        def tile(rows: int, group) -> None:
            at = T.bind(self._start(group) - first_tile)
            done = (group - groups[0]) * channels
            next_ones = ask(self.w.buffer, u_at + channels * size, done, way.asked) if way.asked else None
            acc.fill(rows, lambda start, lanes: zero(lanes))
            lane.reduce(
                acc,
                list(range(rows)),
                channels,
                lambda row, step, lanes: self.v[vector(v_at + (at + row) * way.v_tile + step, lanes)],
                lambda step, start, lanes: self.w.weights(u_at + step * size + start, lanes),
                way.tile.depth,
                fetch=in_order(self.w.buffer, u_at, size, next_ones) if way.prefetches else None,
            )
            for row in range(rows):
                for start, lanes in self.pieces:
                    place = vector(m_at + (at + row) * self.way.m_tile + start, lanes)
                    T.buffer_store(self.m, acc.get(row, start, lanes), [place])

        low, high = groups
        if self.larger:
            stop = min(high, self.larger) if isinstance(high, int) else T.bind(tirx.min(high, self.larger))
            with maybe_serial(low, stop) as group:
                tile(self.small + 1, group)
            low = max(low, self.larger) if isinstance(low, int) else T.bind(tirx.max(low, self.larger))
        with maybe_serial(low, high) as group:
            tile(self.small, group)

    def _transform_output(self, tile, slot_tile, inside, block, offset) -> None:
        spec, panel, m = self.spec, self.panel, self.way.m
        (down, across), (tall, wide) = self.way.outputs, self.way.inputs
        image, row, column = self._place(T.bind(tile))
        start_channel = tirx.min(block * panel.block, max(panel.group_channels - panel.block, 0))
        channel_at = T.bind(start_channel) if panel.blocks > 1 else 0
        panel_at = T.bind(self.w.block_at(offset))
        m_at = T.bind(self.m_at + slot_tile * self.way.m_tile + inside * (self.way.positions * panel.block))
        pixel = (image * spec.out_height + row * down) * spec.out_width + column * across
        at = T.bind(pixel * spec.y_stride + (spec.y_start + channel_at))

        def emit(rows: _Span, columns: _Span) -> None:
            def vectors(start, lanes: int) -> None:
                done = []
                for j in range(wide):
                    line = [T.bind(self.m[vector(m_at + (i * wide + j) * panel.block + start, lanes)]) for i in range(tall)]
                    done.append(output_line(m, line, lanes, bind)[: rows.high])
                bias = T.bind(self.w.bias(panel_at, start, lanes))
                for i in range(rows.high):
                    line = output_line(m, [values[i] for values in done], lanes, bind)
                    for j, value in enumerate(line[: columns.high]):
                        place = vector(at + (i * spec.out_width + j) * spec.y_stride + start, lanes)
                        result = ep.evaluate(
                            spec.epilogue,
                            T.bind(value + bias),
                            tensor=lambda k, place=place: self.tensors[k][place],
                            channel=lambda k: self.w.channel(panel_at, k, start, lanes),
                        )
                        T.buffer_store(self.y, result, [place])

            whole = [start for start, lanes in self.stores if lanes == self.width]
            if whole:
                with maybe_serial(0, len(whole)) as i:
                    vectors(i * self.width, self.width)
            for start, lanes in self.stores[len(whole) :]:
                vectors(start, lanes)

        rows = _spans(self.way.rows, lambda i: (0, min(down, spec.out_height - i * down)))
        columns = _spans(self.way.columns, lambda i: (0, min(across, spec.out_width - i * across)))
        _dispatch(row, rows, lambda r: _dispatch(column, columns, lambda c: emit(r, c)))
