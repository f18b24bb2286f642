"""GatherBlockQuantized of com.microsoft: rows of a table of a few bits, which has a scale for each block."""

from __future__ import annotations

import math

import numpy as np

from flexcomp.deferred import converted
from flexcomp.frontend.definition import Definition
from flexcomp.frontend.quantised.four_bits import rows_of_numbers, unpacked
from flexcomp.frontend.quantised.weights_in_blocks import SCALES


def define(made: Definition) -> None:
    """GatherBlockQuantized(data, indices, scales, zero_points): data has 4 or 8 bits, a scale for each block along an axis."""
    axis, along, size = made.take("gather_axis", 0), made.take("quantize_axis", 1), made.take("block_size", 128)
    bits = made.take("bits", 4)
    data, scales, zeros = made.weight(0), made.weight(2), made.value(3)
    if data is None or scales is None or (made.input(3) and zeros is None) or scales.dtype not in SCALES:
        raise made.refuse(
            "its data, scales (float32 or float16) and zero points must be constants of the model: export it with them"
        )
    if data.dtype == np.uint8:
        if bits not in (4, 8):
            raise made.refuse(f"its data has {bits} bits, and 4 or 8 can be compiled: quantise the table again")
        rows, width = math.prod(data.shape[:-1]), data.shape[-1] * 8 // bits
        data = rows_of_numbers(data, rows, width, bits).reshape((*data.shape[:-1], width))
        zeros = None if zeros is None else unpacked(zeros, bits)
    elif data.dtype.name not in ("int4", "uint4"):
        raise made.refuse(f"its data holds {data.dtype.name}, and int4, uint4 and uint8 can be compiled: quantise it again")
    else:
        kind = np.uint8 if data.dtype.name == "uint4" else np.int8
        data, zeros, bits = converted(data, kind), None if zeros is None else zeros.astype(kind), 0
    if size < 1 or not -data.ndim <= along < data.ndim:
        raise made.refuse(f"blocks of {size} along axis {along} of {list(data.shape)} are none: quantise the table again")
    along %= data.ndim
    shape = tuple(-(-n // size) if i == along else n for i, n in enumerate(data.shape))
    if zeros is None and bits:  # of uint8 the middle
        zeros = np.full(shape, 1 << (bits - 1), np.uint8)
    elif zeros is not None:
        zeros = zeros[tuple(map(slice, shape))]  # of 4 bits, an odd number is padded
    for what, given in (("scales", scales), ("zero points", zeros)):
        if given is not None and given.shape != shape:
            raise made.refuse(
                f"its {what} are {list(given.shape)}, and blocks of {size} along axis {along} of {list(data.shape)} have "
                f"{list(shape)}: quantise the table again"
            )
    given = [made.constant(one) for one in (data, scales, *([] if zeros is None else [zeros]))]
    real = made.emit("DequantizeLinear", given, axis=along, block_size=size)
    made.result("Gather", [real, made.input(1)], axis=axis)
