"""Kernels that stop after the valid rows: the loops that end there, the kernels that have none, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.schedules.operators import attention, rowwise
from flexcomp.schedules.operators.attention_spec import Access, AttentionSpec
from flexcomp.schedules.operators.rowwise import RowSpec
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit
from flexcomp.schedules.valid_rows import by_rows
from tests.schedules.kernels import library

AVX2 = VectorUnit(8, 16)
ROWS, WIDTH = 24, 16


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
    rows, columns, rest = sorted(extents(bounded(made(per_row)).kernel), key=len, reverse=True)
    assert columns == str(WIDTH) or rest == str(WIDTH)
    assert "wanted" in rows
    assert all("wanted" in extent for extent in extents(bounded(made(in_one_loop)).kernel))


def test_no_number_leads_out_of_the_result():
    kernel = library({"told": bounded(made(per_row)).kernel})["told"]
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("float32")
    for valid in (-(2**40), -1, 0, 1, 7, ROWS, ROWS + 1, 2**63 - 1):
        y = tvm.runtime.tensor(np.full((ROWS, WIDTH), np.nan, "float32"))
        kernel(tvm.runtime.tensor(x), y, valid)
        count = min(max(valid, 0), ROWS)
        np.testing.assert_array_equal(y.numpy()[:count], x[:count] + 1)
        np.testing.assert_array_equal(y.numpy()[count:], 0)


def summed(x, y):
    """Rows of y are columns of x."""
    with T.serial(ROWS) as i, T.serial(ROWS) as j:
        T.buffer_store(y, x[j, i], [i, j])


def reversed_rows(x, y):
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, x[ROWS - 1 - i, j], [i, j])


def one_row(x, y):
    with T.serial(WIDTH) as j:
        T.buffer_store(y, tirx.const(0.0, "float32"), [0, j])
    with T.serial(ROWS) as i, T.serial(WIDTH) as j:
        T.buffer_store(y, y[0, j] + x[i, j], [0, j])


@pytest.mark.parametrize(
    ("emit", "y"), [(summed, (ROWS, ROWS)), (reversed_rows, (ROWS, WIDTH)), (one_row, (1, WIDTH)), (one_row, (ROWS, WIDTH))]
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


DENSE = ConvSpec(1, 1, 48, 512, 256)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("family", ["direct", "strassen"])
def test_dense_layers(family, threads):
    """Strassen's products read scratch, from which no index leads back to rows."""
    ended = 0
    for one in [one for one in candidates(DENSE, VectorUnit(8, 16, threads=threads)) if one.family == family][:3]:
        kernel = one.build()
        panel, scratch = kernel.params[1], kernel.params[5:]
        known = {"declared": True, "scratch": range(5, len(kernel.params))} if family == "strassen" else {}
        found = by_rows(kernel, DENSE.width, [0], [4], int(panel.shape[0]), **known)
        assert found is not None
        if found.kernel is not None:
            rng = np.random.default_rng(0)
            x, weights = (rng.standard_normal(tuple(map(int, of.shape))).astype("float32") for of in kernel.params[:2])
            shapes = [tuple(map(int, of.shape)) for of in scratch]
            require_same_rows(kernel, found, [x, weights, 0, int(panel.shape[0])], (1, 1, 48, 256), DENSE.width, shapes)
            ended += 1
    assert ended


@pytest.mark.parametrize("kind", ["layer_norm", "softmax"])
def test_functions_of_rows(kind):
    kernel = rowwise.kernel(RowSpec(kind, (1, 40, 48)), 8)
    x = np.random.default_rng(2).standard_normal((1, 40, 48)).astype("float32")
    require_same_rows(kernel, bounded(kernel, 40), [x], (1, 40, 48), 40)


def test_attention_ends_at_the_valid_queries():
    heads, rows, depth = 2, 40, 16
    access = Access((1, rows, heads * depth), 0, rows * heads * depth, depth, heads * depth)
    spec = AttentionSpec(1, heads, rows, rows, depth, depth, access, access, access, access)
    assert spec.follows_queries
    assert not AttentionSpec(1, heads, rows, rows, depth, depth, *[Access.dense(1, heads, rows, depth)] * 4).follows_queries
    kernel = attention.kernel(spec, AVX2)
    found = bounded(kernel, rows, (0, 1, 2), (3,), declared=True)
    q, k, v = (np.random.default_rng(i).standard_normal(access.buffer).astype("float32") for i in range(3))
    require_same_rows(kernel, found, [q, k, v], access.buffer, rows, attention.scratch(spec, AVX2))
