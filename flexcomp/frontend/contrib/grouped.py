"""Attention of decoders over caches, with heads in groups, as the model builder of ONNX Runtime GenAI writes it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from flexcomp.frontend.contrib.rotary import rotated, rows_of
from flexcomp.frontend.definition import Definition

OPSET = 24  # of TensorScatter, and of an Attention that is told how many of its keys are valid
_NEUTRAL = {"smooth_softmax": 0, "qk_output": 0, "kv_cache_bit_width": 0}
_LENGTHS, _LAST_KNOWN = 5, 8


def define(made: Definition) -> None:
    """GroupQueryAttention(query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache).

    Rows of `past` [1, heads, capacity, width] after the valid ones are room for new ones, so `present` has its shape. ONNX
    Runtime gives the same as long as there is room.
    """
    heads, shared = made.attributes.get("num_heads"), made.take("kv_num_heads")
    for name, value in _NEUTRAL.items():
        if made.take(name, value) != value:
            raise made.refuse(f"its {name} is not {value}, and only that can be compiled")
    if any(made.input(i) for i in range(_LAST_KNOWN + 1, len(made.node.input))):
        raise made.refuse("it has positions, a bias or sinks of its own: export it without")
    batch, length, _ = made.shape(0)
    if batch != 1 or not made.input(3) or made.shape(_LENGTHS) not in ((1,), (1, 1)):
        raise made.refuse(f"it is for {batch} sequences at once, or has no cache: export it for one sequence, with a cache")
    width = made.shape(3)[3]
    query, key, value = (made.input(i) for i in range(3))
    if not key:
        query, key, value = made.split(query, [heads * width, shared * width, shared * width], -1)
    valid = made.emit("Add", [made.emit("Cast", [made.input(_LENGTHS)], to=TensorProto.INT64), made.constant(np.int64([1]))])
    valid = made.reshape(valid, [1])
    start = made.emit("Sub", [valid, made.constant(np.int64([length]))])
    query, key, value = (
        made.reshape(one, [0, 0, count, width]) for one, count in ((query, heads), (key, shared), (value, shared))
    )
    if made.take("do_rotary", 0):
        pairs = made.shape(7)[1]
        where = made.emit("Add", [made.reshape(start, [1, 1]), made.constant(np.arange(length, dtype=np.int64)[None])])
        tables = [rows_of(made, made.input(i), where) for i in (7, 8)]
        interleaved = bool(made.take("rotary_interleaved", 0))
        query, key = (
            rotated(made, one, *tables, pairs, interleaved=interleaved, rest=width - 2 * pairs) for one in (query, key)
        )
    query, key, value = (made.emit("Transpose", [one], perm=[0, 2, 1, 3]) for one in (query, key, value))
    caches = [
        made.emit("TensorScatter", [made.input(i), rows, start], made.output(i - 2) or None, axis=2)
        for i, rows in ((3, key), (4, value))
    ]
    scale, cap, window = made.take("scale", 0.0) or width**-0.5, made.take("softcap", 0.0), made.take("local_window_size", -1)
    if cap or window > 0:
        attended = _written_out(made, query, *caches, start, (length, made.shape(3)[2]), scale, cap, window)
    else:
        attended = made.emit("Attention", [query, *caches, "", "", "", valid], is_causal=1, scale=scale)
    made.reshape(made.emit("Transpose", [attended], perm=[0, 2, 1, 3]), [0, 0, heads * width], made.output(0))


def _written_out(
    made: Definition, query: str, key: str, value: str, start: str, places: tuple[int, int], scale: float, cap: float, window: int
) -> str:
    """Attention with scores below `cap`, or over a `window` of the last keys, which ONNX's operator over caches lacks."""
    queries, keys = places
    key, value = (_repeated(made, one) for one in (key, value))
    scores = made.emit("MatMul", [query, made.emit("Transpose", [key], perm=[0, 1, 3, 2])])
    scores = made.emit("Mul", [scores, made.constant(np.float32(scale))])
    if cap:
        limit = made.constant(np.float32(cap))
        scores = made.emit("Mul", [made.emit("Tanh", [made.emit("Div", [scores, limit])]), limit])
    column = made.constant(np.arange(keys, dtype=np.int64)[None])
    row = made.emit("Add", [start, made.constant(np.arange(queries, dtype=np.int64)[:, None])])
    seen = made.emit("LessOrEqual", [column, row])
    if window > 0:
        first = made.emit("Sub", [row, made.constant(np.int64(window))])
        seen = made.emit("And", [seen, made.emit("Greater", [column, first])])
    scores = made.emit("Where", [seen, scores, made.constant(np.float32(-np.inf))])
    return made.emit("MatMul", [made.emit("Softmax", [scores], axis=-1), value])


def _repeated(made: Definition, cache: str) -> str:
    """Keys or values of all heads of a group: [1, heads, places, width]."""
    heads, (_, shared, keys, width) = made.attributes["num_heads"], made.shape(3)
    if heads == shared:
        return cache
    grown = made.emit("Expand", [made.unsqueezed(cache, 2), made.constant(np.int64([1, shared, heads // shared, keys, width]))])
    return made.reshape(grown, [1, heads, keys, width])
