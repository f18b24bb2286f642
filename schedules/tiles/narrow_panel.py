"""Weights of 16 and 8 bits: which numbers they are, and how they lie in a panel (`panel.py`).

float16 and bfloat16 are rounded to the nearest, ties to even. int8 is symmetric, one scale for every output channel:
w ≈ scale · q with q in [-127, 127] and scale = max |w| / 127.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

_TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "int8": np.dtype(np.int8)}
_MOST = {"float16": float(np.finfo(np.float16).max), "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)}
_LEVELS = 127


class OutOfRangeError(ValueError):
    """Weights that a type does not have."""


def pack(head: np.ndarray, taps: np.ndarray, dtype: str, rows: int) -> np.ndarray:
    """A panel, dtype[blocks, rows, block], of its float32 rows [blocks, head, block] and weights [blocks, taps, block].

    Every lane of a block is an output channel. Raises OutOfRangeError.
    """
    narrow, scale = _narrowed(taps, dtype, axis=1)
    head = np.concatenate([head, scale], axis=1) if scale is not None else head
    blocks, _, block = taps.shape
    bits = np.ascontiguousarray(head, np.float32).view(_TYPES[dtype]).reshape(blocks, -1, block)
    panel = np.zeros((blocks, rows, block), _TYPES[dtype])
    panel[:, : bits.shape[1]] = bits
    panel[:, bits.shape[1] : bits.shape[1] + taps.shape[1]] = narrow
    return panel


def pack_rows(table: np.ndarray, dtype: str) -> np.ndarray:
    """A float32 table [rows, width] in a narrow type; int8 rows begin with the bits of their scale. Raises OutOfRangeError."""
    narrow, scale = _narrowed(table, dtype, axis=1)
    return narrow if scale is None else np.concatenate([scale.view(np.int8), narrow], axis=1)


def rounded(weights: np.ndarray, dtype: str) -> np.ndarray:
    """float32 weights [channels, …] with the values that they have in a narrow type. Raises OutOfRangeError."""
    narrow, scale = _narrowed(weights, dtype, axis=tuple(range(1, weights.ndim)))
    wide = narrow.astype(np.float32)
    return wide if scale is None else wide * scale


def _narrowed(weights: np.ndarray, dtype: str, axis) -> tuple[np.ndarray, np.ndarray | None]:
    """The weights in the type; and for int8 the scales, float32, one for all along `axis`."""
    if dtype != "int8":
        with np.errstate(over="ignore"):
            narrow = weights.astype(_TYPES[dtype])
        if np.any(np.isinf(narrow) & np.isfinite(weights)):
            most = float(np.max(np.abs(weights[np.isfinite(weights)])))
            raise OutOfRangeError(f"weights up to {most:g} do not fit {dtype}, whose largest is {_MOST[dtype]:g}")
        return narrow, None
    largest = np.max(np.abs(weights), axis=axis, keepdims=True)
    if not np.all(np.isfinite(largest)):
        raise OutOfRangeError("weights that are infinite or no numbers do not fit int8")
    scale = np.where(largest > 0, largest / np.float32(_LEVELS), np.float32(1)).astype(np.float32)
    # Of subnormal weights the scale may have lost digits, or all of them.
    scale = np.where(scale > 0, scale, np.float32(1))
    return np.clip(np.rint(weights / scale), -_LEVELS, _LEVELS).astype(np.int8), scale
