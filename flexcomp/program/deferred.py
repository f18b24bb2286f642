"""An array that is made while writing, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .digest import new_digest

# A piece is made of whole rows, as many as there are in so many bytes: few enough for the caches.
_PIECE_NBYTES = 1 << 20

Rows = Callable[[int, int], np.ndarray]  # (first, end) → those rows


@dataclass(frozen=True, eq=False)
class Deferred:
    """The facts of an array before its making, and the way to make it, any number of times."""

    shape: tuple[int, ...]
    dtype: np.dtype
    count: int  # rows: equal parts, one after the other
    begin: Callable[[], Rows]  # once for each making: values shared by its rows live as long as the result

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> Deferred:
        """The same bytes with another shape."""
        return replace(self, shape=tuple(shape))

    def pieces(self) -> Iterator[np.ndarray]:
        """The array's elements in order, in pieces; each is let go before the next one is made, if the caller does."""
        rows = self.begin()
        step = max(1, _PIECE_NBYTES * self.count // self.nbytes)
        for first in range(0, self.count, step):
            yield rows(first, min(first + step, self.count))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        whole = np.concatenate([np.ascontiguousarray(piece).reshape(-1) for piece in self.pieces()]).reshape(self.shape)
        return whole if dtype is None else whole.astype(dtype, copy=False)


Array = np.ndarray | Deferred


def identity(array: Array) -> tuple:
    """Equal for arrays that are the same bytes in the same order, maybe in other shapes; while both exist."""
    if isinstance(array, Deferred):
        return (array.begin, array.nbytes)
    return (array.ctypes.data, array.nbytes) if array.flags.c_contiguous else (array.ctypes.data, array.shape, array.strides)


def pieces(array: Array) -> Iterator[np.ndarray]:
    """The elements of any array in order, in pieces."""
    return array.pieces() if isinstance(array, Deferred) else iter((array,))


def content_digest(array: Array) -> bytes:
    """A digest of the elements' bytes in order, whatever the shape; deferred arrays are made for it."""
    digest = new_digest()
    for piece in pieces(array):
        digest.update(np.ascontiguousarray(piece).reshape(-1).view("u1"))
    return digest.digest()
