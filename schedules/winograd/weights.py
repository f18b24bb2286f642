"""The weights of Winograd kernels: in NumPy, as operators for a build, and as code that prepares them during loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.script.ir_builder import tirx as T

from ..transform import Emit, Preparing, Vectors, extents
from .transforms import KERNEL, matrices, weight_line


@dataclass(frozen=True)
class WeightTransform:
    """Weights OHWI float32[out, r, r, in] → float32[out, a², in]: U = G w Gᵀ, position row-major.

    Of kernels of one row or one column, whose other axis stays: float32[out, a, in].
    With stride 2 the weights are those of pairs of pixels, [out, 2r - 1 or 2r, 2r - 1 or 2r, in] with `before` zeros
    before them (rows, columns), and the result is float32[out, a², 4 · in]: row in the pair, column in the pair, in.
    """

    parts, of_blocks = 1, False

    m: int
    r: int = KERNEL
    stride: int = 1
    before: tuple[int, int] = (0, 0)
    axes: tuple[bool, bool] = (True, True)  # which are transformed: rows, columns

    @property
    def positions(self) -> int:
        return (self.m + self.r - 1) ** sum(self.axes)

    @property
    def matrix(self) -> np.ndarray:
        """G, float64[a, r]."""
        return np.array([[float(entry) for entry in row] for row in matrices(self.m, self.r)[2]])

    def padding(self, kernel: tuple[int, int]) -> list[tuple[int, int]]:
        """Zeros before and after the rows and columns of the weights."""
        if self.stride == 1:
            return [(0, 0), (0, 0)]
        return [(low, self.stride * self.r - low - size) for low, size in zip(self.before, kernel, strict=True)]

    def apply(self, weights: np.ndarray) -> np.ndarray:
        """The transform in NumPy, in float64 until the end."""
        g, (out, rows, columns, channels) = self.matrix, weights.shape
        padded = np.pad(weights.astype("f8"), [(0, 0), *self.padding((rows, columns)), (0, 0)])
        of_rows, of_columns = (g if transformed else np.ones((1, 1)) for transformed in self.axes)
        taps = of_rows.shape[1], of_columns.shape[1]
        pairs = padded.reshape(out, taps[0], self.stride, taps[1], self.stride, channels).transpose(0, 1, 3, 2, 4, 5)
        result = np.einsum("pi,oijc,qj->opqc", of_rows, pairs.reshape(out, *taps, -1), of_columns, optimize=True)
        return result.reshape(out, self.positions, -1).astype("f4")

    def pack(self, emit: Emit, weight: relax.Expr) -> relax.Var:
        """G w Gᵀ of OHWI weights, as float32[out, a, a, in]: first along the kernel's rows, then along its columns.

        Of a kernel of one row or one column float32[out, 1, a, in]: along that.
        """
        g = relax.const(self.matrix, "float64")
        a, taps = self.matrix.shape
        if self.stride > 1:
            weight = self._in_pairs(emit, weight)
        out, _, _, channels = extents(weight)
        exact = emit(op.astype(weight, "float64"))
        if not all(self.axes):
            line = emit(op.matmul(g, emit(op.reshape(exact, (out, taps, channels)))))
            return emit(op.astype(emit(op.reshape(line, (out, 1, a, channels))), "float32"))
        exact = emit(op.reshape(exact, (out, taps, taps * channels)))
        rows = emit(op.reshape(emit(op.matmul(g, exact)), (out * a, taps, channels)))
        both = emit(op.reshape(emit(op.matmul(g, rows)), (out, a, a, channels)))
        return emit(op.astype(both, "float32"))

    def _in_pairs(self, emit: Emit, weight: relax.Expr) -> relax.Var:
        """OHWI weights of pairs of pixels: float32[out, r, r, 4 · in], with zeros where there is no tap."""
        out, height, width, channels = extents(weight)
        for axis, (before, after) in enumerate(self.padding((height, width)), start=1):
            missing = list(extents(weight))
            parts = [weight]
            for count, place in ((before, 0), (after, 1)):
                if count:
                    missing[axis] = count
                    parts.insert(place * len(parts), emit(op.zeros(tuple(missing), "float32")))
            weight = emit(op.concat(parts, axis=axis)) if len(parts) > 1 else weight
        r, stride = self.r, self.stride
        split = emit(op.reshape(weight, (out, r, stride, r, stride, channels)))
        return emit(op.reshape(emit(op.permute_dims(split, (0, 1, 3, 2, 4, 5))), (out, r, r, stride**2 * channels)))

    def prepare(self, code: Preparing, kernel: tuple[int, int], in_channels: int, block: int) -> None:
        """U = G w Gᵀ of every input channel, or of every place in a pair of pixels and input channel."""
        pairs, depth = range(self.stride), self.stride**2 * in_channels
        with T.serial(block // code.lanes) as piece:
            channel = T.bind(piece * code.lanes)
            at, lane = code.source(channel)
            for below in pairs:
                for right in pairs:
                    with T.serial(in_channels) as c:
                        taps = self._taps(kernel, in_channels, (below, right), lambda tap, c=c: code.weights(at, lane, tap + c))
                        for position, value in enumerate(_both(self, taps, code.lanes)):
                            row = position * depth + (below * self.stride + right) * in_channels + c
                            code.write(row * block + channel, value)

    def _taps(self, kernel: tuple[int, int], in_channels: int, place: tuple[int, int], read: Callable) -> list[Vectors]:
        """The weights at one place of the pairs of pixels, by row and column; `read` gets the first tap of a pixel."""
        rows, columns = kernel
        grid = []
        height, width = (self.r if along else 1 for along in self.axes)
        for i in range(height):
            line: Vectors = []
            for j in range(width):
                y, x = (
                    number * self.stride + inside - before
                    for number, inside, before in zip((i, j), place, self.before, strict=True)
                )
                known = 0 <= y < rows and 0 <= x < columns
                line.append(read((y * columns + x) * in_channels) if known else None)
            grid.append(line)
        return grid


def _both(transform: WeightTransform, taps: list[Vectors], lanes: int) -> Vectors:
    """G w Gᵀ, row-major."""
    rows, columns = transform.axes
    if rows:
        by_column = [weight_line(transform.m, list(column), lanes, T.bind) for column in zip(*taps, strict=True)]
        taps = [list(row) for row in zip(*by_column, strict=True)]
    if columns:
        taps = [weight_line(transform.m, row, lanes, T.bind) for row in taps]
    return [value for row in taps for value in row]
