"""Rotations of pairs by a position (RoFormer, section 3.2), by tables of cosines and sines."""

from __future__ import annotations

import numpy as np

from flexcomp.frontend.definition import Definition


def rotated(made: Definition, data: str, cosines: str, sines: str, pairs: int, *, interleaved: bool, rest: int) -> str:
    """`data` [batch, positions, heads, 2 · pairs + rest], of which the first 2 · pairs numbers are turned.

    `cosines` and `sines` [batch or 1, positions, 1, pairs]. A pair is two neighbours, or one of each half.
    """
    sizes = [2 * pairs] + [rest] * bool(rest)
    turned, *kept = made.split(data, sizes, -1) if rest else [data]
    if interleaved:
        grid = made.reshape(turned, [0, 0, 0, pairs, 2])
        first, second = (made.reshape(part, [0, 0, 0, pairs]) for part in made.split(grid, [1, 1], -1))
    else:
        first, second = made.split(turned, [pairs, pairs], -1)
    real = made.emit("Sub", [made.emit("Mul", [first, cosines]), made.emit("Mul", [second, sines])])
    imaginary = made.emit("Add", [made.emit("Mul", [second, cosines]), made.emit("Mul", [first, sines])])
    if interleaved:
        parts = [made.reshape(part, [0, 0, 0, pairs, 1]) for part in (real, imaginary)]
        whole = made.reshape(made.emit("Concat", parts, axis=-1), [0, 0, 0, 2 * pairs])
    else:
        whole = made.emit("Concat", [real, imaginary], axis=-1)
    return made.emit("Concat", [whole, *kept], axis=-1) if kept else whole


def rows_of(made: Definition, table: str, places: str) -> str:
    """Rows [batch or 1, positions, 1, pairs] of a table, at `places` [batch or 1, positions]."""
    return made.unsqueezed(made.emit("Gather", [table, places]), 2)


def define(made: Definition) -> None:
    """RotaryEmbedding(input, position_ids, cos_cache, sin_cache).

    `input` is [batch, positions, heads · width] or [batch, heads, positions, width].
    """
    if made.take("is_packed_batching", 0):
        raise made.refuse("its batches are packed: export it with one length for all of a batch")
    made.take("scale")  # which ONNX Runtime reads in no implementation for processors
    shape, places, (_, table) = made.shape(0), made.shape(1), made.shape(2)
    heads, width = made.take("num_heads", 0), made.take("rotary_embedding_dim", 0)
    whole = shape[-1] // heads if width and heads and len(shape) == 3 else 2 * table if len(shape) == 3 else shape[-1]
    interleaved = bool(made.take("interleaved", 0))
    is_second = len(shape) == 4
    length = shape[2] if is_second else shape[1]
    data = made.emit("Transpose", [made.input(0)], perm=[0, 2, 1, 3]) if is_second else made.input(0)
    data = made.reshape(data, [0, 0, -1, whole])
    where = made.input(1)
    if places in ((), (1,)):  # where the first position is
        steps = made.constant(np.arange(length, dtype=np.int64)[None])
        where = made.emit("Add", [made.reshape(where, [1, 1]), steps])
    pairs = (width or whole) // 2
    turned = rotated(
        made, data, rows_of(made, made.input(2), where), rows_of(made, made.input(3), where), pairs,
        interleaved=interleaved, rest=whole - 2 * pairs,
    )  # fmt: skip
    if is_second:
        made.emit("Transpose", [turned], made.output(0), perm=[0, 2, 1, 3])
    else:
        made.reshape(turned, [0, 0, shape[-1]], made.output(0))
