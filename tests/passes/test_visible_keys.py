"""FuseAttention: masks that compare places with a number bound the keys; results stay, and what lies beyond is not read."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from flexcomp.passes import Canonicalise

from .test_fuse_attention import fuse, run

op = relax.op
BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 2, 3, 40, 8
PLACES = np.arange(KEYS, dtype="int64")
LOWEST, INFINITE = float(np.finfo("f4").min), float("-inf")


def network(mask, number: tuple[int, ...], batch: int = BATCH):
    """Attention with scores that `mask(emit, scores, places, n)` gives."""
    builder = relax.BlockBuilder()
    q = relax.Var("q", relax.TensorType((batch, HEADS, QUERIES, DEPTH), "float32"))
    k, v = (relax.Var(name, relax.TensorType((batch, HEADS, KEYS, DEPTH), "float32")) for name in "kv")
    n, places = relax.Var("n", relax.TensorType(number, "int64")), relax.Var("p", relax.TensorType((KEYS,), "int64"))
    with builder.function("main", [q, k, v, n, places], attrs={"num_input": 4}):
        with builder.dataflow():
            emit = builder.emit
            scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
            weights = emit(op.nn.softmax(mask(emit, scores, places, n)))
            output = builder.emit_output(emit(op.matmul(weights, v)))
        builder.emit_func_output(output)
    return Canonicalise()(builder.get())


def hidden(emit, scores, seen, fill: float):
    return emit(op.where(seen, scores, relax.const(fill, "float32")))


def before(emit, scores, places, n, fill=INFINITE):
    return hidden(emit, scores, emit(op.less(places, n)), fill)


def exchanged(emit, scores, places, n, fill=LOWEST):
    return hidden(emit, scores, emit(op.greater_equal(n, places)), fill)


def negated(emit, scores, places, n, fill=INFINITE):
    return hidden(emit, scores, emit(op.logical_not(emit(op.greater_equal(places, n)))), fill)


def added(emit, scores, places, n, fill=LOWEST):
    later = emit(op.expand_dims(emit(op.greater(places, n)), [0, 1]))
    seen = emit(op.where(later, relax.const(fill, "float32"), relax.const(0.0, "float32")))
    return emit(op.add(scores, seen))


def windowed(emit, scores, places, n, fill=INFINITE):
    first = emit(op.subtract(n, relax.const(4, "int64")))
    return hidden(emit, scores, emit(op.logical_and(emit(op.greater(places, first)), emit(op.less_equal(places, n)))), fill)


def added_window(emit, scores, places, n, fill=LOWEST):
    first = emit(op.subtract(n, relax.const(4, "int64")))
    inside = emit(op.logical_and(emit(op.greater(places, first)), emit(op.less_equal(places, n))))
    seen = emit(op.where(inside, relax.const(0.0, "float32"), relax.const(fill, "float32")))
    return emit(op.add(scores, seen))


def soft(emit, scores, places, n):
    return before(emit, scores, places, n, -5.0)


def after(emit, scores, places, n):
    return hidden(emit, scores, emit(op.greater(places, n)), INFINITE)


def description(mod) -> str:
    (kernel,) = (func for gv, func in mod.functions_items() if "attention" in gv.name_hint)
    return str(kernel.attrs["flexcomp.description"])


def expected(q, k, v, visible: np.ndarray, fill: float) -> np.ndarray:
    scores = np.where(visible, q @ k.transpose(0, 1, 3, 2), np.float32(fill))
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


ONE, ROWS = np.int64([[[[9]]], [[[4]]]]), np.int64([[[5], [11], [2]]])
CASES = {
    "before": (before, ONE, lambda n: n > PLACES, INFINITE),
    "exchanged": (exchanged, ROWS[None], lambda n: n >= PLACES, LOWEST),
    "negated": (negated, ROWS[None], lambda n: n > PLACES, INFINITE),
    "added": (added, ROWS[0], lambda n: n >= PLACES, LOWEST),
    "windowed": (windowed, ONE, lambda n: (n >= PLACES) & (n - 4 < PLACES), INFINITE),
    "rows of windows": (windowed, 20 + ROWS[None], lambda n: (n >= PLACES) & (n - 4 < PLACES), INFINITE),
    "after": (after, ROWS[None], lambda n: n < PLACES, INFINITE),
    "added window": (added_window, 20 + ROWS[0], lambda n: (n >= PLACES) & (n - 4 < PLACES), LOWEST),
    "one number": (before, np.int64(7), lambda n: n > PLACES, INFINITE),
}


@pytest.mark.parametrize("name", CASES)
def test_keys_beyond_the_number_are_not_read(name):
    mask, n, visible, fill = CASES[name]
    mod = fuse(network(mask, n.shape), PLACES)
    assert ("of valid keys" in description(mod)) == (name != "after")
    assert ("in a window" in description(mod)) == ("window" in name or name == "after")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((BATCH, HEADS, rows, DEPTH)).astype("f4") for rows in (QUERIES, KEYS, KEYS))
    wanted = expected(q, k, v, visible(n), fill)
    for batch, seen in enumerate(np.broadcast_to(visible(n), (BATCH, 1, QUERIES, KEYS)).any((1, 2))):
        begin, end = PLACES[seen].min(), PLACES[seen].max() + 1
        for one in (k, v):
            one[batch, :, :begin], one[batch, :, end:] = np.nan, np.nan
    np.testing.assert_allclose(run(mod, q, k, v, n, PLACES), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mask", "fill"), [(exchanged, LOWEST), (added, LOWEST), (added_window, LOWEST)])
def test_a_query_that_sees_nothing_has_equal_parts_of_all_keys(mask, fill):
    rng, n = np.random.default_rng(1), np.int64([[3], [-1], [5]])
    q, k, v = (rng.standard_normal((BATCH, HEADS, rows, DEPTH)).astype("f4") for rows in (QUERIES, KEYS, KEYS))
    mod = fuse(network(mask, n.shape), PLACES)
    assert "of valid keys" in description(mod)
    visible = (n >= PLACES) & ((n - 4 < PLACES) | (mask is not added_window))
    np.testing.assert_allclose(run(mod, q, k, v, n, PLACES), expected(q, k, v, visible, fill), rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_nothing_of_what_is_infinitely_far_is_no_number():
    rng, n = np.random.default_rng(1), np.int64([[3], [0], [5]])
    q, k, v = (rng.standard_normal((BATCH, HEADS, rows, DEPTH)).astype("f4") for rows in (QUERIES, KEYS, KEYS))
    found = run(fuse(network(before, n.shape), PLACES), q, k, v, n, PLACES)
    np.testing.assert_allclose(found, expected(q, k, v, n > PLACES, INFINITE), rtol=1e-5, atol=1e-5)
    assert np.isnan(found[:, :, 1]).all()


def test_a_mask_that_hides_softly_bounds_nothing():
    assert "of valid keys" not in description(fuse(network(soft, ()), PLACES))


def test_places_that_do_not_count_bound_nothing():
    assert "of valid keys" not in description(fuse(network(before, ()), PLACES[::-1].copy()))
