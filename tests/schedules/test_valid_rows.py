"""Kernels that stop after the valid rows: the loops that end there, the kernels that have none, and what they compute."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.schedules.operators import attention, rowwise
from flexcomp.schedules.operators.attention_spec import Access, AttentionSpec, ScoreMask
from flexcomp.schedules.operators.rowwise import RowSpec
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit
from flexcomp.schedules.valid_rows import by_rows, folded, with_zeros
from tests.schedules.kernels import library

AVX2 = VectorUnit(8, 16)
ROWS, WIDTH = 24, 16
DENSE = ConvSpec(1, 1, 48, 512, 256)


def made(emit, x=(ROWS, WIDTH), y=(ROWS, WIDTH)):
    """The kernel (x, y) that `emit` writes."""
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            emit(T.arg("x", T.buffer(x, "float32")), T.arg("y", T.buffer(y, "float32")))
    return builder.get()


def bounded(kernel, rows=ROWS, operands=(0,), results=(1,), **more):
    return by_rows(kernel, rows, operands, results, 1, **more)


def extents(kernel):
    """Of the loops, as text."""
    found = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, lambda loop: found.append(str(tvm.sym.Analyzer().simplify(loop.extent)))))
    return found


def per_row(x, y):
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, x[i, j] + tirx.const(1.0, "float32"), [i, j])


def in_one_loop(x, y):
    with T.serial(ROWS * WIDTH // 8) as i:
        T.buffer_store(y, x[i // 2, i % 2 * 8] * tirx.const(2.0, "float32"), [i // 2, i % 2 * 8])


def test_a_loop_over_rows_ends_and_zeros_follow():
    for emit, inner in ((per_row, [str(WIDTH)]), (in_one_loop, [])):
        found = extents(bounded(made(emit)).kernel)
        assert ["wanted" in one for one in found].count(True) == ["left" in one for one in found].count(True) == 1
        assert [one for one in found if one.isdigit()] == inner


@pytest.mark.parametrize(("dtype", "width", "ends"), [("uint8", 64, True), ("int8", 16, False), ("bool", 64, False)])
def test_rows_of_bytes_end_where_they_are_no_mask(dtype, width, ends):
    """Zeros in a mask hide; rows of 16 bytes are written as fast as zeros."""
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            x, y = T.arg("x", T.buffer((ROWS, width), "float32")), T.arg("y", T.buffer((ROWS, width), dtype))
            with T.serial(ROWS) as i, T.serial(width) as j:
                T.buffer_store(y, tirx.Cast(dtype, x[i, j]), [i, j])
    assert (bounded(builder.get()).kernel is not None) == ends


def both_halves(x, y):
    with T.serial(ROWS // 2) as i, T.serial(WIDTH) as j:
        for row in (i + ROWS // 2, i):
            T.buffer_store(y, x[row, j] + tirx.const(1.0, "float32"), [row, j])


@pytest.mark.parametrize("emit", [per_row, both_halves])
def test_no_number_leads_out_of_the_result(emit):
    kernel = library({"told": bounded(made(emit)).kernel})["told"]
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("float32")
    for valid in (-(2**40), -1, 0, 1, 7, ROWS, ROWS + 1, 2**63 - 1):
        y = tvm.runtime.tensor(np.full((ROWS, WIDTH), np.nan, "float32"))
        kernel(tvm.runtime.tensor(x), y, valid)
        count = min(max(valid, 0), ROWS)
        np.testing.assert_array_equal(y.numpy()[:count], x[:count] + 1)
        np.testing.assert_array_equal(y.numpy()[count:], 0)


def test_the_last_of_several_slices_writes_zeros():
    """After all others, whose tiles may reach beyond the valid rows."""
    candidate = next(one for one in candidates(DENSE, AVX2) if one.family == "direct")
    kernel, panel = candidate.build(), candidate.panel
    compiled = library({"told": by_rows(kernel, DENSE.width, [0], [4], panel.blocks).kernel})["told"]
    x, weights = (np.ones(tuple(map(int, of.shape)), "float32") for of in kernel.params[:2])
    y = tvm.runtime.tensor(np.full((1, 1, DENSE.width, 256), np.nan, "float32"))
    half = panel.blocks // 2
    for first, count in ((0, half), (half, panel.blocks - half)):
        part = np.ascontiguousarray(weights[first : first + count])
        compiled(tvm.runtime.tensor(x), tvm.runtime.tensor(part), first, count, y, 5)
        found = y.numpy()[0, 0]
        assert np.isnan(found[-1]).any() == (first == 0)
    assert (found[5:] == 0).all() and np.isfinite(found).all()


def summed(x, y):
    """Rows of y are columns of x."""
    with T.serial(ROWS) as i, T.serial(ROWS) as j:
        T.buffer_store(y, x[j, i], [i, j])


def reversed_rows(x, y):
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, x[ROWS - 1 - i, j], [i, j])


def repeated_rows(x, y):
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, x[i // 2, j], [i, j])


def rows_below(x, y):
    with T.serial(ROWS - 1) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, x[i + 1, j], [i, j])


def first_row(x, y):
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, x[0, j], [i, j])


def last_row_added(x, y):
    per_row(x, y)
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, y[ROWS - 1, j] + x[i, j], [i, j])


def one_row(x, y):
    with T.serial(WIDTH) as j:
        T.buffer_store(y, tirx.const(0.0, "float32"), [0, j])
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, y[0, j] + x[i, j], [0, j])


@pytest.mark.parametrize(
    ("emit", "y"), [
        (summed, (ROWS, ROWS)), (reversed_rows, (ROWS, WIDTH)), (repeated_rows, (ROWS, WIDTH)), (rows_below, (ROWS, WIDTH)),
        (first_row, (ROWS, WIDTH)), (last_row_added, (ROWS, WIDTH)), (one_row, (1, WIDTH)), (one_row, (ROWS, WIDTH)),
    ],
)
def test_other_rows_are_no_rows(emit, y):
    x = (ROWS, ROWS) if emit is summed else (ROWS, WIDTH)
    assert bounded(made(emit, x, y)) is None


def test_masks_are_computed_whole():
    def emit(x, y):
        with T.serial(ROWS) as i:
            T.buffer_store(y, x[i, 0], [i, 0])

    found = bounded(made(emit, (ROWS, 1), (ROWS, 1)))
    assert found is not None and found.kernel is None


def most_of(steps, width=16):
    """The largest element of x, `width` by `width`."""

    def emit(x, y):
        most = T.alloc_buffer((width,), "float32")
        flat = T.decl_buffer((steps * width,), data=x.data)
        with T.vectorized(width) as lane:
            T.buffer_store(most, tirx.const(-np.inf, "float32"), [lane])
        with T.serial(steps) as i, T.vectorized(width) as lane:
            T.buffer_store(most, tirx.max(most[lane], flat[i * width + lane]), [lane])
        T.buffer_store(y, tirx.const(-np.inf, "float32"), [0])
        with T.serial(width) as lane:
            T.buffer_store(y, tirx.max(y[0], most[lane]), [0])

    return emit


def sums_of_columns(x, y):
    with T.serial(WIDTH) as j:
        T.buffer_store(y, tirx.const(0.0, "float32"), [j])
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, y[j] + x[i, j], [j])


@pytest.mark.parametrize(
    ("emit", "x", "y", "of"),
    [
        (most_of(ROWS), (ROWS, WIDTH), (1,), np.max),
        (most_of(15), (ROWS, 10), (1,), np.max),  # some steps hold parts of two rows
        (sums_of_columns, (ROWS, WIDTH), (WIDTH,), partial(np.sum, axis=0)),
    ],
)
def test_reductions_leave_rows_out(emit, x, y, of):
    """Whatever these hold."""
    told = folded(made(emit, x, y), ROWS, [0], [1])
    assert any("wanted" in one for one in extents(told))
    compiled = library({"told": told})["told"]
    given = np.random.default_rng(0).standard_normal(x).astype("float32")
    for valid in (ROWS, ROWS - 1, 7, 1):
        given[valid:] = np.nan
        found = tvm.runtime.tensor(np.full(y, np.nan, "float32"))
        compiled(tvm.runtime.tensor(given), found, valid)
        np.testing.assert_allclose(found.numpy(), of(given[:valid]).reshape(y), rtol=1e-6)


def first_of_all(x, y):
    T.buffer_store(y, x[0, 0], [0])
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, tirx.max(y[0], x[i, j]), [0])


def another_sum(x, y):
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, y[(j + 1) % WIDTH] + x[i, j], [j])


@pytest.mark.parametrize(
    ("emit", "y"), [(first_of_all, (1,)), (another_sum, (WIDTH,)), (per_row, (ROWS, WIDTH))]
)
def test_what_is_no_reduction(emit, y):
    assert folded(made(emit, y=y), ROWS, [0], [1]) is None


def test_a_loop_goes_on_if_what_it_leaves_is_read():
    def emit(x, y):
        last = T.alloc_buffer((WIDTH,), "float32")
        with T.serial(ROWS) as i, T.serial(WIDTH) as j:
            T.buffer_store(last, x[i, j], [j])
            T.buffer_store(y, x[i, j], [i, j])
        with T.serial(WIDTH) as j:
            T.buffer_store(y, last[j], [0, j])

    assert extents(bounded(made(emit), declared=True).kernel or made(emit)) == extents(made(emit))


def told(kernel, inputs, y, scratch, *valid):
    """What a kernel writes, with no numbers in its result and scratch before."""
    rest = [tvm.runtime.tensor(np.full(shape, np.nan, "float32")) for shape in (y, *scratch)]
    given = [tvm.runtime.tensor(one) if isinstance(one, np.ndarray) else one for one in inputs]
    kernel(*given, rest[0], *valid, *rest[1:])
    return rest[0].numpy()


def require_same_rows(kernel, found, inputs, y, rows, scratch=()):
    """A kernel that is told gives the rows of the one that is not, and zeros."""
    compiled = library({"whole": kernel, "told": found.kernel})
    for valid in (1, rows // 3, rows - 1, rows):
        given = [one.copy() if isinstance(one, np.ndarray) else one for one in inputs]
        for one in given:
            if isinstance(one, np.ndarray) and rows in one.shape:  # zeros follow in inputs, too
                one.reshape(rows, -1)[valid:] = 0
        wanted = told(compiled["whole"], given, y, scratch).reshape(rows, -1)
        got = told(compiled["told"], given, y, scratch, valid).reshape(rows, -1)
        np.testing.assert_array_equal(got[:valid], wanted[:valid])
        np.testing.assert_array_equal(got[valid:], 0)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("family", ["direct", "strassen", "integer"])
def test_dense_layers(family, threads):
    """Strassen's products read scratch, from which no index leads back to rows, and those of integers see it as bytes."""
    ended = 0
    unit = VectorUnit(8, 16, threads=threads, dots="vpmaddwd" if family == "integer" else "")
    spec = replace(DENSE, weights="int8", integers=True) if family == "integer" else DENSE
    for one in [one for one in candidates(spec, unit) if one.family == family][:3]:
        kernel = one.build()
        panel, scratch = kernel.params[1], kernel.params[5:]
        known = {"declared": True, "scratch": range(5, len(kernel.params))} if family != "direct" else {}
        found = by_rows(kernel, DENSE.width, [0], [4], int(panel.shape[0]), **known)
        assert found is not None
        if found.kernel is not None:
            rng = np.random.default_rng(0)
            x, weights = (rng.standard_normal(tuple(map(int, of.shape))).astype("float32") for of in kernel.params[:2])
            if family == "integer":  # bytes of factors and scales, too
                x, weights = np.round(50 * x), rng.integers(0x3C, 0x3F, weights.shape).astype("int8")
            shapes = [tuple(map(int, of.shape)) for of in scratch]
            require_same_rows(kernel, found, [x, weights, 0, int(panel.shape[0])], (1, 1, 48, 256), DENSE.width, shapes)
            ended += 1
    assert ended


@pytest.mark.parametrize("kind", ["layer_norm", "softmax"])
def test_functions_of_rows(kind):
    kernel = rowwise.kernel(RowSpec(kind, (1, 40, 48)), 8)
    x = np.random.default_rng(2).standard_normal((1, 40, 48)).astype("float32")
    require_same_rows(kernel, bounded(kernel, 40), [x], (1, 40, 48), 40)


def attention_of(rows, *, depth=16, heads=2, **more):
    access = Access((1, rows, heads * depth), 0, rows * heads * depth, depth, heads * depth)
    return AttentionSpec(1, heads, rows, rows, depth, depth, access, access, access, access, **more)


def test_attention_ends_at_the_valid_queries():
    """Whatever its keys are, as in attention to another text."""
    rows = 40
    spec = attention_of(rows)
    dense = Access.dense(1, 2, rows, 16)
    assert spec.follows_queries and spec.follows_keys and not replace(spec, k=dense).follows_keys
    assert not replace(spec, q=dense).follows_queries
    kernel = attention.kernel(spec, AVX2)
    found = bounded(kernel, rows, (0, 1, 2), (3,), declared=True)
    q, k, v = (np.random.default_rng(i).standard_normal(spec.q.buffer).astype("float32") for i in range(3))
    require_same_rows(kernel, found, [q, k, v], spec.q.buffer, rows, attention.scratch(spec, AVX2))


@pytest.mark.parametrize("kind", ["all", "masked", "causal", "lengths"])
@pytest.mark.parametrize("rows", [40, 11])
def test_attention_of_padded_rows_is_that_of_the_rows(kind, rows):
    """No other row is read, of queries, keys or values, nor what a mask says of them; and 64 queries are several blocks."""
    masks = (ScoreMask("add", (1, 1, rows, 1)),) if kind == "masked" else ()
    spec = attention_of(rows, masks=masks, causal=kind == "causal", has_lengths=kind == "lengths")
    narrow = replace(AVX2, registers=12)
    kernel = with_zeros(attention.kernel(spec, narrow, told=True), rows, [4 if kind in ("masked", "lengths") else 3], 1)
    compiled = library({"told": kernel})["told"]
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(spec.q.buffer).astype("float32") for _ in range(3))
    for valid in (1, 3, rows // 2, rows - 1, rows):
        mask = rng.standard_normal((1, 1, rows, 1)).astype("float32")
        visible = max(1, valid - 2) if kind == "lengths" else valid
        for one in (q, k, v, mask.reshape(1, rows, 1)):
            one[:, valid:] = np.nan
        more = {"masked": [mask], "lengths": [np.array([visible], "int64")]}.get(kind, [])
        y = told(compiled, [q, k, v, *more], spec.y.buffer, attention.scratch(spec, narrow), valid)
        heads = [one[0, :valid].reshape(valid, 2, 16).transpose(1, 0, 2) for one in (q, k, v)]
        scores = heads[0] @ heads[1].transpose(0, 2, 1) + (mask[0, 0, :valid, 0] if kind == "masked" else 0)
        scores[:, :, visible:] = -np.inf
        if kind == "causal":
            scores[:, ~np.tri(valid, dtype=bool)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = (p / p.sum(-1, keepdims=True) @ heads[2]).transpose(1, 0, 2).reshape(valid, -1)
        np.testing.assert_allclose(y[0, :valid], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(y[0, valid:], 0)
        q, k, v = (np.nan_to_num(one, nan=0.3) for one in (q, k, v))


def per_row_in_64_bits(x, y):
    with T.serial(T.int64(ROWS)) as i, T.serial(T.int64(WIDTH)) as j:
        T.buffer_store(y, x[i, j] + tirx.const(1.0, "float32"), [i, j])


@pytest.mark.parametrize(("emit", "kind"), [(per_row, "int32"), (per_row_in_64_bits, "int64")])
def test_zeros_are_counted_as_the_kernel_counts(emit, kind):
    """Loops of 64 bits would tell the compiler that TVM made the kernel, whose passes then take twice as long."""
    found = []
    tvm_ffi.structural_walk(bounded(made(emit)).kernel.body, (tirx.For, lambda loop: found.append(loop.loop_var.ty.dtype)))
    assert len(found) == 3 and {*found} == {kind}
