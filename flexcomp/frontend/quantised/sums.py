"""Bounds of sums of integer products, and the number of parts for which float32 is exact."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

EXACT = 1 << 24  # float32 has all integers up to it
_CHUNK = 1 << 20  # weights that are looked at together
RANGES = {
    TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255), TensorProto.INT16: (-(1 << 15), (1 << 15) - 1),
    TensorProto.UINT16: (0, (1 << 16) - 1),
}  # fmt: skip
Range = tuple[int, int]


def range_of(element: int, zero: np.ndarray | None) -> Range:
    """The least and the largest value of data - zero for data of a type. 0 is included, because images are padded with 0. No zero
    is known: None.
    """
    low, high = RANGES[element]
    if zero is None:
        return low - high, high - low
    return min(low - int(zero.max()), 0), max(high - int(zero.min()), 0)


def parts_of(
    weights: np.ndarray, zero: np.ndarray, axes: Sequence[int], data: Range, added: np.ndarray | int = 0
) -> int | None:
    """The number of parts of the first of `axes` for which sums over all `axes` of data · (weights - zero) are exact, with
    `added`.

    No partial sum in any order exceeds the sum of the products of one sign. None: the sums of a single index of the first axis
    are too large.
    """
    extent = weights.shape[axes[0]]
    start = math.ceil(_most(weights, zero, (0, extent), axes, data, added) / EXACT)
    for parts in range(max(start, 1), extent + 1):
        if all(_most(weights, zero, span(extent, parts, i), axes, data, added) < EXACT for i in range(parts)):
            return parts
    return None


def parts_of_unknown(extent: int, taps: int, left: Range, right: Range) -> int | None:
    """As `parts_of`, if only the ranges of both operands are known, and how many products an index adds."""
    most = taps * max(abs(a * b) for a in left for b in right)
    each = extent if not most else (EXACT - 1) // most
    return math.ceil(extent / each) if each else None


def span(extent: int, parts: int, i: int) -> tuple[int, int]:
    """The indices of a part: the first, and the one after the last."""
    return extent * i // parts, extent * (i + 1) // parts


def _most(
    weights: np.ndarray, zero: np.ndarray, part: tuple[int, int], axes: Sequence[int], data: Range, added: np.ndarray | int
) -> int:
    low, high = data
    up = down = np.int64(0)
    each = max(1, _CHUNK * weights.shape[axes[0]] // max(weights.size, 1))
    for first in range(*part, each):
        piece = np.take(weights, range(first, min(first + each, part[1])), axes[0]).astype(np.int32) - zero
        up, down = (so_far + np.maximum(one, 0).sum(tuple(axes)) for so_far, one in ((up, piece), (down, -piece)))
    above, below = up * high - down * low + np.maximum(added, 0), down * high - up * low + np.maximum(-np.asarray(added), 0)
    return int(max(above.max(initial=0), below.max(initial=0)))
