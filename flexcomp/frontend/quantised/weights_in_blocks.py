"""MatMulNBits of com.microsoft: a product with weights of a few bits, which have a scale for each block of a column."""

from __future__ import annotations

import numpy as np

from flexcomp.frontend.definition import Definition
from flexcomp.frontend.quantised.four_bits import rows_of_numbers

SCALES = (np.float32, np.float16)
_SIZES = (16, 32, 64, 128, 256)


def define(made: Definition) -> None:
    """MatMulNBits(A, B, scales, zero_points, g_idx, bias): B has 4 or 8 bits, a scale for each block of a column.

    With any accuracy_level it is computed as with 1, in float32.
    """
    rows, columns, size = (made.take(name) for name in ("N", "K", "block_size"))
    bits = made.take("bits", 4)
    packed, scales, zeros = (made.weight(i) for i in (1, 2, 3))
    if made.input(4) or bits not in (4, 8):
        raise made.refuse("it has g_idx, or weights of other than 4 or 8 bits; export the network with float32 weights")
    if packed is None or scales is None or (made.input(3) and zeros is None) or scales.dtype not in SCALES:
        raise made.refuse(
            "its weights, scales (float32 or float16) and zero points must be constants of the model: export it with them"
        )
    if zeros is not None and zeros.dtype != np.uint8:
        raise made.refuse("its zero points are no integers; export the network with zero points of its weights' bits")
    blocks = -(-columns // size)
    if size not in _SIZES:
        raise made.refuse(f"its block_size is {size}, and {', '.join(map(str, _SIZES))} can be compiled: quantise again")
    expected = {
        "weights": (packed, rows * blocks * size * bits // 8),
        "scales": (scales, rows * blocks),
        "zero points": (zeros, rows * -(-blocks * bits // 8)),
    }
    for what, (given, wanted) in expected.items():
        if given is not None and given.size != wanted:
            raise made.refuse(
                f"it has {given.size} {what} where {rows} channels of {columns} inputs in blocks of {size} have {wanted}: "
                "quantise again"
            )
    weights = rows_of_numbers(packed, rows, columns, bits)
    middle = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    zero = middle if zeros is None else rows_of_numbers(zeros, rows, blocks, bits)
    given = [made.constant(one) for one in (weights, scales.reshape((rows, blocks)), zero)]
    real = made.emit("DequantizeLinear", given, axis=1, block_size=size)
    made.product(made.input(0), made.emit("Transpose", [real], perm=[1, 0]), 5)
