"""Attentions to test kernels with: operands, and outputs in float64."""

import numpy as np

from flexcomp.schedules.operators.attention import Access, AttentionSpec


def tensor_of(rng: np.random.Generator, access: Access) -> np.ndarray:
    return rng.standard_normal(access.buffer).astype("f4")


def masks_of(rng: np.random.Generator, spec: AttentionSpec) -> list[np.ndarray]:
    masks = [mask for mask in spec.masks if mask.shape]
    numbers = [rng.standard_normal(mask.shape) for mask in masks]
    return [(own if mask.kind == "add" else own < 0.5).astype("f4") for mask, own in zip(masks, numbers, strict=True)]


def seen(access: Access, buffer: np.ndarray, *extents: int) -> np.ndarray:
    """[batch, heads, rows, depth] of a buffer."""
    strides = [4 * stride for stride in (access.batch, access.head, access.row, 1)]
    return np.lib.stride_tricks.as_strided(buffer.reshape(-1)[access.offset :], extents, strides)


def expected(spec: AttentionSpec, q, k, v, *masks) -> np.ndarray:
    s = spec
    q = seen(s.q, q, s.batch, s.heads, s.queries, s.depth).astype("f8")
    k = seen(s.k, k, s.batch, s.heads // s.group, s.keys, s.depth).astype("f8")
    v = seen(s.v, v, s.batch, s.heads // s.group, s.keys, s.value_depth).astype("f8")
    k, v = k.repeat(s.group, 1), v.repeat(s.group, 1)
    scores = q @ k.transpose(0, 1, 3, 2) * s.scale
    if s.cap is not None:
        scores = s.cap * np.tanh(scores)
    tensors, visible = iter(masks), np.tril(np.ones((s.queries, s.keys), bool), s.keys - s.queries)
    for mask in s.masks:
        value = visible if mask.kind == "causal" else next(tensors).transpose(0, 1, 3, 2)
        # Of finite scores "blend" makes the same as "where".
        scores = scores + value if mask.kind == "add" else np.where(value != 0, scores, mask.fill)
    if s.causal:
        scores = np.where(visible, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    return (np.nan_to_num(weights, nan=0.0) if s.nan_is_zero else weights) @ v


def dense(batch, heads, queries, keys, depth, value_depth, **kwargs) -> AttentionSpec:
    return AttentionSpec(
        batch, heads, queries, keys, depth, value_depth,
        q=Access.dense(batch, heads, queries, depth), k=Access.dense(batch, heads, keys, depth),
        v=Access.dense(batch, heads, keys, value_depth), y=Access.dense(batch, heads, queries, value_depth), **kwargs,
    )  # fmt: skip
