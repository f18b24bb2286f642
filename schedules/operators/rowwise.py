"""Kernels over the last axis or axes: softmax, log-softmax, layer norm, root-mean-square norm.

One row at a time, so that the passes after the first find the row in the L1 cache; rows in parallel:

    softmax       largest element; exponentials of the differences, stored and summed; division by the sum
    log_softmax   largest element; sum of the exponentials; subtraction
    layer_norm    mean; variance, from the differences to the mean; normalisation
    rms_norm      mean square; normalisation
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles import vector_math
from ..tiles.emit import flat, loop, spread, vector
from ..tiles.rows import RowCover, cover, for_each_vector, reduce_row

KINDS = ("softmax", "log_softmax", "layer_norm", "rms_norm")
# Operations per element, for the decision whether threads pay.
_FLOPS = {"softmax": 30, "log_softmax": 30, "layer_norm": 10, "rms_norm": 6}


@dataclass(frozen=True)
class RowSpec:
    """A function of the rows of a float32 tensor, which span its last `axes` axes."""

    kind: str  # one of KINDS
    shape: tuple[int, ...]  # of input and output
    axes: int = 1  # how many trailing axes make up a row
    epsilon: float = 0.0  # added to the variance or the mean square
    has_scale: bool = False  # an input of the row's shape that the normalised row is multiplied with
    has_bias: bool = False  # an input of the row's shape added at the end

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")

    @property
    def columns(self) -> int:
        return math.prod(self.shape[len(self.shape) - self.axes :])

    @property
    def rows(self) -> int:
        return math.prod(self.shape) // self.columns

    def __str__(self) -> str:
        return f"{self.kind} {self.rows}×{self.columns}"


def kernel(spec: RowSpec, width: int) -> tirx.PrimFunc:
    """The PrimFunc (input, [scale,] [bias,] output) for vectors of `width` floats."""
    size = math.prod(spec.shape)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        row_shape = spec.shape[len(spec.shape) - spec.axes :]
        source = T.arg("source", T.buffer(spec.shape, "float32"))
        scale = T.arg("scale", T.buffer(row_shape, "float32")) if spec.has_scale else None
        bias = T.arg("bias", T.buffer(row_shape, "float32")) if spec.has_bias else None
        target = T.arg("target", T.buffer(spec.shape, "float32"))
        source, target = flat(source, size), flat(target, size)
        scale = None if scale is None else flat(scale, spec.columns)
        bias = None if bias is None else flat(bias, spec.columns)
        row = cover(spec.columns, width)
        with loop(spec.rows, size * _FLOPS[spec.kind]) as index:
            emit = _EMITTERS[spec.kind]
            emit(_Row(row, source, target, scale, bias, index * spec.columns, spec.epsilon))
    return builder.get()


@dataclass(frozen=True)
class _Row:
    """One row of flat buffers."""

    cover: RowCover
    source: tirx.Buffer
    target: tirx.Buffer
    scale: tirx.Buffer | None
    bias: tirx.Buffer | None
    base: ir.Expr  # its first element
    epsilon: float

    def load(self, start: ir.Expr | int) -> ir.Expr:
        return self.source[vector(self.base + start, self.cover.lanes)]

    def store(self, start: ir.Expr | int, value: ir.Expr) -> None:
        T.buffer_store(self.target, value, [vector(self.base + start, self.cover.lanes)])

    def spread(self, value: ir.Expr) -> ir.Expr:
        return spread(value, self.cover.lanes)

    def sum(self, value: Callable[[ir.Expr | int, bool], ir.Expr]) -> ir.Expr:
        return reduce_row(self.cover, value, lambda a, b: a + b, 0.0)

    def largest(self) -> ir.Expr:
        def value(start: ir.Expr | int, _: bool) -> ir.Expr:
            return self.load(start)

        return reduce_row(self.cover, value, tirx.max, float("-inf"), is_idempotent=True)

    def normalise(self, of: Callable[[ir.Expr], ir.Expr]) -> None:
        """Store `of(vector)` times scale plus bias for every vector of the row."""

        def body(start: ir.Expr | int, _: bool) -> None:
            value = of(self.load(start))
            if self.scale is not None:
                value = value * self.scale[vector(start, self.cover.lanes)]
            if self.bias is not None:
                value = value + self.bias[vector(start, self.cover.lanes)]
            self.store(start, value)

        for_each_vector(self.cover, body)


def _softmax(row: _Row) -> None:
    largest = row.largest()

    def exponential(start: ir.Expr | int, _: bool) -> ir.Expr:
        row.store(start, vector_math.exp_nonpositive(row.load(start) - row.spread(largest)))
        return row.target[vector(row.base + start, row.cover.lanes)]

    inverse = T.bind(tirx.const(1.0, "float32") / row.sum(exponential))

    def divide(start: ir.Expr | int, is_overlapping: bool) -> None:
        value = row.target[vector(row.base + start, row.cover.lanes)]
        scaled = value * row.spread(inverse)
        row.store(start, row.cover.once(scaled, value) if is_overlapping else scaled)

    for_each_vector(row.cover, divide)


def _log_softmax(row: _Row) -> None:
    largest = row.largest()

    def exponential(start: ir.Expr | int, _: bool) -> ir.Expr:
        return vector_math.exp_nonpositive(row.load(start) - row.spread(largest))

    # Two subtractions: their sum would round a small logarithm away next to a large maximum.
    logarithm = T.bind(vector_math.log(row.sum(exponential)))
    row.normalise(lambda x: x - row.spread(largest) - row.spread(logarithm))


def _layer_norm(row: _Row) -> None:
    count = tirx.const(float(row.cover.extent), "float32")
    mean = T.bind(row.sum(lambda start, _: row.load(start)) / count)

    def square(start: ir.Expr | int, _: bool) -> ir.Expr:
        return vector_math.let(row.load(start) - row.spread(mean), lambda d: d * d)

    variance = row.sum(square) / count
    inverse = T.bind(tirx.const(1.0, "float32") / tirx.sqrt(variance + tirx.const(row.epsilon, "float32")))
    row.normalise(lambda x: (x - row.spread(mean)) * row.spread(inverse))


def _rms_norm(row: _Row) -> None:
    count = tirx.const(float(row.cover.extent), "float32")
    mean = row.sum(lambda start, _: vector_math.let(row.load(start), lambda x: x * x)) / count
    inverse = T.bind(tirx.const(1.0, "float32") / tirx.sqrt(mean + tirx.const(row.epsilon, "float32")))
    row.normalise(lambda x: x * row.spread(inverse))


_EMITTERS = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
