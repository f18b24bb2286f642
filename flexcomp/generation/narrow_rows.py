"""Keys and values of an encoder's result as states hold them: in float16, or in int8 with a scale after each row of a head.

The layout is that of `schedules/tiles/byte_rows.py`, in which kernels read rows.
"""

from __future__ import annotations

import numpy as np

from flexcomp.runtime import TensorInfo

_MOST = np.float32(127)  # of a number in int8
_WORD = 4  # bytes of a scale; a row's numbers fill whole words


def stored_shape(shape: tuple[int, ...], port: TensorInfo) -> tuple[int, ...]:
    """The shape of rows of numbers in a state; a state's own bytes have their shape."""
    if port.dtype != "int8" or shape == port.shape or not shape:
        return shape
    return (*shape[:-1], -(-shape[-1] // _WORD) * _WORD + _WORD)


def as_stored(array: np.ndarray, port: TensorInfo) -> np.ndarray:
    """Rows of numbers as the state holds them; what has its type stays."""
    array = np.asarray(array)
    if port.dtype != "int8" or array.dtype == np.int8:
        return array.astype(port.array_dtype) if port.dtype == "float16" else array
    depth = array.shape[-1]
    numbers = array.astype(np.float32)
    top = np.abs(numbers).max(axis=-1, keepdims=True)
    rounded = np.rint(numbers * np.divide(_MOST, top, out=np.zeros_like(top), where=top > 0))
    made = np.zeros(port.shape, np.int8)
    made[..., :depth] = rounded
    made[..., -_WORD:] = (top / _MOST).view(np.int8)
    return made
