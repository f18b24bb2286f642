"""Attention as exporters write it: one small network for each exporter and structure.

Written after exports of torch 2.13 (`dynamo=False` and `dynamo=True`) with transformers 5, tf2onnx 1.17 with Keras 3, and
paddle2onnx 2.1: the same operators in the same order, with the shape arithmetic folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from benchmarks.networks.graph import Graph

HEADS, DEPTH = 4, 16
WIDTH = HEADS * DEPTH
LEAST = float(np.finfo("f4").min)

# What makes a network's output of its graph, its inputs' batch and how many tokens there are.
Structure = Callable[[Graph, int], str]


def x_of(g: Graph, tokens: int, batch: int = 1, name: str = "x") -> str:
    x = g.input(name, (batch, tokens, WIDTH))
    g.channels[x] = WIDTH
    return x


def mask_of(g: Graph, *extents: int, dtype: int = TensorProto.FLOAT) -> str:
    return g.input("mask", extents, dtype)


def heads_of(g: Graph, x: str, batch: int, tokens: int, heads: int = HEADS) -> str:
    """[batch, heads, tokens, depth]"""
    return g.op("Transpose", g.reshape(x, batch, tokens, heads, DEPTH), perm=[0, 2, 1, 3])


def three(g: Graph, x: str, batch: int, tokens: int, others: str | None = None, shared: int = HEADS) -> list[str]:
    """Q, K and V as [batch, heads, tokens, depth]."""
    sources, heads = (x, others or x, others or x), (HEADS, shared, shared)
    return [heads_of(g, g.linear(s, n * DEPTH), batch, tokens, n) for s, n in zip(sources, heads, strict=True)]


def joined(g: Graph, y: str, batch: int, tokens: int) -> str:
    y = g.reshape(g.op("Transpose", y, perm=[0, 2, 1, 3]), batch, tokens, WIDTH, channels=WIDTH)
    return g.linear(y, WIDTH)


def scaled(g: Graph, value: str, factor: float) -> str:
    return g.op("Mul", value, g.number(factor))


def swapped(g: Graph, k: str) -> str:
    return g.op("Transpose", k, perm=[0, 1, 3, 2])


def mixed(g: Graph, scores: str, v: str) -> str:
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), v)


def guarded(g: Graph, scores: str, v: str) -> str:
    """As torch's scaled_dot_product_attention with a mask: of queries that see nothing the result is 0."""
    p = g.op("Softmax", scores, axis=-1)
    return g.op("MatMul", g.op("Where", g.op("IsNaN", p), g.number(0.0), p), v)


# -- the form to compare with, by the mask that it takes ----------------------------------------------


def plain(mask: str | None = None, batch: int = 1) -> Structure:
    def make(g: Graph, tokens: int) -> str:
        q, k, v = three(g, x_of(g, tokens, batch), batch, tokens)
        scores = scaled(g, g.op("MatMul", q, swapped(g, k)), DEPTH**-0.5)
        if mask == "bias":
            scores = g.op("Add", scores, g.normal((1, HEADS, tokens, tokens), 1.0))
        elif mask is not None:
            extents = {"tokens": (batch, 1, 1, tokens), "pairs": (batch, 1, tokens, tokens)}[mask]
            scores = g.op("Add", scores, mask_of(g, *extents))
        return joined(g, mixed(g, scores, v), batch, tokens)

    return make


# -- torch, by TorchScript -----------------------------------------------------------------------------

_ROOT = DEPTH**-0.25


def sdpa(mask: str | None = None, batch: int = 2, chain: bool = False, hidden: float = -math.inf) -> Structure:
    """scaled_dot_product_attention; with `chain` as the newer exporter transposes keys."""

    def make(g: Graph, tokens: int) -> str:
        x = x_of(g, tokens, batch)
        condition = g.number(0.0)
        if mask in ("tokens", "pairs"):
            extents = (batch, 1, 1, tokens) if mask == "tokens" else (batch, 1, tokens, tokens)
            condition = g.op("Where", mask_of(g, *extents, dtype=TensorProto.BOOL), g.number(0.0), g.number(hidden))
        elif mask == "causal":
            seen = g.op("Trilu", g.weight(np.ones((tokens, tokens), bool)), g.weight(np.int64(0)), upper=0)
            condition = g.op("Where", seen, g.number(0.0), g.number(-math.inf))
        elif mask == "float":
            condition = mask_of(g, batch, 1, tokens, tokens)
        q, k, v = three(g, x, batch, tokens)
        if chain:
            k = g.op("Transpose", g.reshape(k, batch * HEADS, tokens, DEPTH), perm=[0, 2, 1])
            k = g.reshape(k, batch, HEADS, DEPTH, tokens)
        else:
            k = swapped(g, k)
        scores = g.op("MatMul", scaled(g, q, _ROOT), scaled(g, k, _ROOT))
        if mask is not None:
            scores = g.op("Add", scores, condition)
        y = guarded(g, scores, v) if mask in ("tokens", "pairs") else mixed(g, scores, v)
        return joined(g, y, batch, tokens)

    return make


def eager(g: Graph, tokens: int) -> str:
    """BERT and its kin as written out: a quotient, and what is added."""
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    scores = g.op("Div", g.op("MatMul", q, swapped(g, k)), g.number(math.sqrt(DEPTH)))
    return joined(g, mixed(g, g.op("Add", scores, mask_of(g, 1, 1, 1, tokens)), v), 1, tokens)


def cross(g: Graph, tokens: int) -> str:
    x = x_of(g, tokens)
    q, k, v = three(g, x, 1, tokens, x_of(g, tokens, name="others"))
    return joined(g, mixed(g, g.op("MatMul", scaled(g, q, 0.25), swapped(g, k)), v), 1, tokens)


def repeated(g: Graph, x: str, batch: int, tokens: int, shared: int) -> str:
    """repeat_kv: heads that several heads of queries have in common."""
    five = g.op("Unsqueeze", x, g.integers(2))
    five = g.op("Expand", five, g.integers(batch, shared, HEADS // shared, tokens, DEPTH))
    return g.reshape(five, batch, HEADS, tokens, DEPTH)


def grouped(chain: bool) -> Structure:
    def make(g: Graph, tokens: int) -> str:
        q, k, v = three(g, x_of(g, tokens, 2), 2, tokens, shared=2)
        k, v = repeated(g, k, 2, tokens, 2), repeated(g, v, 2, tokens, 2)
        if chain:
            k = g.op("Transpose", g.reshape(k, 2 * HEADS, tokens, DEPTH), perm=[0, 2, 1])
            k = g.reshape(k, 2, HEADS, DEPTH, tokens)
            scores = g.op("MatMul", scaled(g, q, _ROOT), scaled(g, k, _ROOT))
        else:
            scores = scaled(g, g.op("MatMul", q, swapped(g, k)), DEPTH**-0.5)
        return joined(g, mixed(g, scores, v), 2, tokens)

    return make


def multihead(g: Graph, tokens: int) -> str:
    """nn.MultiheadAttention: tokens before the batch, Q, K and V out of one product, heads behind the batch in one axis."""
    batch = 2
    x = g.op("Transpose", x_of(g, tokens, batch), perm=[1, 0, 2], channels=WIDTH)
    packed = g.reshape(g.linear(x, 3 * WIDTH), tokens, batch, 3, WIDTH)
    packed = g.op("Transpose", g.op("Unsqueeze", packed, g.integers(0)), perm=[3, 1, 2, 0, 4])
    packed = g.op("Squeeze", packed, g.integers(3))
    parts = [g.op("Gather", packed, g.weight(np.int64(i)), axis=0) for i in range(3)]
    parts = [g.op("Transpose", g.reshape(p, tokens, batch * HEADS, DEPTH), perm=[1, 0, 2]) for p in parts]
    q, k, v = (g.reshape(p, batch, HEADS, tokens, DEPTH) for p in parts)
    y = mixed(g, g.op("MatMul", scaled(g, q, _ROOT), scaled(g, swapped(g, k), _ROOT)), v)
    y = g.op("Transpose", y, perm=[2, 0, 1, 3])
    y = g.linear(g.reshape(y, tokens * batch, WIDTH, channels=WIDTH), WIDTH)
    return g.op("Transpose", g.reshape(y, tokens, batch, WIDTH), perm=[1, 0, 2])


def split(g: Graph, tokens: int) -> str:
    """GPT-2: Q, K and V out of one product, causal by a constant."""
    x = g.linear(x_of(g, tokens), 3 * WIDTH)
    q, k, v = (heads_of(g, part, 1, tokens) for part in g.split(x, 3, axis=2))
    scores = g.op("Div", g.op("MatMul", q, swapped(g, k)), g.number(4.0))
    seen = g.weight(np.tril(np.ones((1, 1, tokens, tokens), bool)))
    return joined(g, mixed(g, g.op("Where", seen, scores, g.number(LEAST)), v), 1, tokens)


def alibi(g: Graph, tokens: int) -> str:
    """BLOOM: a bias of every head, added to products of three axes."""
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    bias = g.weight((np.arange(tokens) * 0.5 ** np.arange(1, HEADS + 1)[:, None, None]).astype("f4"))
    q, k, v = (g.reshape(one, HEADS, tokens, DEPTH) for one in (q, k, v))
    scores = scaled(g, g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), 0.25)
    scores = g.reshape(g.op("Add", bias, scores), 1, HEADS, tokens, tokens)
    p = g.op("Softmax", g.op("Add", scores, mask_of(g, 1, 1, 1, tokens)), axis=-1)
    y = g.op("MatMul", g.reshape(p, HEADS, tokens, tokens), v)
    return joined(g, g.reshape(y, 1, HEADS, tokens, DEPTH), 1, tokens)


def relative(g: Graph, tokens: int) -> str:
    """T5: no factor, and a bias of every pair."""
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    scores = g.op("Add", g.op("MatMul", q, swapped(g, k)), g.normal((1, HEADS, tokens, tokens), 1.0))
    return joined(g, mixed(g, scores, v), 1, tokens)


def capped(g: Graph, tokens: int) -> str:
    """Gemma 2: c · tanh(scores / c)."""
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    scores = scaled(g, g.op("MatMul", q, swapped(g, k)), DEPTH**-0.5)
    scores = scaled(g, g.op("Tanh", g.op("Div", scores, g.number(3.0))), 3.0)
    return joined(g, mixed(g, g.op("Add", scores, mask_of(g, 1, 1, 1, tokens)), v), 1, tokens)


def rotated(g: Graph, tokens: int) -> str:
    """Llama: Q and K rotated in pairs of halves."""

    def rotate(x: str) -> str:
        angle = np.arange(tokens)[:, None] * 10.0 ** -np.arange(DEPTH // 2)
        cos, sin = (g.weight(f(np.concatenate([angle, angle], -1))[None, None].astype("f4")) for f in (np.cos, np.sin))
        low = g.op("Slice", x, g.integers(0), g.integers(DEPTH // 2), g.integers(3))
        high = g.op("Slice", x, g.integers(DEPTH // 2), g.integers(DEPTH), g.integers(3))
        turned = g.op("Concat", g.op("Neg", high), low, axis=3)
        return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))

    q, k, v = three(g, x_of(g, tokens), 1, tokens, shared=2)
    q, k, v = rotate(q), repeated(g, rotate(k), 1, tokens, 2), repeated(g, v, 1, tokens, 2)
    scores = scaled(g, g.op("MatMul", q, swapped(g, k)), DEPTH**-0.5)
    return joined(g, mixed(g, scores, v), 1, tokens)


# -- tf2onnx -------------------------------------------------------------------------------------------


def einsum(mask: str | None, shared: int = HEADS) -> Structure:
    """Keras' MultiHeadAttention: products of einsums by five axes and three, masks by multiplying."""

    def make(g: Graph, tokens: int) -> str:
        x = x_of(g, tokens)
        q, k, v = (g.op("MatMul", x, g.normal((WIDTH, n * DEPTH), 0.2)) for n in (HEADS, shared, shared))
        q = g.reshape(q, 1, tokens, HEADS, DEPTH)
        k, v = (g.reshape(one, 1, tokens, shared, DEPTH) for one in (k, v))
        if shared < HEADS:
            k, v = (
                g.reshape(
                    g.op("Tile", g.op("Unsqueeze", one, g.integers(3)), g.integers(1, 1, 1, HEADS // shared, 1)),
                    1, tokens, HEADS, DEPTH,
                )
                for one in (k, v)
            )  # fmt: skip
        q = g.op("Transpose", g.op("Unsqueeze", q, g.integers(3)), perm=[0, 2, 1, 3, 4])
        k = g.op("Transpose", g.op("Unsqueeze", k, g.integers(1)), perm=[0, 3, 1, 2, 4])
        v = g.op("Transpose", g.op("Unsqueeze", v, g.integers(2)), perm=[0, 3, 2, 4, 1])
        q, k = (g.reshape(one, HEADS, tokens, DEPTH) for one in (q, k))
        v = g.reshape(v, HEADS, DEPTH, tokens)
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))
        scores = g.op("Squeeze", g.reshape(scores, 1, HEADS, tokens, tokens, 1), g.integers(4))
        scores = scaled(g, scores, DEPTH**-0.5)
        if mask == "causal":
            seen = np.tril(np.ones((1, HEADS, tokens, tokens), "f4"))
            scores = g.op("Add", g.op("Mul", g.weight(seen), scores), g.weight((1 - seen) * np.float32(LEAST)))
        elif mask == "tokens":
            every = g.weight(np.ones((1, HEADS, tokens, tokens), bool))
            seen = g.op("And", every, mask_of(g, 1, 1, 1, tokens, dtype=TensorProto.BOOL))
            hidden = scaled(g, g.op("Cast", g.op("Not", seen), to=TensorProto.FLOAT), -2.4e38)
            scores = g.op("Add", g.op("Mul", scores, g.op("Cast", seen, to=TensorProto.FLOAT)), hidden)
        p = g.reshape(g.op("Unsqueeze", g.op("Softmax", scores, axis=-1), g.integers(3)), HEADS, tokens, tokens)
        y = g.op("MatMul", p, g.op("Transpose", v, perm=[0, 2, 1]))
        y = g.op("Transpose", g.reshape(y, 1, HEADS, tokens, DEPTH), perm=[0, 2, 1, 3])
        return g.op("MatMul", g.reshape(y, 1, tokens, WIDTH), g.normal((WIDTH, WIDTH), 0.2))

    return make


# -- paddle2onnx ---------------------------------------------------------------------------------------


def sliced(g: Graph, tokens: int) -> str:
    """scaled_dot_product_attention of parts of one product; factors have an axis, and zero is added."""
    packed = g.reshape(g.linear(x_of(g, tokens), 3 * WIDTH), 1, tokens, 3, HEADS, DEPTH)
    parts = [
        g.op("Squeeze", g.op("Slice", packed, *map(g.integers, (i, i + 1, 2, 1))), g.integers(2)) for i in range(3)
    ]
    q, k, v = (g.op("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    q = g.op("Add", g.op("Mul", q, g.floats(0.25)), g.number(0.0))
    scores = g.op("MatMul", q, swapped(g, k))
    hidden = np.triu(np.full((1, HEADS, tokens, tokens), -np.inf, "f4"), 1)
    return joined(g, mixed(g, g.op("Add", scores, g.weight(hidden)), v), 1, tokens)


# -- additive attention --------------------------------------------------------------------------------


def additive(g: Graph, tokens: int) -> str:
    """Bahdanau's, as torch writes it: the score of a pair is a product of tanh(q + k) with one column."""
    q, k = (g.linear(x_of(g, tokens, name=name), WIDTH) for name in ("x", "others"))
    pairs = g.op("Add", g.op("Unsqueeze", q, g.integers(2)), g.op("Unsqueeze", k, g.integers(1)), channels=WIDTH)
    scores = g.op("Squeeze", g.linear(g.op("Tanh", pairs, channels=WIDTH), 1), g.integers(3))
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), "others")


def additive_sum(g: Graph, tokens: int) -> str:
    """Keras' AdditiveAttention: a sum."""
    q, k = (g.linear(x_of(g, tokens, name=name), WIDTH) for name in ("x", "others"))
    pairs = g.op("Add", g.reshape(q, 1, tokens, 1, WIDTH), g.reshape(k, 1, 1, tokens, WIDTH))
    scores = g.op("ReduceSum", g.op("Mul", g.op("Tanh", pairs), g.normal((WIDTH,), 0.2)), g.integers(-1), keepdims=0)
    return g.op("MatMul", g.op("Softmax", scores, axis=-1), "others")


ADDITIVE: dict[tuple[str, str], Structure] = {
    ("torch", "additive attention"): additive,
    ("tf2onnx", "Keras' AdditiveAttention"): additive_sum,
}

def alibi_masked(g: Graph, tokens: int) -> str:
    """MPT: a bias of every head and key is added, then a mask of bools chooses."""
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    bias = g.weight((np.arange(1 - tokens, 1) * 0.5 ** np.arange(1, HEADS + 1)[:, None, None]).astype("f4"))
    scores = g.op("Add", scaled(g, g.op("MatMul", q, swapped(g, k)), DEPTH**-0.5), bias)
    hidden = mask_of(g, 1, 1, tokens, tokens, dtype=TensorProto.BOOL)
    return joined(g, mixed(g, g.op("Where", hidden, g.number(LEAST), scores), v), 1, tokens)


def causal_padded(g: Graph, tokens: int) -> str:
    """GPT-2 as exported with a mask of tokens: a constant chooses, then the mask is added."""
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    scores = g.op("Div", g.op("MatMul", q, swapped(g, k)), g.number(math.sqrt(DEPTH)))
    seen = g.weight(np.tril(np.ones((1, 1, tokens, tokens), bool)))
    scores = g.op("Where", seen, scores, g.number(LEAST))
    return joined(g, mixed(g, g.op("Add", scores, mask_of(g, 1, 1, 1, tokens)), v), 1, tokens)


def disentangled(g: Graph, tokens: int) -> str:
    """DeBERTa: scores of tokens by positions and of positions by tokens, gathered by distance, then a mask of bools."""
    span, scale = tokens // 2, math.sqrt(3 * DEPTH)
    q, k, v = (g.reshape(one, HEADS, tokens, DEPTH) for one in three(g, x_of(g, tokens), 1, tokens))
    by_key, by_query = (g.normal((HEADS, DEPTH, 2 * span), 0.3) for _ in range(2))
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    places = np.clip(distance + span, 0, 2 * span - 1)

    def gathered(x: str, positions: str, where: np.ndarray) -> str:
        index = g.op("Expand", g.weight(where[None].astype("i8")), g.integers(HEADS, tokens, tokens))
        return g.op("GatherElements", g.op("MatMul", x, positions), index, axis=2)

    scores = g.op("MatMul", q, g.op("Div", g.op("Transpose", k, perm=[0, 2, 1]), g.number(scale)))
    c2p = g.op("Div", gathered(q, by_key, places), g.number(scale))
    p2c = g.op("Div", g.op("Transpose", gathered(k, by_query, places), perm=[0, 2, 1]), g.number(scale))
    scores = g.reshape(g.op("Add", scores, g.op("Add", c2p, p2c)), 1, HEADS, tokens, tokens)
    hidden = g.op("Not", mask_of(g, 1, 1, tokens, tokens, dtype=TensorProto.BOOL))
    p = g.op("Softmax", g.op("Where", hidden, g.number(LEAST), scores), axis=-1)
    y = g.op("MatMul", g.reshape(p, HEADS, tokens, tokens), v)
    return joined(g, g.reshape(y, 1, HEADS, tokens, DEPTH), 1, tokens)


def disentangled_first(g: Graph, tokens: int) -> str:
    """The first DeBERTa: one product for Q, K and V, queries and a table of positions scaled, and four axes."""
    span, root = tokens // 2, math.sqrt(3 * DEPTH)
    packed = g.op("Transpose", g.reshape(g.linear(x_of(g, tokens), 3 * WIDTH), 1, tokens, HEADS, 3 * DEPTH), perm=[0, 2, 1, 3])
    q, k, v = (g.op("Slice", packed, *map(g.integers, (i * DEPTH, (i + 1) * DEPTH, 3))) for i in range(3))
    q = g.op("Div", q, g.number(root))
    embeddings = g.normal((1, 2 * span, WIDTH), 0.3)
    tables = [g.op("MatMul", embeddings, g.normal((WIDTH, WIDTH), 0.2)) for _ in range(2)]
    by_key, by_query = (g.op("Transpose", g.reshape(one, 1, 2 * span, HEADS, DEPTH), perm=[0, 2, 1, 3]) for one in tables)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)

    def gathered(x: str, table: str, away: np.ndarray) -> str:
        where = np.clip(away + span, 0, 2 * span - 1)[None, None].astype("i8")
        index = g.op("Expand", g.weight(where), g.integers(1, HEADS, tokens, tokens))
        return g.op("GatherElements", g.op("MatMul", x, swapped(g, table)), index, axis=-1)

    scores = g.op("MatMul", q, swapped(g, k))
    p2c = swapped(g, gathered(k, g.op("Div", by_query, g.number(root)), -distance))
    scores = g.op("Add", scores, g.op("Add", gathered(q, by_key, distance), p2c))
    hidden = g.op("Not", mask_of(g, 1, 1, tokens, tokens, dtype=TensorProto.BOOL))
    return joined(g, mixed(g, g.op("Where", hidden, g.number(LEAST), scores), v), 1, tokens)


# -- relation networks ---------------------------------------------------------------------------------


def relation(repeat: str) -> Structure:
    """A relation network as torch exports it: all pairs of objects, concatenated, and layers of their rows."""

    def make(g: Graph, tokens: int) -> str:
        x = x_of(g, tokens)
        objects = []
        for axis in (1, 2):
            one = g.op("Unsqueeze", x, g.integers(axis))
            if repeat == "Tile":
                objects.append(g.op("Tile", one, g.integers(1, *((tokens, 1) if axis == 1 else (1, tokens)), 1)))
            else:
                objects.append(g.op("Expand", one, g.integers(1, tokens, tokens, WIDTH)))
        pairs = g.reshape(g.op("Concat", *objects, axis=3), tokens * tokens, 2 * WIDTH, channels=2 * WIDTH)
        scores = g.linear(g.relu(g.linear(pairs, DEPTH)), DEPTH)
        return g.op("ReduceSum", g.reshape(scores, 1, tokens, tokens, DEPTH), g.integers(2), keepdims=0)

    return make


RELATIONS: dict[tuple[str, str], Structure] = {
    ("torch", "all pairs concatenated, then a layer (relation networks)"): relation("Expand"),
    ("torch", "the same, by repeat"): relation("Tile"),
}

# Attention with scores by position.
BY_POSITION: dict[tuple[str, str], Structure] = {
    ("torch, TorchScript", "scores by positions, gathered, then a mask of bools for pairs (DeBERTa v2)"): disentangled,
    ("torch, TorchScript", "the same, queries scaled before (DeBERTa)"): disentangled_first,
}

# Exporter and structure → how to make it, and the plain form that takes the same inputs.
def optimised(mask: bool) -> Structure:
    """ONNX Runtime's Attention, with the projections, and a mask of tokens as integers."""

    def network(g: Graph, tokens: int) -> str:
        x = x_of(g, tokens)
        masks = [mask_of(g, 1, tokens, dtype=TensorProto.INT32)] if mask else []
        weights = g.filters((WIDTH, 3 * WIDTH), (0,), 1.0)
        return g.op("Attention", x, weights, g.normal((3 * WIDTH,), 0.1), *masks, num_heads=HEADS, domain="com.microsoft")

    return network


def optimised_parts(g: Graph, tokens: int) -> str:
    x = x_of(g, tokens)
    parts = [g.linear(x, WIDTH) for _ in range(3)]
    return g.op("MultiHeadAttention", *parts, num_heads=HEADS, domain="com.microsoft")


ATTENTION: dict[tuple[str, str], tuple[Structure, Structure]] = {
    ("torch, TorchScript", "scaled_dot_product_attention"): (sdpa(), plain(batch=2)),
    ("torch, TorchScript", "the same, causal"): (sdpa("causal", batch=1), plain()),
    ("torch, TorchScript", "the same, mask of floats"): (sdpa("float"), plain("pairs", 2)),
    ("torch, TorchScript", "the same, mask of bools for tokens"): (sdpa("tokens"), plain("tokens", 2)),
    ("torch, TorchScript", "the same, mask of bools for pairs"): (sdpa("pairs"), plain("pairs", 2)),
    ("torch, TorchScript", "written out (BERT)"): (eager, plain("tokens")),
    ("torch, TorchScript", "Q, K and V out of one product, causal (GPT-2)"): (split, plain()),
    ("torch, TorchScript", "cross attention"): (cross, plain()),
    ("torch, TorchScript", "groups of heads, by repeat_kv"): (grouped(False), plain(batch=2)),
    ("torch, TorchScript", "rotary embeddings, groups of heads (Llama)"): (rotated, plain()),
    ("torch, TorchScript", "MultiheadAttention"): (multihead, plain(batch=2)),
    ("torch, TorchScript", "ALiBi, products of three axes (BLOOM)"): (alibi, plain("tokens")),
    ("torch, TorchScript", "bias of pairs, no factor (T5)"): (relative, plain("bias")),
    ("torch, TorchScript", "capped scores (Gemma 2)"): (capped, plain("tokens")),
    ("torch, TorchScript", "ALiBi, then a mask of bools for pairs (MPT)"): (alibi_masked, plain("pairs")),
    ("torch, TorchScript", "causal by a constant, then a mask of tokens (GPT-2)"): (causal_padded, plain("tokens")),
    ("torch, dynamo", "scaled_dot_product_attention"): (sdpa(chain=True), plain(batch=2)),
    ("torch, dynamo", "the same, mask of bools for tokens"): (sdpa("tokens", chain=True, hidden=LEAST), plain("tokens", 2)),
    ("torch, dynamo", "groups of heads (enable_gqa)"): (grouped(True), plain(batch=2)),
    ("tf2onnx", "Keras' MultiHeadAttention"): (einsum(None), plain()),
    ("tf2onnx", "the same, causal"): (einsum("causal"), plain()),
    ("tf2onnx", "the same, mask of tokens"): (einsum("tokens"), plain("tokens")),
    ("tf2onnx", "Keras' GroupQueryAttention"): (einsum(None, shared=2), plain()),
    ("paddle2onnx", "scaled_dot_product_attention, causal"): (sliced, plain()),
    ("ONNX Runtime's optimiser", "Attention"): (optimised(mask=False), plain()),
    ("ONNX Runtime's optimiser", "Attention, mask of tokens"): (optimised(mask=True), plain("tokens")),
    ("ONNX Runtime's optimiser", "MultiHeadAttention"): (optimised_parts, plain()),
}
