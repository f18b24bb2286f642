"""Attention kernels against NumPy: odd sizes, strides, masks, vector widths."""

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.schedules.operators import attention
from flexcomp.schedules.operators.attention_spec import Access, AttentionSpec, PositionScores, ScoreMask
from flexcomp.schedules.tiles.tile import VectorUnit
from tests.pairs import pairs
from tests.schedules.kernels import library, require_no_memory
from tests.schedules.shapes import SHAPES

from .attentions import dense, expected, masks_of, narrowed, positions_of, seen, tensor_of

UNITS = (VectorUnit(4, 32), VectorUnit(4, 32, by_lane=True), VectorUnit(8, 16), VectorUnit(16, 32))
SIZES = dict(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    queries=st.sampled_from((1, 3, 7, 16, 33, 64, 77, 130)),
    more_keys=st.sampled_from((0, 0, 1, 5, 40)),
    depth=st.sampled_from((1, 3, 8, 20, 33)),
    value_depth=st.sampled_from((1, 5, 16, 24, 70)),
)


@cache
def compiled(spec: AttentionSpec, unit: VectorUnit):
    return library({"kernel": attention.kernel(spec, unit)})["kernel"]


def run(spec: AttentionSpec, unit: VectorUnit, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel computes, and what it should."""
    rng = np.random.default_rng(seed)
    tensors = [tensor_of(rng, access) for access in (spec.q, spec.k, spec.v)]
    masks = masks_of(rng, spec)
    kernel = compiled(spec, unit)
    y = np.full(spec.y.buffer, np.nan, "f4")
    given = [*tensors, *masks, *positions_of(rng, spec)]
    found = call_with_scratch(kernel, given, y, *attention.scratch(spec, unit))
    extents = (spec.batch, spec.heads, spec.queries, spec.value_depth)
    return seen(spec.y, found, *extents), expected(spec, *given)


def call_with_scratch(kernel, inputs, y: np.ndarray, *scratch: tuple[int, ...]) -> np.ndarray:
    result, work = tvm.runtime.tensor(y), [tvm.runtime.tensor(np.full(shape, np.nan, "f4")) for shape in scratch]
    kernel(*(tvm.runtime.tensor(x) for x in inputs), result, *work)
    return result.numpy()


@settings(max_examples=SHAPES)
@given(
    **SIZES, unit=st.sampled_from(UNITS), causal=st.booleans(),
    masks=st.lists(st.tuples(st.sampled_from(("add", "where", "blend", "causal")), *[st.booleans()] * 3), max_size=2),
)  # fmt: skip
def test_random_shapes(batch, heads, queries, more_keys, depth, value_depth, unit, causal, masks):
    keys = queries + more_keys
    full = (batch, heads, queries)
    made = []
    for kind, *broadcast in masks:
        b, h, q = (1 if one else extent for one, extent in zip(broadcast, full, strict=True))
        made.append(ScoreMask(kind, None if kind == "causal" else (b, h, keys, q), -3.0))
    spec = dense(
        batch,
        heads,
        queries,
        keys,
        depth,
        value_depth,
        scale=0.3,
        masks=tuple(made),
        causal=causal,
    )
    found, wanted = run(spec, unit)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=str(spec))


@settings(max_examples=SHAPES)
@given(
    **SIZES, unit=st.sampled_from(UNITS), causal=st.booleans(), mask=st.sampled_from(("before", "after", None)),
    terms=st.lists(
        st.tuples(st.sampled_from(("query", "key")), st.sampled_from((1, 5, 20)), st.sampled_from((1, 7, 64, 90)), st.booleans()),
        min_size=1, max_size=3,
    ),
)  # fmt: skip
def test_random_scores_by_position(batch, heads, queries, more_keys, depth, value_depth, unit, causal, mask, terms):
    keys = queries + more_keys
    positions = []
    for by, own_depth, extent, shared in terms:
        rows, table = (queries, (extent, own_depth)) if by == "query" else (keys, (own_depth, extent))
        index = (1, 1 if shared else heads, keys, queries)
        x, table = Access.dense(batch, heads, rows, own_depth), Access.dense(batch, heads, *table)
        positions.append(PositionScores(by, x, table, index, own_depth, extent, 0.2))
    masks = [ScoreMask("positions")]
    if mask is not None:
        masks.insert(mask == "after", ScoreMask("where", (1, 1, keys, queries), -3.0))
    spec = dense(
        batch, heads, queries, keys, depth, value_depth,
        scale=0.3, causal=causal, masks=tuple(masks), positions=tuple(positions),
    )  # fmt: skip
    found, wanted = run(spec, unit)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{spec} {positions}")


@pytest.mark.parametrize("unit", UNITS)
def test_heads_are_read_and_written_in_place(unit):
    """Q, K and V are thirds of one projection's rows; heads lie side by side."""
    batch, heads, tokens, depth = 2, 3, 35, 8
    width = heads * depth
    parts = [Access((batch, tokens, 3 * width), i * width, tokens * 3 * width, depth, 3 * width) for i in range(3)]
    y = Access((batch, tokens, width), 0, tokens * width, depth, width)
    spec = AttentionSpec(batch, heads, tokens, tokens, depth, depth, *parts, y, scale=0.5, causal=True)
    found, wanted = run(spec, unit)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("unit", "queries", "depths", "kinds", "group", "causal"),
    pairs(
        UNITS, (1, 3, 40), ((6, 5), (16, 16), (33, 24)), (("int8", "int8"), ("float16", "float16"), ("int8", "float32")), (1, 2),
        (False, True),
    ),
)  # fmt: skip
def test_keys_and_values_in_fewer_bits(unit, queries, depths, kinds, group, causal):
    depth, value_depth = depths
    keys, shared = queries + 12, 2
    rng, wide = np.random.default_rng(3), dense(2, shared * group, queries, keys, depth, value_depth)
    k, v = (Access.dense(2, shared, keys, one) for one in (depth, value_depth))
    k, v = k.stored(kinds[0], depth), v.stored(kinds[1], value_depth)
    spec = replace(wide, k=k, v=v, group=group, causal=causal, scale=0.3)
    assert AttentionSpec.decode(spec.encode()) == spec
    given, read = [tensor_of(rng, spec.q)], []
    for access, extent in ((k, depth), (v, value_depth)):
        rows = rng.standard_normal((2, shared, keys, extent)).astype("f4")
        stored, numbers = (rows, rows) if access.dtype == "float32" else narrowed(access, rows)
        assert stored.shape == access.buffer
        given.append(stored)
        read.append(numbers)
    y = np.full(spec.y.buffer, np.nan, "f4")
    found = call_with_scratch(compiled(spec, unit), given, y, *attention.scratch(spec, unit))
    plain = replace(spec, k=Access.dense(2, shared, keys, depth), v=Access.dense(2, shared, keys, value_depth))
    np.testing.assert_allclose(found, expected(plain, given[0], *read), rtol=1e-4, atol=1e-5, err_msg=str(spec))


@pytest.mark.parametrize("unit", UNITS)
def test_scores_are_capped_before_they_are_masked(unit):
    spec = dense(1, 2, 19, 19, 8, 8, scale=0.4, cap=1.5, masks=(ScoreMask("add", (1, 2, 19, 19)),))
    found, wanted = run(spec, unit)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("unit", "mask", "nan_is_zero"), pairs(UNITS, ("add", "where", "causal"), (False, True)))
def test_queries_that_see_nothing(unit, mask, nan_is_zero):
    """Of all scores -inf, or one NaN, or one infinite, the softmax is NaN; where that is 0, so is the result, unless V is NaN."""
    tokens, depth = 70, 8
    shape = None if mask == "causal" else (1, 1, tokens, tokens)
    masks = () if shape is None else (ScoreMask(mask, shape, -np.inf),)
    spec = dense(1, 2, tokens, tokens, depth, depth, masks=masks, causal=mask == "causal", nan_is_zero=nan_is_zero)
    rng = np.random.default_rng(0)
    q, k, v = (tensor_of(rng, access) for access in (spec.q, spec.k, spec.v))
    q[0, 0, 3], q[0, 1, 66, 0] = np.nan, np.inf
    v[0, 1, 0, 2] = np.nan
    given = []
    if mask != "causal":
        given = [np.full(shape, 1.0 if mask == "where" else 0.0, "f4")]
        given[0][0, 0, :, [7, 69]] = 0.0 if mask == "where" else -np.inf
    with np.errstate(invalid="ignore"):
        scores = q[0] @ k[0].transpose(0, 2, 1)
        if mask == "causal":
            scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
        elif mask == "add":
            scores += given[0][0, 0].T
        else:
            scores = np.where(given[0][0, 0].T != 0, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        weights = np.where(np.isnan(weights), 0, weights) if nan_is_zero else weights
        wanted = weights @ v[0]
    assert np.isnan(scores).any() and np.isnan(wanted).any()
    kernel = compiled(spec, unit)
    (scratch,) = attention.scratch(spec, unit)
    found = call_with_scratch(kernel, [q, k, v, *given], np.full(spec.y.buffer, -1, "f4"), scratch)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_scratch_grows_with_the_keys_and_not_with_their_square():
    unit = VectorUnit(16, 32)

    def floats(tokens: int) -> int:
        return int(np.prod(attention.scratch(dense(1, 12, tokens, tokens, 64, 64), unit)[0]))

    assert floats(4096) < 2.1 * floats(2048)
    assert floats(2048) < 2048 * 2048 / 4


def over_cache(spec: AttentionSpec, unit: VectorUnit, lengths: list[int]) -> np.ndarray:
    """What the kernel computes where all rows behind the valid ones are NaN."""
    rng = np.random.default_rng(0)
    q, k, v = (tensor_of(rng, access) for access in (spec.q, spec.k, spec.v))
    wanted = np.zeros(spec.y.buffer, "f4")
    for batch, length in enumerate(lengths):
        valid = min(max(length, 0), spec.keys)
        k[batch, :, valid:], v[batch, :, valid:] = np.nan, np.nan
        for head in range(spec.heads):
            shared = head // spec.group
            scores = spec.scale * q[batch, head].astype("f8") @ k[batch, shared, :valid].T
            if spec.causal:
                scores[~np.tril(np.ones(scores.shape, bool), valid - spec.queries)] = -np.inf
            some = (scores > -np.inf).any(-1)
            weights = np.exp(scores[some] - scores[some].max(-1, keepdims=True)) if some.any() else np.zeros((0, valid))
            wanted[batch, head, some] = weights / weights.sum(-1, keepdims=True) @ v[batch, shared, :valid]
    kernel = compiled(spec, unit)
    found = call_with_scratch(kernel, [q, k, v, np.int64(lengths)], np.full(spec.y.buffer, np.nan, "f4"),
                              attention.scratch(spec, unit)[0])  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{spec} {lengths}")
    return found


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("causal", [False, True])
def test_of_a_cache_only_valid_rows_are_read(unit, causal):
    """The others are NaN here. Heads of keys in common, queries that see nothing, and lengths that no caller may give."""
    heads, keys, depth = 4, 45, 8
    for queries in (1, 5, 20):
        k = Access.dense(2, heads // 2, keys, depth)
        spec = AttentionSpec(
            2, heads, queries, keys, depth, depth, Access.dense(2, heads, queries, depth), k, k,
            Access.dense(2, heads, queries, depth), scale=0.3, causal=causal, has_lengths=True, group=2,
        )  # fmt: skip
        for lengths in ([45, 20], [1, 0], [17, 3], [-4, 10**12]):
            over_cache(spec, unit, lengths)


@pytest.mark.parametrize("unit", UNITS)
def test_keys_that_masks_hide_are_not_read(unit):
    """As `lengths` say; they are NaN here."""
    spec = dense(2, 2, 5, 45, 8, 8, scale=0.3, cap=2.0, has_lengths=True,
                 masks=(ScoreMask("add", (1, 1, 45, 5)), ScoreMask("where", (2, 1, 45, 1), float("-inf"))))  # fmt: skip
    rng = np.random.default_rng(0)
    q, k, v = (tensor_of(rng, access) for access in (spec.q, spec.k, spec.v))
    for lengths in (np.int64([45, 20]), np.int64([1, 17])):
        seen_keys = np.arange(45) < lengths[:, None]
        masks = [rng.standard_normal((1, 1, 45, 5)).astype("f4"), seen_keys.astype("f4").reshape(2, 1, 45, 1)]
        wanted = expected(spec, q, k, v, *masks)
        hidden = ~seen_keys[:, None, :, None]
        given = [q, np.where(hidden, np.float32(np.nan), k), np.where(hidden, np.float32(np.nan), v), *masks, lengths]
        found = call_with_scratch(compiled(spec, unit), given, np.zeros(spec.y.buffer, "f4"), *attention.scratch(spec, unit))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_time_goes_with_the_valid_keys():
    """Of 4096, 16 take a small part of the time."""
    spec, unit = dense(1, 1, 1, 4096, 64, 64, causal=True, has_lengths=True), VectorUnit(8, 16)
    rng = np.random.default_rng(0)
    kernel = compiled(spec, unit)
    args = [tvm.runtime.tensor(tensor_of(rng, access)) for access in (spec.q, spec.k, spec.v)]
    rest = [tvm.runtime.tensor(np.zeros(shape, "f4")) for shape in (spec.y.buffer, *attention.scratch(spec, unit))]

    def seconds(length: int) -> float:
        valid, times = tvm.runtime.tensor(np.int64([length])), []
        for _ in range(20):
            start = time.perf_counter()
            kernel(*args, valid, *rest)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(16) < seconds(4096) / 5


def test_what_a_causal_mask_hides_is_not_read():
    """Keys after the last query of the first block may be anything."""
    unit, tokens = VectorUnit(8, 16), 64
    spec = dense(1, 1, tokens, tokens, 8, 8, causal=True)
    rng = np.random.default_rng(0)
    q, k, v = (tensor_of(rng, access) for access in (spec.q, spec.k, spec.v))
    wanted = expected(spec, q, k, v)
    k[..., 32:, :], v[..., 32:, :] = np.nan, np.nan
    kernel = compiled(spec, unit)
    found = call_with_scratch(kernel, [q, k, v], np.zeros(spec.y.buffer, "f4"), attention.scratch(spec, unit)[0])
    np.testing.assert_allclose(found[..., :16, :], wanted[..., :16, :], rtol=1e-4, atol=1e-5)


def test_nan_reaches_every_query_that_sees_it():
    spec = dense(1, 1, 20, 20, 8, 8)
    rng = np.random.default_rng(0)
    q, k, v = (tensor_of(rng, access) for access in (spec.q, spec.k, spec.v))
    k[..., 3, 2] = np.nan
    unit = VectorUnit(8, 16)
    kernel = compiled(spec, unit)
    found = call_with_scratch(kernel, [q, k, v], np.zeros(spec.y.buffer, "f4"), attention.scratch(spec, unit)[0])
    assert np.isnan(found).all()


def test_no_memory_besides_the_operands():
    for unit in UNITS:
        require_no_memory({"kernel": attention.kernel(dense(1, 12, 197, 197, 64, 64), unit)})


def test_masks_are_checked():
    with pytest.raises(ValueError, match="as many keys"):
        dense(1, 1, 5, 4, 8, 8, causal=True)
    with pytest.raises(ValueError, match="is the only one"):
        dense(1, 1, 5, 5, 8, 8, masks=(ScoreMask("add", (1, 1, 5, 5)),), causal=True, has_lengths=True)
    with pytest.raises(ValueError, match="no groups of 2"):
        dense(1, 3, 5, 5, 8, 8, group=2)
    with pytest.raises(ValueError, match="'later' is none of"):
        ScoreMask("later", (1, 1, 5, 5))
    with pytest.raises(ValueError, match="has no tensor"):
        ScoreMask("causal", (1, 1, 5, 5))
    with pytest.raises(ValueError, match="has a tensor"):
        ScoreMask("add")


def test_scores_by_position_are_checked():
    one = Access.dense(1, 1, 5, 5)
    term = PositionScores("key", one, one, (1, 1, 5, 5), 5, 5)
    with pytest.raises(ValueError, match="added once"):
        dense(1, 1, 5, 5, 8, 8, positions=(term,))
    with pytest.raises(ValueError, match="not by 'value'"):
        PositionScores("value", one, one, (1, 1, 5, 5), 5, 5)


def test_scratch_of_positions_does_not_grow_with_the_heads():
    def floats(heads: int) -> int:
        one = Access.dense(1, heads, 512, 64)
        term = PositionScores("key", one, Access.dense(1, heads, 64, 512), (1, 1, 512, 512), 64, 512)
        spec = dense(1, heads, 512, 512, 64, 64, masks=(ScoreMask("positions"),), positions=(term,))
        return sum(int(np.prod(shape)) for shape in attention.scratch(spec, VectorUnit(16, 32)))

    assert floats(12) == floats(2) < 2 * 512 * 512


def test_work_is_that_of_the_keys_that_are_read():
    """Of a cache while it fills, half of all; of a causal mask those that are not later."""
    unit, whole = VectorUnit(16, 32), dense(1, 2, 1, 1024, 64, 64)
    cached = replace(whole, has_lengths=True, causal=True)
    assert attention.work(cached, unit) == pytest.approx(attention.work(whole, unit) / 2, rel=1e-2)
    square = dense(1, 2, 512, 512, 64, 64)
    assert attention.work(replace(square, causal=True), unit) == pytest.approx(attention.work(square, unit) / 2, rel=1e-2)
