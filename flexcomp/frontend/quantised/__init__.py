"""Quantised networks, in both of their formats, as one: what reads and makes 8 bits stands between DequantizeLinear and
QuantizeLinear (`definitions.py`); then scales are moved behind sums, which so are of integers (`integers.py`).
"""

from __future__ import annotations

import onnx

from flexcomp.frontend.quantised.definitions import define_quantised, defined
from flexcomp.frontend.quantised.integer_products import KINDS, multiply_in_float
from flexcomp.frontend.quantised.integers import move_scales


def compute_on_integers(model: onnx.ModelProto) -> None:
    """Sums of quantised products are sums of integers, in float32. Changes `model`. Raises UnsupportedModelError."""
    multiply_in_float(model)
    move_scales(model)


def quantised_operators() -> list[onnx.NodeProto]:
    """A node of each operator that these two replace."""
    return [*defined(), *(onnx.NodeProto(op_type=kind) for kind in KINDS)]


__all__ = ["compute_on_integers", "define_quantised", "quantised_operators"]
