"""A state in 8 bits, by its own range, as ONNX Runtime's DynamicQuantizeLSTM quantises it before every step."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import spread, vector
from ..tiles.rows import cover, reduce_row

_MOST = 255.0  # of unsigned 8 bits


@dataclass(frozen=True)
class Quantised:
    """How integers stand for a state: scale · (integer - zero point)."""

    scale: tirx.Expr  # float32
    zero: tirx.Expr  # float32, an integer from 0 to 255


def quantised(work: tirx.Buffer, at, size: int, width: int) -> Quantised:
    """How `size` numbers from `at` on are quantised: as DynamicQuantizeLinear does, by the range of the numbers and 0."""
    row, none = cover(size, width), tirx.const(0.0, "float32")

    def number(start, _overlaps: bool):
        return work[vector(at + start, row.lanes)]

    low = T.bind(reduce_row(row, number, tirx.min, 0.0, is_idempotent=True))
    high = T.bind(reduce_row(row, number, tirx.max, 0.0, is_idempotent=True))
    scale = T.bind(tirx.Select(high == low, tirx.const(1.0, "float32"), (high - low) / tirx.const(_MOST, "float32")))
    zero = T.bind(tirx.nearbyint(tirx.max(none, tirx.min(none - low / scale, tirx.const(_MOST, "float32")))))
    return Quantised(scale, zero)


def quantise(given: Quantised, numbers: tirx.Expr, lanes: int) -> tirx.Expr:
    """The integers that stand for a vector of numbers, less the zero point, as float32."""
    counted = tirx.nearbyint(numbers / spread(given.scale, lanes))
    least = spread(tirx.const(0.0, "float32") - given.zero, lanes)
    most = spread(tirx.const(_MOST, "float32") - given.zero, lanes)
    return tirx.max(least, tirx.min(counted, most))
