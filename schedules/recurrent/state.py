"""A state in 8 bits, by its own range, as ONNX Runtime's DynamicQuantizeLSTM quantises it before every step."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import spread, vector
from ..tiles.rows import cover, for_each_vector, reduce_row

_MOST = 255.0  # of unsigned 8 bits


def quantise(work: tirx.Buffer, at, to, size: int, width: int) -> tirx.Expr:
    """Write the integers that stand for `size` numbers from `at` on to `to`, as float32 without their zero point; their scale.

    DynamicQuantizeLinear and DequantizeLinear with a scale of 1: the range is that of the numbers and 0.
    """
    row, none = cover(size, width), tirx.const(0.0, "float32")

    def number(start, _overlaps: bool):
        return work[vector(at + start, row.lanes)]

    low = T.bind(reduce_row(row, number, tirx.min, 0.0, is_idempotent=True))
    high = T.bind(reduce_row(row, number, tirx.max, 0.0, is_idempotent=True))
    scale = T.bind(tirx.Select(high == low, tirx.const(1.0, "float32"), (high - low) / tirx.const(_MOST, "float32")))
    zero = T.bind(tirx.nearbyint(tirx.max(none, tirx.min(none - low / scale, tirx.const(_MOST, "float32")))))

    def store(start, _overlaps: bool) -> None:
        counted = tirx.nearbyint(number(start, False) / spread(scale, row.lanes))
        least, most = spread(none - zero, row.lanes), spread(tirx.const(_MOST, "float32") - zero, row.lanes)
        T.buffer_store(work, tirx.max(least, tirx.min(counted, most)), [vector(to + start, row.lanes)])

    for_each_vector(row, store)
    return scale
