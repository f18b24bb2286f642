"""Attentions to test kernels with: operands, and outputs in float64."""

import numpy as np

from flexcomp.schedules.operators.attention_spec import Access, AttentionSpec
from flexcomp.schedules.tiles.byte_rows import ByteRows


def tensor_of(rng: np.random.Generator, access: Access) -> np.ndarray:
    return rng.standard_normal(access.buffer).astype("f4")


def narrowed(access: Access, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows [..., depth] as a kernel reads them that takes the type of `access`, and the numbers that these are."""
    if access.dtype == "float16":
        return rows.astype("f2"), rows.astype("f2").astype("f4")
    layout = ByteRows.of_cache(rows.shape[-1])
    scales = np.abs(rows).max(-1, keepdims=True).astype("f4") / 127
    integers = np.rint(rows / scales).astype("i1")
    stored = np.zeros((*rows.shape[:-1], layout.nbytes), "i1")
    stored[..., : rows.shape[-1]] = integers
    stored[..., layout.numbers_at :] = scales.view("i1")
    return stored, integers * scales


def masks_of(rng: np.random.Generator, spec: AttentionSpec) -> list[np.ndarray]:
    masks = [mask for mask in spec.masks if mask.shape]
    numbers = [rng.standard_normal(mask.shape) for mask in masks]
    return [(own if mask.kind == "add" else own < 0.5).astype("f4") for mask, own in zip(masks, numbers, strict=True)]


def positions_of(rng: np.random.Generator, spec: AttentionSpec) -> list[np.ndarray]:
    """Rows, tables and indices of scores by position."""
    result = []
    for term in spec.positions:
        index = rng.integers(0, term.positions, term.index).astype(term.dtype)
        result += [tensor_of(rng, term.x), tensor_of(rng, term.table), index]
    return result


def seen(access: Access, buffer: np.ndarray, *extents: int) -> np.ndarray:
    """[batch, heads, rows, depth] of a buffer."""
    strides = [4 * stride for stride in (access.batch, access.head, access.row, 1)]
    return np.lib.stride_tricks.as_strided(buffer.reshape(-1)[access.offset :], extents, strides)


def by_position(spec: AttentionSpec, given: list[np.ndarray]) -> np.ndarray:
    """The sum of all scores by position."""
    s, total = spec, np.zeros((spec.batch, spec.heads, spec.queries, spec.keys))
    for term in s.positions:
        x, table, index, *given = given
        rows = s.queries if term.by == "query" else s.keys
        x = seen(term.x, x, s.batch, s.heads, rows, term.depth).astype("f8")
        if term.by == "query":
            table = seen(term.table, table, s.batch, s.heads, term.positions, term.depth).transpose(0, 1, 3, 2)
        else:
            table = seen(term.table, table, s.batch, s.heads, term.depth, term.positions)
        products = term.scale * x @ table.astype("f8")
        index = np.broadcast_to(index, (s.batch, s.heads, s.keys, s.queries)).astype("i8")
        if term.by == "query":
            total += np.take_along_axis(products, index.transpose(0, 1, 3, 2), -1)
        else:
            total += np.take_along_axis(products, index, -1).transpose(0, 1, 3, 2)
    return total


def expected(spec: AttentionSpec, q, k, v, *others) -> np.ndarray:
    s = spec
    masks, positions = others[: len(s.mask_parameters)], list(others[len(s.mask_parameters) :])
    q = seen(s.q, q, s.batch, s.heads, s.queries, s.depth).astype("f8")
    k = seen(s.k, k, s.batch, s.heads // s.group, s.keys, s.depth).astype("f8")
    v = seen(s.v, v, s.batch, s.heads // s.group, s.keys, s.value_depth).astype("f8")
    k, v = k.repeat(s.group, 1), v.repeat(s.group, 1)
    scores = q @ k.transpose(0, 1, 3, 2) * s.scale
    if s.cap is not None:
        scores = s.cap * np.tanh(scores)
    tensors, visible = iter(masks), np.tril(np.ones((s.queries, s.keys), bool), s.keys - s.queries)
    for mask in s.masks:
        if mask.kind == "positions":
            scores = scores + by_position(spec, positions)
            continue
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
