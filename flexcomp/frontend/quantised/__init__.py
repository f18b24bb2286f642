"""Quantised networks, in both of their formats, as one: what reads and makes 8 bits stands between DequantizeLinear and
QuantizeLinear (`definitions.py`); then scales are moved behind sums, which so are of integers (`integers.py`).
"""

from __future__ import annotations

import onnx

from flexcomp.frontend.quantised.definitions import OF_MICROSOFT, OF_ONNX, widen_four_bits
from flexcomp.frontend.quantised.integer_products import KINDS, multiply_in_float
from flexcomp.frontend.quantised.integers import move_scales


def compute_on_integers(model: onnx.ModelProto) -> None:
    """Sums of quantised products are sums of integers, in float32. Changes `model`. Raises UnsupportedModelError."""
    multiply_in_float(model)
    move_scales(model)


__all__ = ["KINDS", "OF_MICROSOFT", "OF_ONNX", "compute_on_integers", "widen_four_bits"]
