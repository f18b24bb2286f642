"""The weights of fast products: in NumPy, as operators for a build, and as code that prepares them during loading."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx
from tvm.relax import op
from tvm.script.ir_builder import tirx as T

from ..transform import Emit, Preparing, extents

PRODUCTS = 7
# Weights of the seven products in their order, from B11, B12, B21, B22: B11, B21, T2, T3, -T4, T1, B22.
_COMBINATIONS = (
    (1, 0, 0, 0),
    (0, 0, 1, 0),
    (1, -1, 0, 1),
    (0, -1, 0, 1),
    (-1, 1, 1, -1),
    (-1, 1, 0, 0),
    (0, 0, 0, 1),
)


@dataclass(frozen=True)
class HalvesTransform:
    """Weights float32[blocks, block, in] → float32[blocks, 7ᴸ · in / 2ᴸ, block / 2ᴸ]: the right operands on L levels."""

    of_blocks = True

    levels: int = 1

    @property
    def parts(self) -> int:
        return 2**self.levels

    @property
    def matrix(self) -> np.ndarray:
        """float64[7, 4]: the operands of a level from the quarters (input half, channel half) of a block, row-major."""
        return np.array(_COMBINATIONS, np.float64)

    def apply(self, weights: np.ndarray) -> np.ndarray:
        """The transform in NumPy."""
        blocks, block, _ = weights.shape
        exact = weights.astype("f8")
        for _ in range(self.levels):
            count, size, depth = exact.shape
            quarters = exact.reshape(count, 2, size // 2, 2, depth // 2).transpose(0, 3, 1, 2, 4)
            combined = np.einsum("pq,bqlk->bplk", self.matrix, quarters.reshape(count, 4, size // 2, depth // 2))
            exact = combined.reshape(count * PRODUCTS, size // 2, depth // 2)
        return exact.transpose(0, 2, 1).reshape(blocks, -1, block >> self.levels).astype("f4")

    def pack(self, emit: Emit, weight: relax.Expr) -> relax.Var:
        """float32[blocks, taps, block] of weights float32[blocks, block, in]: sums of their quarters."""
        blocks, whole, _ = extents(weight)
        combinations = relax.const(self.matrix, "float64")
        exact = emit(op.astype(weight, "float64"))
        for _ in range(self.levels):
            count, block, channels = extents(exact)
            exact = emit(op.reshape(exact, (count, 2, block // 2, 2, channels // 2)))
            exact = emit(op.reshape(emit(op.permute_dims(exact, (0, 3, 1, 2, 4))), (count, 4, channels * block // 4)))
            combined = emit(op.matmul(combinations, exact))
            exact = emit(op.reshape(combined, (count * len(self.matrix), block // 2, channels // 2)))
        combined = emit(op.astype(emit(op.permute_dims(exact, (0, 2, 1))), "float32"))
        return emit(op.reshape(combined, (blocks, math.prod(extents(combined)) // (blocks * whole), whole)))

    def prepare(self, code: Preparing, kernel: tuple[int, int], in_channels: int, block: int) -> None:
        """The right operands of Strassen's products, from parts of the channels on both sides."""
        parts = self.parts
        depth, block = in_channels // parts, block // parts
        with T.serial(block // code.lanes) as piece:
            channel = T.bind(piece * code.lanes)
            sources = [code.source(channel + part * block) for part in range(parts)]
            with T.serial(depth) as k:
                whole = [[code.weights(*sources[j], i * depth + k) for j in range(parts)] for i in range(parts)]
                for product, value in enumerate(_operands(self, whole, code.lanes)):
                    code.write((product * depth + k) * block + channel, value)


def _operands(transform: HalvesTransform, whole: list[list[tirx.Expr]], lanes: int) -> list[tirx.Expr]:
    """The combinations of a matrix [input part][channel part], level by level."""
    size = len(whole) // 2
    if not size:
        return [whole[0][0]]
    quarters = [
        [row[j * size : (j + 1) * size] for row in whole[i * size : (i + 1) * size]] for i in range(2) for j in range(2)
    ]
    result = []
    for factors in transform.matrix.tolist():
        combined = [
            [T.bind(_signed_sum(factors, [quarter[i][j] for quarter in quarters])) for j in range(size)] for i in range(size)
        ]
        result += _operands(transform, combined, lanes)
    return result


def _signed_sum(factors: list[float], values: list[tirx.Expr]) -> tirx.Expr:
    """A sum of values, each with the factor 1, 0 or -1."""
    positive = [value for factor, value in zip(factors, values, strict=True) if factor > 0]
    negative = [value for factor, value in zip(factors, values, strict=True) if factor < 0]
    total = positive[0] if positive else tirx.const(0.0, str(values[0].dtype)) - negative.pop(0)
    for value in positive[1:]:
        total = total + value
    for value in negative:
        total = total - value
    return total
