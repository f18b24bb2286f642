"""Attention of several heads, as ONNX Runtime's optimiser fuses it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from flexcomp.frontend.definition import Definition

_FILTERED = -10000.0  # what ONNX Runtime adds to scores that a mask rules out


def _heads(made: Definition, data: str, heads: int) -> str:
    """[batch, positions, heads · width] as [batch, heads, positions, width]."""
    return made.emit("Transpose", [made.reshape(data, [0, 0, heads, -1])], perm=[0, 2, 1, 3])


def _masked(made: Definition, i: int, queries: int, keys: int, value: float) -> str:
    """Input `i`, integers for keys that count, as a term of the scores [batch, heads, queries, keys]."""
    mask, shape = made.input(i), made.shape(i)
    if len(shape) == 1:  # how many keys of each batch count
        if shape != made.shape(0)[:1]:
            raise made.refuse("its sequences are packed, or begin later than at 0: give a mask of 0 and 1 for each key")
        steps = made.constant(np.arange(keys, dtype=np.int32)[None, None, None])
        chosen = made.emit("Less", [steps, made.reshape(made.emit("Cast", [mask], to=TensorProto.INT32), [-1, 1, 1, 1])])
    elif shape[-1] == keys and (len(shape) == 2 or shape[-2] == queries):
        axes = {2: [0, 1, 1, keys], 3: [0, 1, queries, keys], 4: [0, 0, queries, keys]}[len(shape)]
        chosen = made.reshape(mask, axes)
    else:
        raise made.refuse(f"its mask has the shape {list(shape)}, and {queries} queries meet {keys} keys")
    left = made.emit("Cast", [chosen], to=TensorProto.FLOAT)
    missing = made.emit("Sub", [made.constant(np.float32(1)), left])
    return made.emit("Mul", [missing, made.constant(np.float32(value))])


def _attended(
    made: Definition, query: str, key: str, value: str, terms: Sequence[str], scale: float, future: tuple[int, int] | None
) -> None:
    """The first result, [batch, positions, heads · width], of operands with heads second.

    `future` is the number of queries and of keys where no query sees keys after its own place, with the last ones aligned.
    """
    factor = made.constant(np.float32(scale))
    scores = made.emit("MatMul", [made.emit("Mul", [query, factor]), made.emit("Transpose", [key], perm=[0, 1, 3, 2])])
    for term in terms:
        scores = made.emit("Add", [scores, term])
    if future is not None:
        queries, keys = future
        seen = np.tril(np.ones((queries, keys), bool), keys - queries)
        lowest = made.constant(np.float32(np.finfo(np.float32).min))
        scores = made.emit("Where", [made.constant(seen), scores, lowest])
    product = made.emit("MatMul", [made.emit("Softmax", [scores], axis=-1), value])
    made.reshape(made.emit("Transpose", [product], perm=[0, 2, 1, 3]), [0, 0, -1], made.output(0))


def define(made: Definition) -> None:
    """Attention(input, weights, bias, mask_index, past, attention_bias) of com.microsoft: with the projections of its input."""
    heads = made.take("num_heads")
    if made.take("do_rotary", 0) or made.take("past_present_share_buffer", 0) or made.input(6):
        raise made.refuse("it turns its operands, or shares its cache: export the network without these optimisations")
    _, queries, _ = made.shape(0)
    width = made.shape(1)[1]
    sizes = list(made.take("qkv_hidden_sizes", ())) or [width // 3] * 3
    projected = made.emit("MatMul", [made.input(0), made.input(1)])
    if made.input(2):
        projected = made.emit("Add", [projected, made.input(2)])
    query, key, value = (_heads(made, part, heads) for part in made.split(projected, sizes, -1))
    past = made.shape(4)[3] if made.input(4) else 0
    if made.input(4):
        before = [made.reshape(half, list(made.shape(4)[1:])) for half in made.split(made.input(4), [1, 1], 0)]
        key, value = (made.emit("Concat", pair, axis=2) for pair in zip(before, (key, value), strict=True))
    if made.output(1):
        made.emit("Concat", [made.unsqueezed(part, 0) for part in (key, value)], made.output(1), axis=0)
    _finish(made, query, key, value, (queries, queries + past), mask=3, bias=5, width=sizes[0] // heads)


def _finish(
    made: Definition, query: str, key: str, value: str, places: tuple[int, int], *, mask: int, bias: int, width: int
) -> None:
    filtered = made.take("mask_filter_value", _FILTERED)
    terms = [_masked(made, mask, *places, filtered)] if made.input(mask) else []
    if made.input(bias):
        terms.append(made.input(bias))
    scale = made.take("scale", 0.0) or width**-0.5
    _attended(made, query, key, value, terms, scale, places if made.take("unidirectional", 0) else None)


def _unpacked(made: Definition) -> tuple[list[str], list[int], int]:
    """Query, key and value, [batch, positions, heads · width], with their last extents, and the number of keys."""
    if not made.input(1):  # [batch, positions, heads, 3, width] holds all
        _, keys, heads, _, width = made.shape(0)
        parts = made.split(made.input(0), [1, 1, 1], 3)
        return [made.reshape(part, [0, 0, heads * width]) for part in parts], [heads * width] * 3, keys
    if not made.input(2):  # [batch, keys, heads, 2, width] holds both
        _, keys, heads, _, width = made.shape(1)
        parts = made.split(made.input(1), [1, 1], 3)
        parts = [made.reshape(part, [0, 0, heads * width]) for part in parts]
        return [made.input(0), *parts], [heads * width] * 3, keys
    return [made.input(i) for i in range(3)], [made.shape(i)[-1] for i in range(3)], made.shape(1)[1]


def define_of_parts(made: Definition) -> None:
    """MultiHeadAttention(query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value) of com.microsoft."""
    heads, queries = made.take("num_heads"), made.shape(0)[1]
    if made.input(8) or made.input(9) or made.output(3):
        raise made.refuse("it shares its cache, or gives its scores: export the network without these optimisations")
    has_heads = bool(made.input(2)) and len(made.shape(1)) == 4
    if has_heads:  # keys and values are there from before, [batch, heads, keys, width]
        if made.input(3) or made.input(6):
            raise made.refuse("its keys have heads already, and a bias or a cache belongs to them: export it without")
        query, key, value = _heads(made, made.input(0), heads), made.input(1), made.input(2)
        width, keys = made.shape(0)[2] // heads, made.shape(1)[2]
    else:
        parts, sizes, keys = _unpacked(made)
        if made.input(3):
            parts = [made.emit("Add", pair) for pair in zip(parts, made.split(made.input(3), sizes, 0), strict=True)]
        query, key, value = (_heads(made, part, heads) for part in parts)
        width = sizes[0] // heads
    if made.input(6):
        key, value = (made.emit("Concat", [made.input(i), part], axis=2) for i, part in ((6, key), (7, value)))
        keys += made.shape(6)[2]
    for i, part in ((1, key), (2, value)):
        if made.output(i):
            made.emit("Identity", [part], made.output(i))
    _finish(made, query, key, value, (queries, keys), mask=4, bias=5, width=width)
