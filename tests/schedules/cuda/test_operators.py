"""Pooling, functions of rows and attention for GPUs: as TVM's own lowering and NumPy have them, every barrier needed."""

import numpy as np
import pytest
import tvm

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, attention, pool, rowwise
from flexcomp.schedules.operators.attention_spec import Access, AttentionSpec, ScoreMask
from flexcomp.schedules.operators.pool import PoolSpec
from flexcomp.schedules.operators.rowwise import KINDS, RowSpec
from tests.cuda.on_cpu.emulator import Emulator
from tests.schedules.cuda import barriers
from tests.schedules.kernels import library
from tests.schedules.operators import attentions, pools
from tests.schedules.operators.rows import EPSILON, exact

ORIN = ARCHITECTURES["sm_87"]
ROWS = {
    **{f"{kind}_{columns}": RowSpec(kind, (3, columns), 1, EPSILON) for kind in KINDS for columns in (1, 33, 197, 768)},
    "affine": RowSpec("layer_norm", (6, 5, 99), 2, EPSILON, has_scale=True, has_bias=True),
}


def _thirds() -> AttentionSpec:
    """Q, K and V are thirds of one projection's rows; heads lie side by side."""
    parts = [Access((2, 35, 72), i * 24, 35 * 72, 8, 72) for i in range(3)]
    return AttentionSpec(2, 3, 35, 35, 8, 8, *parts, Access((2, 35, 24), 0, 35 * 24, 8, 24), scale=0.5, causal=True)


ATTENTIONS = {
    "plain": attentions.dense(2, 2, 33, 70, 20, 24, scale=0.3),
    "causal": attentions.dense(1, 2, 77, 82, 16, 5, scale=0.3, causal=True),
    "added": attentions.dense(2, 2, 7, 64, 33, 16, scale=0.3, masks=(ScoreMask("add", (2, 1, 64, 7)),)),
    "chosen": attentions.dense(1, 3, 40, 40, 8, 70, scale=0.3, masks=(ScoreMask("where", (1, 3, 40, 1), -3.0),)),
    "blended": attentions.dense(1, 2, 20, 33, 8, 8, scale=0.3, masks=(ScoreMask("blend", (1, 1, 33, 20), -3.0),)),
    "several": attentions.dense(
        2, 2, 20, 33, 8, 8, scale=0.3, causal=True,
        masks=(ScoreMask("add", (1, 2, 33, 1)), ScoreMask("causal", fill=-5.0), ScoreMask("where", (2, 1, 33, 20), -3.0)),
    ),
    "capped": attentions.dense(1, 2, 20, 33, 8, 8, scale=0.3, cap=1.5),
    "hidden": attentions.dense(
        1, 3, 40, 2, 8, 8, masks=(ScoreMask("where", (1, 3, 2, 40), float("-inf")),), nan_is_zero=True
    ),
    "deep": attentions.dense(1, 1, 20, 40, 128, 128, scale=0.1),
    "in_place": _thirds(),
    "short": attentions.dense(1, 2, 16, 16, 8, 8, scale=0.3, causal=True),  # all keys are one part
    "few": attentions.dense(
        2, 2, 3, 150, 20, 21, scale=0.3, causal=True,
        masks=(ScoreMask("add", (2, 1, 150, 3)), ScoreMask("where", (1, 2, 150, 1), -3.0)),
    ),
    "few_hidden": attentions.dense(
        1, 3, 2, 40, 8, 270, masks=(ScoreMask("where", (1, 3, 40, 2), float("-inf")),), nan_is_zero=True
    ),
    "one_of_few_keys": attentions.dense(1, 2, 1, 5, 128, 128, scale=0.1, cap=1.5),
}
CACHES = {
    f"cache_{'causal' if causal else None}_{queries}": AttentionSpec(
        2, 4, queries, 45, 8, 8, Access.dense(2, 4, queries, 8), *[Access.dense(2, 2, 45, 8)] * 2,
        Access.dense(2, 4, queries, 8), scale=0.3, causal=causal, has_lengths=True, group=2,
    )
    for causal in (False, True)
    for queries in (1, 20)
}  # fmt: skip


BOUNDED = attentions.dense(
    1, 2, 5, 45, 8, 8, scale=0.3, cap=2.0, masks=(ScoreMask("where", (1, 1, 45, 1), float("-inf")),), has_lengths=True
)


def pool_cases():
    """Names with (spec, TVM's function)."""
    for i, case in enumerate(pools.CASES):
        for kind, count_include_pad in pools.VARIANTS:
            function, shape = pools.relax_function(case, kind, count_include_pad)
            n, h, w, c, window, stride, padding, dilation, _ = case
            spec = PoolSpec(n, h, w, c, *window, stride, padding, dilation, kind, count_include_pad, *shape[1:3])
            yield f"{kind}{int(count_include_pad)}_{i}", (spec, function)


POOLS = dict(pool_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    functions = {name: pool.kernel(spec) for name, (spec, _) in POOLS.items()}
    functions |= {name: rowwise.kernel(spec) for name, spec in ROWS.items()}
    functions |= {name: attention.kernel(spec, ORIN) for name, spec in {**ATTENTIONS, **CACHES, "bounded": BOUNDED}.items()}
    codes = {name: cuda_code(function, ORIN, name) for name, function in functions.items()}
    return Emulator(codes, tmp_path_factory.mktemp("operators"))


def test_windows_agree_with_tvm(emulator):
    reference = library({name: function for name, (_, function) in POOLS.items()}, references=True)
    for name, (spec, _) in POOLS.items():
        x = np.random.default_rng(0).standard_normal((spec.n, spec.h, spec.w, spec.c)).astype("f4")
        x[0, 2, 2, 0] = np.nan
        y = np.full((spec.n, spec.out_h, spec.out_w, spec.c), np.nan, "f4")
        found = emulator.run(name, [x, y])[-1]
        number = np.where(np.isnan(x), np.float32(0), x)
        result = tvm.runtime.tensor(y)
        reference[name](tvm.runtime.tensor(number), result)
        seen = np.isnan(found)
        assert 0 < seen.sum() <= spec.kh * spec.kw
        np.testing.assert_allclose(found[~seen], result.numpy()[~seen], rtol=1e-5, atol=1e-6, err_msg=name)


def row_arguments(spec: RowSpec, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    row = spec.shape[len(spec.shape) - spec.axes :]
    vectors = [rng.standard_normal(row).astype("f4") for wanted in (spec.has_scale, spec.has_bias) if wanted]
    return [rng.standard_normal(spec.shape).astype("f4"), *vectors, np.full(spec.shape, np.nan, "f4")]


@pytest.mark.parametrize("name", ROWS)
def test_rows_agree_with_numpy(emulator, name):
    spec = ROWS[name]
    x, *vectors, y = row_arguments(spec, 0)
    wanted = exact(spec.kind, x, spec.axes)
    if vectors:
        wanted = wanted * vectors[0] + vectors[1]
    for seed in range(3):
        found = emulator.run(name, [x, *vectors, y], seed=seed)[-1]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)
    assert barriers.needless(emulator, name, lambda seed: row_arguments(spec, seed)) == []
    assert bool(emulator.barriers(name)) == (spec.columns >= 256)


def attention_arguments(spec: AttentionSpec, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    tensors = [attentions.tensor_of(rng, access) for access in (spec.q, spec.k, spec.v)]
    return [*tensors, *attentions.masks_of(rng, spec), np.full(spec.y.buffer, np.nan, "f4")]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_agrees_with_numpy(emulator, name):
    spec = ATTENTIONS[name]
    arguments = attention_arguments(spec, 0)
    wanted = attentions.expected(spec, *arguments[:-1])
    for seed in range(3):
        found = emulator.run(name, arguments, seed=seed)[-1]
        seen = attentions.seen(spec.y, found, spec.batch, spec.heads, spec.queries, spec.value_depth)
        np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-5)
    assert emulator.barriers(name) == (1 if spec.queries < 5 else 2 if name in ("short", "hidden") else 3)
    assert barriers.needless(emulator, name, lambda seed: attention_arguments(spec, seed)) == []


@pytest.mark.parametrize("name", CACHES)
def test_every_barrier_of_attention_to_a_cache_is_needed(emulator, name):
    spec = CACHES[name]

    def arguments(seed: int) -> list[np.ndarray]:
        *tensors, y = attention_arguments(spec, seed)
        return [*tensors, np.int64([spec.keys, spec.keys - 3]), y]

    assert emulator.barriers(name) == (1 if spec.queries < 5 else 3)
    assert barriers.needless(emulator, name, arguments) == []


def test_keys_that_are_all_hidden_spoil_nothing(emulator):
    """A part of the keys whose scores are all minus infinity comes before one that is seen."""
    spec = ATTENTIONS["added"]
    q, k, v, mask, y = attention_arguments(spec, 0)
    mask[:, :, :32] = -np.inf
    found = emulator.run("added", [q, k, v, mask, y])[-1]
    with np.errstate(invalid="ignore"):
        wanted = attentions.expected(spec, q, k, v, mask)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_keys_that_masks_hide_are_not_read(emulator):
    """As their number says; they are NaN here."""
    q, k, v, mask, y = attention_arguments(BOUNDED, 0)
    mask[:, :, 20:] = 0
    mask[:, :, 0] = 1
    wanted = attentions.expected(BOUNDED, q, k, v, mask)
    k[:, :, 20:], v[:, :, 20:] = np.nan, np.nan
    found = emulator.run("bounded", [q, k, v, mask, np.int64([20]), y])[-1]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [[45, 20], [1, 0], [17, 3], [-4, 10**12]])
@pytest.mark.parametrize("name", CACHES)
def test_of_a_cache_only_valid_rows_are_read(emulator, name, lengths):
    """The others are NaN here; queries that see nothing give 0."""
    spec, rng = CACHES[name], np.random.default_rng(0)
    q, k, v = (attentions.tensor_of(rng, access) for access in (spec.q, spec.k, spec.v))
    y = np.full(spec.y.buffer, np.nan, "f4")
    wanted = np.zeros(spec.y.buffer)
    for batch, length in enumerate(lengths):
        valid = min(max(length, 0), spec.keys)
        k[batch, :, valid:], v[batch, :, valid:] = np.nan, np.nan
        for head in range(spec.heads):
            keys, values = k[batch, head // spec.group, :valid], v[batch, head // spec.group, :valid]
            weights = np.exp(spec.scale * q[batch, head].astype("f8") @ keys.T)
            if spec.causal:
                weights *= np.tril(np.ones(weights.shape), valid - spec.queries)
            total = weights.sum(-1, keepdims=True)
            wanted[batch, head] = weights @ values / np.where(total > 0, total, 1)
    found = emulator.run(name, [q, k, v, np.int64(lengths), y], seed=1)[-1]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
