"""An array that is made when it is needed, a few rows at a time: of bytes in a file, or of another array.

What was found out about its contents is known to all who hold it: networks of one model in several shapes hold the same arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeVar

import numpy as np

# A piece is made of whole rows, as many as there are in so many bytes: few enough for the caches.
_PIECE_NBYTES = 1 << 20
DIGEST_NBYTES = 16  # of BLAKE2b

Rows = Callable[[int, int], np.ndarray]  # (first, end) → those rows
Fact = TypeVar("Fact")


@dataclass(frozen=True, eq=False)
class Deferred:
    """The facts of an array before its making, and the way to make it, any number of times."""

    shape: tuple[int, ...]
    dtype: np.dtype
    count: int  # rows: equal parts, one after the other
    begin: Callable[[], Rows]  # once for each making: values shared by its rows live as long as the result
    _facts: dict[Hashable, object] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def once(self, find: Callable[[Deferred], Fact]) -> Fact:
        """A fact of the array's elements in order, whatever the shape; equal functions are called once."""
        if find not in self._facts:
            self._facts[find] = find(self)
        return self._facts[find]  # type: ignore[return-value]

    def reshape(self, shape: Sequence[int]) -> Deferred:
        """The same bytes with another shape."""
        return replace(self, shape=tuple(shape))

    def view(self, dtype: np.dtype | type) -> Deferred:
        """The same bytes as elements of another type, along one axis; they are a whole number of these."""
        kind, own = np.dtype(dtype), self.dtype.itemsize

        def begin() -> Rows:
            elements, wide = self.elements(), kind.itemsize
            return lambda first, end: elements(first * wide // own, end * wide // own).view(kind)

        size = self.nbytes // kind.itemsize
        return Deferred((size,), kind, size, begin)

    def elements(self) -> Rows:
        """Begin a making: (first, end) → those elements in order."""
        rows, per_row = self.begin(), max(1, self.size // max(self.count, 1))

        def elements(first: int, end: int) -> np.ndarray:
            begin = first // per_row
            made = np.ascontiguousarray(rows(begin, -(-end // per_row))).reshape(-1)
            return made[first - begin * per_row : end - begin * per_row]

        return elements

    def slices(self) -> Rows:
        """Begin a making: (first, end) → those indices of the first axis."""
        elements, per_index = self.elements(), math.prod(self.shape[1:])
        return lambda first, end: elements(first * per_index, end * per_index).reshape(end - first, *self.shape[1:])

    def pieces(self) -> Iterator[np.ndarray]:
        """The array's elements in order, in pieces; each is let go before the next one is made, if the caller does."""
        rows = self.begin()
        step = max(1, _PIECE_NBYTES * self.count // self.nbytes)
        for first in range(0, self.count, step):
            yield rows(first, min(first + step, self.count))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        whole, at = np.empty(self.size, self.dtype), 0
        for piece in self.pieces():
            whole[at : at + piece.size] = piece.reshape(-1)
            at += piece.size
        return whole.reshape(self.shape) if dtype is None else whole.reshape(self.shape).astype(dtype, copy=False)


Array = np.ndarray | Deferred


def held(array: np.ndarray) -> Deferred:
    """An array in memory, as one that is made of it."""
    flat = array.reshape(-1)
    return Deferred(array.shape, array.dtype, flat.size, lambda: lambda first, end: flat[first:end])


def converted(array: Array, dtype: np.dtype | type) -> Array:
    """The elements as another type."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype)
    return array.once(_Converted(np.dtype(dtype))).reshape(array.shape)


@dataclass(frozen=True)
class _Converted:
    dtype: np.dtype

    def __call__(self, array: Deferred) -> Deferred:
        def begin() -> Rows:
            rows = array.begin()
            return lambda first, end: rows(first, end).astype(self.dtype)

        return Deferred(array.shape, self.dtype, array.count, begin)


def identity(array: Array) -> tuple:
    """Equal for arrays that are the same bytes in the same order, maybe in other shapes; while both exist."""
    if isinstance(array, Deferred):
        return (array.begin, array.nbytes)
    return (array.ctypes.data, array.nbytes) if array.flags.c_contiguous else (array.ctypes.data, array.shape, array.strides)


def told_by(array: Array) -> tuple:
    """Equal only for equal arrays of the same shape and type, while both exist: deferred ones are not made for it."""
    told = id(array.begin) if isinstance(array, Deferred) else content_digest(array)
    return (tuple(array.shape), str(array.dtype), told)


def elements(array: Array) -> Rows:
    """Begin a making of any array: (first, end) → those elements in order."""
    if isinstance(array, Deferred):
        return array.elements()
    flat = np.ascontiguousarray(array).reshape(-1)
    return lambda first, end: flat[first:end]


def pieces(array: Array) -> Iterator[np.ndarray]:
    """The elements of any array in order, in pieces."""
    return array.pieces() if isinstance(array, Deferred) else iter((array,))


def new_digest() -> blake2b:
    """A digest of no bytes yet."""
    return blake2b(digest_size=DIGEST_NBYTES)


def fact(find: Callable[[Array], Fact], array: Array) -> Fact:
    """A fact of any array's elements in order, as of `Deferred.once`."""
    return array.once(find) if isinstance(array, Deferred) else find(array)


def content_digest(array: Array) -> bytes:
    """A digest of the elements' bytes in order, whatever the shape; deferred arrays are made for it, once."""
    return fact(_digest, array)


def _digest(array: Array) -> bytes:
    digest = new_digest()
    for piece in pieces(array):
        digest.update(np.ascontiguousarray(piece).reshape(-1).view("u1"))
    return digest.digest()
