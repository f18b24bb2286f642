"""Attention kernels of few queries against NumPy: heads with common keys, masks, windows, types; and how these are cut."""

from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import ir
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.schedules.operators import attention
from flexcomp.schedules.operators.attention_rows import Rows, takes
from flexcomp.schedules.operators.attention_spec import Access, AttentionSpec, ScoreMask
from flexcomp.schedules.tiles.lane_sums import added_up
from flexcomp.schedules.tiles.tile import VectorUnit
from tests.pairs import pairs
from tests.schedules.kernels import call, library

from .attentions import dense, expected, narrowed, tensor_of
from .test_attention import UNITS, call_with_scratch, compiled, run

ONE_THREAD, TWO_THREADS = VectorUnit(16, 32), VectorUnit(16, 32, threads=2)


def grouped(heads: int, group: int, queries: int, keys: int, depths: tuple[int, int], **kwargs) -> AttentionSpec:
    """`group` heads of queries for each one of keys."""
    wide = dense(2, heads, queries, keys, *depths, group=group, **kwargs)
    k, v = (Access.dense(2, heads // group, keys, depth) for depth in depths)
    return replace(wide, k=k, v=v)


@pytest.mark.parametrize(
    ("unit", "queries", "heads_group", "keys", "depths", "masks"),
    pairs(
        UNITS, (1, 2, 3), ((3, 1), (6, 3), (8, 4), (7, 7), (40, 20)), (3, 16, 37, 64), ((20, 5), (64, 64), (16, 33)),
        ((), (("add", 1, 1),), (("where", 0, 1), ("causal",)), (("blend", 0, 0),), (("add", 1, 0), ("where", 1, 1))),
    ),
)  # fmt: skip
def test_heads_with_common_keys(unit, queries, heads_group, keys, depths, masks):
    """Masks are of all heads and queries, or of each."""
    (heads, group), made = heads_group, []
    for kind, *common in masks:
        shape = (1, 1 if common[0] else heads, keys, 1 if common[1] else queries) if common else None
        made.append(ScoreMask(kind, shape, -3.0))
    spec = grouped(heads, group, queries, keys, depths, scale=0.3, masks=tuple(made), cap=None if masks else 1.5)
    found, wanted = run(spec, unit)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=str(spec))


@pytest.mark.parametrize(
    ("unit", "group", "kinds", "length", "begin"),
    pairs(UNITS, (1, 4), (("float32", "float32"), ("int8", "int8"), ("float16", "int8")), (45, 17, 1), (0, 16, 44, -3, 10**9)),
)
def test_a_window_of_valid_keys(unit, group, kinds, length, begin):
    """A mask hides what lies before, and nothing outside the window is used, whatever the caller says: it is NaN here."""
    keys, depth, heads = 45, 12, 4
    spec = grouped(
        heads, group, 1, keys, (depth, depth), scale=0.3, has_lengths=True, has_begins=True,
        masks=(ScoreMask("where", (1, 1, keys, 1), float("-inf")),),
    )  # fmt: skip
    first = min(max(begin, 0), length - 1)
    inside = (np.arange(keys) >= first) & (np.arange(keys) < length)
    rng = np.random.default_rng(0)
    q, mask = tensor_of(rng, spec.q), inside.astype("f4").reshape(1, 1, keys, 1)
    rows = rng.standard_normal((2, 2, heads // group, keys, depth)).astype("f4")
    stored = {"k": spec.k.stored(kinds[0], depth), "v": spec.v.stored(kinds[1], depth)}
    given, read = [], []
    for access, own in zip(stored.values(), rows, strict=True):
        kept, numbers = (own, own) if access.dtype == "float32" else narrowed(access, own)
        read.append(numbers)
        outside = ~inside[:, None]
        hidden = np.full_like(kept, np.nan) if kept.dtype != np.int8 else np.full_like(kept, -1)  # with a scale that is NaN
        given.append(np.where(outside, hidden, kept))
    kernel = compiled(replace(spec, **stored), unit)
    bounds = [np.full(2, length, "i8"), np.full(2, begin, "i8")]
    y = np.full(spec.y.buffer, np.nan, "f4")
    found = call_with_scratch(kernel, [q, *given, mask, *bounds], y, *attention.scratch(replace(spec, **stored), unit))
    np.testing.assert_allclose(found, expected(spec, q, *read, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("group", [1, 4, 8])
def test_heads_with_common_keys_share_loads_of_them(group):
    """A tile of scores loads each key once for all rows."""
    spec, loads = grouped(16, group, 1, 64, (64, 64)), []
    spec = replace(spec, k=replace(spec.k, dtype="float16"))
    cut = Rows(spec, ONE_THREAD)
    tvm_ffi.structural_walk(attention.kernel(spec, ONE_THREAD).body, [(ir.TensorLoad, loads.append)])
    assert cut.rows == group and cut.keys * group == 16
    assert sum(str(load.ty.dtype) == "float16x16" for load in loads) == cut.keys


def test_all_threads_have_heads():
    one = grouped(8, 8, 1, 4096, (64, 64))
    assert Rows(replace(one, batch=1), ONE_THREAD).heads == 8
    cut = Rows(replace(one, batch=1), TWO_THREADS)
    assert (cut.heads, cut.tasks, cut.slots) == (4, 2, 2)


def test_queries_that_fill_lanes_are_in_lanes():
    assert takes(dense(1, 2, 15, 64, 64, 64), ONE_THREAD) and not takes(dense(1, 2, 16, 64, 64, 64), ONE_THREAD)
    assert takes(dense(1, 2, 3, 64, 64, 64), VectorUnit(4, 32)) and not takes(dense(1, 2, 4, 64, 64, 64), VectorUnit(4, 32))
    served = replace(ONE_THREAD, padded=((16, 8), (7, 1)))
    assert [takes(dense(1, 2, queries, 64, 64, 64), served) for queries in (7, 8, 15)] == [True, False, False]


def test_scratch_of_one_query_is_that_of_its_scores():
    assert attention.scratch(grouped(8, 4, 1, 1024, (64, 64)), ONE_THREAD) == ((4, 4 * 1024),)


def test_work_counts_reading_or_computing():
    """One row waits for the keys from memory, which hide almost all products; of eight, products take longer."""
    one, eight = (replace(grouped(heads, heads, 1, 1024, (64, 64)), batch=1) for heads in (1, 8))
    nbytes = 2 * 1024 * 64 * 4
    assert attention.work(one, ONE_THREAD) == pytest.approx(ONE_THREAD.memory.far * nbytes, rel=0.01)
    assert attention.work(eight, ONE_THREAD) > eight.flops
    narrow = replace(one, k=one.k.stored("float16", 64), v=one.v.stored("float16", 64))
    assert attention.work(narrow, ONE_THREAD) < attention.work(one, ONE_THREAD)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("missing", [(), (1,), (0, 1)])
def test_sums_of_lanes(unit, missing):
    width = unit.width
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        x = T.arg("x", T.buffer((width, width), "float32"))
        y = T.arg("y", T.buffer((width,), "float32"))
        vectors = [None if i in missing else T.bind(x[i, T.ramp(0, 1, width)]) for i in range(width)]
        T.buffer_store(y, added_up(vectors, unit), [T.ramp(0, 1, width)])
    given = np.random.default_rng(0).standard_normal((width, width)).astype("f4")
    wanted = given.sum(1)
    wanted[list(missing)] = 0
    found = call(library({"sums": builder.get()})["sums"], given, out=(width,))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert added_up([None] * width, unit) is None
