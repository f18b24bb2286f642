"""Weights of 16 and 8 bits: their values, and their layout in a panel (`panel.py`).

float16 and bfloat16 are rounded to the nearest, ties to even. int8 is symmetric, one scale for every output channel:
w ≈ scale · q with q in [-127, 127] and scale = max |w| / 127. Channels that are multiples of a scale already, as of networks
that were quantised before, keep that scale and lose nothing. Channels that were quantised with zero points lose nothing
either, as "scaled bfloat16": q in [-256, 256], all of which bfloat16 has.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .blocks import INT4
from .panel import SCALED_BFLOAT16, is_scaled

# The smallest first.
_TYPES = {"int8": np.dtype(np.int8), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_ALL_TYPES = {**_TYPES, SCALED_BFLOAT16: _TYPES["bfloat16"]}
_MOST = {"float16": float(np.finfo(np.float16).max), "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)}
_LEVELS = 127
_EXACT = {"int8": (-128, 127), SCALED_BFLOAT16: (-256, 256)}  # q of weights that are multiples of a scale
_SAMPLE = 8  # elements of a channel that rule most scales out
_TOGETHER = 512  # channels times levels that are tried on the samples at once
_FEW = 16  # channels or rows that rule most types out


class OutOfRangeError(ValueError):
    """Weights that a type does not have."""


def pack_together(head: np.ndarray, taps: np.ndarray, dtype: str, rows: int, together: int, offset: int) -> np.ndarray:
    """As `pack`, for products of `together` taps at a time; of integers, with inputs that are packed less `offset`."""
    narrow, scale = _narrowed(taps, dtype, axis=1)
    blocks, count, block = taps.shape
    if scale is not None:
        begin = np.int32(offset) * narrow.sum(axis=1, keepdims=True, dtype=np.int32)
        less = np.full((blocks, 1, block), offset, np.float32)
        head = np.concatenate([head, scale, begin.view(np.float32), less], axis=1)
    lanes = narrow.reshape(blocks, count // together, together, block).swapaxes(2, 3)
    return _panel(head, lanes.reshape(taps.shape), rows)


def pack(head: np.ndarray, taps: np.ndarray, dtype: str, rows: int) -> np.ndarray:
    """A panel, dtype[blocks, rows, block], of its float32 rows [blocks, head, block] and weights [blocks, taps, block].

    Every lane of a block is an output channel. Weights are in the range of the type.
    """
    narrow, scale = _narrowed(taps, dtype, axis=1)
    head = np.concatenate([head, scale], axis=1) if scale is not None else head
    return _panel(head, narrow, rows)


def _panel(head: np.ndarray, narrow: np.ndarray, rows: int) -> np.ndarray:
    """Rows of 32 bits, then those of weights, then zeros."""
    blocks, taps, block = narrow.shape
    bits = np.ascontiguousarray(head, np.float32).view(narrow.dtype).reshape(blocks, -1, block)
    panel = np.zeros((blocks, rows, block), narrow.dtype)
    panel[:, : bits.shape[1]] = bits
    panel[:, bits.shape[1] : bits.shape[1] + taps] = narrow
    return panel


def pack_rows(table: np.ndarray, dtype: str) -> np.ndarray:
    """A float32 table [rows, width] in a narrow type; rows of multiples of a scale begin with its bits."""
    narrow, scale = _narrowed(table, dtype, axis=1)
    return narrow if scale is None else np.concatenate([scale.view(narrow.dtype), narrow], axis=1)


def rounded(weights: np.ndarray, dtype: str) -> np.ndarray:
    """float32 weights [channels, …] rounded to the values of a narrow type."""
    narrow, scale = _narrowed(weights, dtype, axis=tuple(range(1, weights.ndim)))
    wide = narrow.astype(np.float32)
    return wide if scale is None else wide * scale


def integers(weights: np.ndarray, dtype: str) -> np.ndarray:
    """float32 weights [channels, taps] without the scales of their channels, in float32."""
    return _narrowed(weights, dtype, axis=1)[0].astype(np.float32)


def scales(weights: np.ndarray, dtype: str) -> np.ndarray:
    """The scales [channels, 1] of float32 weights [channels, taps]."""
    scale = _narrowed(weights, dtype, axis=1)[1]
    assert scale is not None, f"{dtype} has no scales"
    return scale


def require_fits(weights: np.ndarray, dtype: str) -> None:
    """OutOfRangeError if float32 weights are beyond the range of a narrow type."""
    if dtype in ("int8", INT4):
        if not np.all(np.isfinite(weights)):
            raise OutOfRangeError(f"weights that are infinite or no numbers do not fit {dtype}")
        return
    most = float(np.max(np.abs(weights), initial=0, where=np.isfinite(weights)))
    with np.errstate(over="ignore"):
        if np.isinf(_TYPES[dtype].type(most)):
            raise OutOfRangeError(f"weights up to {most:g} do not fit {dtype}, whose largest is {_MOST[dtype]:g}")


def natural(weights: np.ndarray, axis: int | None, *, counted: bool = False) -> str:
    """The type that keeps float32 weights to the last bit in the fewest bytes.

    `axis` is that of the channels; None: no axis is. `counted` weights are integers times a scale.
    """
    channels_known = axis is not None
    channels_first = np.moveaxis(weights, axis or 0, 0)
    by_channel = channels_first.reshape(len(channels_first), -1)
    if not by_channel.size:
        return "float32"
    kinds = [*_TYPES, *([SCALED_BFLOAT16] if counted else [])]
    for dtype in kinds if channels_known else ("float16", "bfloat16"):
        if all(_loses_nothing(part, dtype) for part in (by_channel[:_FEW], by_channel)):
            return dtype
    return "float32"


def _loses_nothing(by_channel: np.ndarray, dtype: str) -> bool:
    if not np.all(np.isfinite(by_channel)):
        return False
    if is_scaled(dtype):
        return bool(np.all(_exact_scales(by_channel, *_EXACT[dtype]) > 0))
    with np.errstate(over="ignore"):
        return np.array_equal(by_channel.astype(_TYPES[dtype]).astype(np.float32), by_channel)


def _exact_scales(by_channel: np.ndarray, low: int, high: int) -> np.ndarray:
    """For every channel the largest scale that all its weights are multiples of, by `low` to `high`; 0 where there is none."""
    largest = np.max(np.abs(by_channel), axis=1)
    scales = np.where(largest > 0, 0, 1).astype(np.float32)
    sample = by_channel[:, :: max(1, by_channel.shape[1] // _SAMPLE)]
    levels = np.arange(1, max(-low, high) + 1, dtype=np.float32)
    together = max(1, _TOGETHER // max(1, len(largest)))
    for first in range(0, len(levels), together):
        quotients = (largest / levels[first : first + together, None]).astype(np.float32)
        near = quotients, np.nextafter(quotients, np.float32(0)), np.nextafter(quotients, np.float32(np.inf))
        tried = np.stack(near, axis=1).reshape(-1, len(largest))
        fit_sample = (tried > 0) & _are_multiples(sample, np.where(tried > 0, tried, np.float32(1)), low, high)
        if not np.any((scales == 0) & (tried > 0)):
            return scales
        for row in np.flatnonzero(fit_sample.any(axis=1)):
            scale = tried[row]
            (left,) = np.nonzero((scales == 0) & fit_sample[row])
            if len(left):
                left = left[_are_multiples(by_channel[left], scale[left], low, high)]
                scales[left] = scale[left]
    return scales


def _are_multiples(weights: np.ndarray, scale: np.ndarray, low: int, high: int) -> np.ndarray:
    """For each channel whether rounding to multiples of its scale, or of several each, by `low` to `high`, changes nothing."""
    counts = np.rint(weights / scale[..., None])
    inside = (counts >= low) & (counts <= high)
    return np.all(inside & (counts * scale[..., None] == weights), axis=-1)


def _narrowed(weights: np.ndarray, dtype: str, axis) -> tuple[np.ndarray, np.ndarray | None]:
    """The weights in the type; and the scales, if any, float32, one for all along `axis`."""
    if not is_scaled(dtype):
        with np.errstate(over="ignore"):
            return weights.astype(_TYPES[dtype]), None
    largest = np.max(np.abs(weights), axis=axis, keepdims=True)
    channels_first = np.moveaxis(weights, axis, -1) if isinstance(axis, int) else weights
    exact = _exact_scales(channels_first.reshape(largest.size, -1), *_EXACT[dtype]).reshape(largest.shape)
    scale = np.where(exact > 0, exact, (largest / np.float32(_LEVELS)).astype(np.float32))
    # Of subnormal weights the scale may have lost digits, or all of them.
    scale = np.where(scale > 0, scale, np.float32(1))
    lowest, highest = _EXACT[dtype]
    low, high = np.where(exact > 0, lowest, -_LEVELS), np.where(exact > 0, highest, _LEVELS)
    return np.clip(np.rint(weights / scale), low, high).astype(_ALL_TYPES[dtype]), scale
