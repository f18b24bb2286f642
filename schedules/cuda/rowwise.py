"""Functions of rows, as `operators/rowwise.py` has them: a block of threads, or a warp, for every row.

A thread has every so many-th element. Partial results of threads are combined by shuffles, and those of warps through
shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..operators.rowwise import RowSpec
from ..tiles import vector_math
from ..tiles.emit import flat
from .architecture import WARP
from .emit import across_block, launched, only_if, registers, shared

_MOST_THREADS = 256
_ELEMENTS = 4  # of a row that a thread has at least, where there are so many


def kernel(spec: RowSpec) -> tirx.PrimFunc:
    """The PrimFunc (input, [scale,] [bias,] output), as on CPUs."""
    size, columns = math.prod(spec.shape), spec.columns
    row_shape = spec.shape[len(spec.shape) - spec.axes :]
    threads = WARP
    while threads < _MOST_THREADS and 2 * threads * _ELEMENTS <= columns:
        threads *= 2
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        source = T.arg("source", T.buffer(spec.shape, "float32"))
        scale = T.arg("scale", T.buffer(row_shape, "float32")) if spec.has_scale else None
        bias = T.arg("bias", T.buffer(row_shape, "float32")) if spec.has_bias else None
        target = T.arg("target", T.buffer(spec.shape, "float32"))
        source, target = flat(source, size), flat(target, size)
        scale, bias = (None if vector is None else flat(vector, columns) for vector in (scale, bias))
        with launched((spec.rows,), threads) as ((row,), thread):
            _Row(spec, threads, row, thread, source, target, scale, bias).emit()
    return builder.get()


class _Row:
    """The code of a block's threads for one row."""

    def __init__(self, spec: RowSpec, threads: int, row, thread, source, target, scale, bias) -> None:
        self.spec, self.threads, self.thread = spec, threads, thread
        self.source, self.target, self.scale, self.bias = source, target, scale, bias
        self.base = T.bind(row * spec.columns)
        self._room = shared(threads // WARP) if threads > WARP else None
        self._is_room_used = False

    def emit(self) -> None:
        match self.spec.kind:
            case "softmax":
                self._softmax()
            case "log_softmax":
                self._log_softmax()
            case "layer_norm":
                self._layer_norm()
            case "rms_norm":
                self._rms_norm()

    def _for_each(self, body: Callable[[ir.Expr], None]) -> None:
        """`body(column)` for every column of the thread."""
        columns = self.spec.columns
        with T.serial(math.ceil(columns / self.threads)) as turn:
            column = T.bind(turn * self.threads + self.thread)
            with only_if(True if columns % self.threads == 0 else column < columns):
                body(column)

    def _reduce(self, value: Callable[[ir.Expr], ir.Expr], combine: Callable, start: float) -> ir.Expr:
        """`value(column)` of all columns of the row, reduced by `combine`, in registers."""
        kept = registers(1)
        T.buffer_store(kept, tirx.const(start, "float32"), [0])
        self._for_each(lambda column: T.buffer_store(kept, combine(kept[0], value(column)), [0]))
        total = across_block(kept[0], combine, self.thread, self.threads, self._room, in_use=self._is_room_used)
        self._is_room_used = True
        T.buffer_store(kept, total, [0])
        return kept[0]

    def _sum(self, value: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
        return self._reduce(value, lambda a, b: a + b, 0.0)

    def _load(self, column) -> ir.Expr:
        return self.source[self.base + column]

    def _store(self, column, value: ir.Expr) -> None:
        T.buffer_store(self.target, value, [self.base + column])

    def _normalise(self, of: Callable[[ir.Expr], ir.Expr]) -> None:
        def body(column) -> None:
            value = of(self._load(column))
            value = value if self.scale is None else value * self.scale[column]
            self._store(column, value if self.bias is None else value + self.bias[column])

        self._for_each(body)

    def _exponential(self, column, largest: ir.Expr) -> ir.Expr:
        return T.bind(vector_math.exp_nonpositive(self._load(column) - largest))

    def _softmax(self) -> None:
        largest = self._reduce(self._load, tirx.max, float("-inf"))

        def exponential(column) -> ir.Expr:
            value = self._exponential(column, largest)
            self._store(column, value)  # a thread reads again only its own writes
            return value

        inverse = T.bind(tirx.const(1.0, "float32") / self._sum(exponential))
        self._for_each(lambda column: self._store(column, self.target[self.base + column] * inverse))

    def _log_softmax(self) -> None:
        largest = self._reduce(self._load, tirx.max, float("-inf"))
        # Two subtractions: their sum would round a small logarithm away next to a large maximum.
        logarithm = T.bind(vector_math.log(self._sum(lambda column: self._exponential(column, largest))))
        self._normalise(lambda x: x - largest - logarithm)

    def _layer_norm(self) -> None:
        count = tirx.const(float(self.spec.columns), "float32")
        mean = T.bind(self._sum(self._load) / count)
        square = lambda column: vector_math.let(self._load(column) - mean, lambda d: d * d)  # noqa: E731
        inverse = self._inverse_root(self._sum(square) / count)
        self._normalise(lambda x: (x - mean) * inverse)

    def _rms_norm(self) -> None:
        count = tirx.const(float(self.spec.columns), "float32")
        square = lambda column: vector_math.let(self._load(column), lambda x: x * x)  # noqa: E731
        inverse = self._inverse_root(self._sum(square) / count)
        self._normalise(lambda x: x * inverse)

    def _inverse_root(self, mean: ir.Expr) -> ir.Expr:
        return T.bind(tirx.const(1.0, "float32") / tirx.sqrt(mean + tirx.const(self.spec.epsilon, "float32")))
