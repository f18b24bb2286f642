"""Tensors for graphs: types, extents and values, odd ones among them."""

from __future__ import annotations

import math
import random

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

# Element types by how often they are drawn.
TYPES = {
    TensorProto.FLOAT: 60, TensorProto.INT64: 9, TensorProto.INT32: 7, TensorProto.BOOL: 5, TensorProto.FLOAT16: 5,
    TensorProto.DOUBLE: 5, TensorProto.UINT8: 4, TensorProto.INT8: 4, TensorProto.BFLOAT16: 2, TensorProto.INT16: 1,
    TensorProto.UINT16: 1, TensorProto.UINT32: 1, TensorProto.UINT64: 1, TensorProto.FLOAT8E4M3FN: 1, TensorProto.STRING: 1,
}  # fmt: skip
_EXTENTS = {1: 30, 2: 18, 3: 18, 4: 14, 5: 8, 0: 3, 7: 3, 8: 3, 16: 1, 17: 1, 33: 1}
_RANKS = {0: 6, 1: 16, 2: 24, 3: 22, 4: 22, 5: 7, 6: 3}
_MOST = 1 << 24  # elements of a tensor
_ODD = [0.0, -0.0, 1.0, -1.0, 1e-30, -1e-40, 1e30, 65504.0, 0.5, 1.5, 2.5, -0.5, 127.5, np.pi]
_WILD = [np.nan, np.inf, -np.inf, 3.4e38]


def drawn(rng: random.Random, weights: dict):
    """A key, by its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def extent(rng: random.Random) -> int:
    return drawn(rng, _EXTENTS)


def shape(rng: random.Random, rank: int | None = None) -> tuple[int, ...]:
    """Extents of a tensor that is not large."""
    extents = [extent(rng) for _ in range(drawn(rng, _RANKS) if rank is None else rank)]
    while np.prod([e or 1 for e in extents]) > 4096:
        extents[extents.index(max(extents))] = 2
    return tuple(extents)


def tensor(rng: random.Random, kind: int, of: tuple[int, ...], low: int | None = None, high: int | None = None) -> np.ndarray:
    """Values of an element type; integers between `low` and `high`, where they are given. Raises ValueError beyond _MOST."""
    if math.prod(of) > _MOST:
        raise ValueError(f"{of}")
    numbers = np.random.default_rng(rng.getrandbits(32))
    if kind == TensorProto.STRING:
        return np.full(of, "text", object)
    numpy_type = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    if numpy_type.kind == "b":
        return numbers.random(of) < 0.5
    if numpy_type.kind in "iu":
        bounds = np.iinfo(numpy_type)
        style = rng.random()
        if low is None:
            low, high = (0, 4) if style < 0.6 else (-8, 8) if style < 0.9 else (bounds.min, bounds.max)
        return numbers.integers(max(low, bounds.min), min(high, bounds.max), of, numpy_type, endpoint=True)
    values = numbers.standard_normal(of) * rng.choice([1.0, 1.0, 1.0, 0.1, 3.0, 30.0])
    style = rng.random()
    if style < 0.1:
        values = np.abs(values)
    elif style < 0.18:
        values = np.round(values * 2) / 2
    odd = _ODD if style > 0.85 else _WILD if 0.82 < style < 0.85 else ()
    if odd and values.size:
        flat = values.reshape(-1)
        for _ in range(rng.randint(1, 3)):
            flat[rng.randrange(flat.size)] = rng.choice(odd)
    with np.errstate(over="ignore"):
        return values.astype(numpy_type)


def is_float(kind: int) -> bool:
    return kind in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def narrow(array: np.ndarray) -> bool:
    """Of a type that NumPy does not know itself."""
    return array.dtype.type.__module__.startswith(ml_dtypes.__name__)
