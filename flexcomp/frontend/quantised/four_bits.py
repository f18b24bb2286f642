"""Weights of 4 bits, two in a byte, as ones of 8."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

WIDENED = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """uint8[…, numbers]: of 4 bits, the lower half of a byte comes first."""
    return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def widened(packed: np.ndarray, count: int, kind: type) -> np.ndarray:
    """The first `count` numbers of 4 bits, with a sign for np.int8."""
    numbers = unpacked(packed, 4)[:count]
    return (numbers ^ 8).view(np.int8) - np.int8(8) if kind is np.int8 else numbers
