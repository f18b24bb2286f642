"""SliceEmbeddings: tables in blocks of rows, and what a step with some of the blocks writes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import tvm
from tvm import relax

from flexcomp.compiler.weights import evaluate
from flexcomp.passes import SliceEmbeddings
from flexcomp.schedules.operators import embedding
from flexcomp.schedules.operators.embedding import EmbeddingSpec
from flexcomp.schedules.tiles.narrow_panel import rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16
from flexcomp.schedules.tiles.tile import VectorUnit

from ..schedules.kernels import library
from .networks import calls

op = relax.op
UNIT = VectorUnit(8, 16)


def network(rows: int, width: int, dtype: str = "int64", mode: str = "fast") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", relax.TensorType((1, 7), dtype))
    table = relax.Var("table", relax.TensorType((rows, width), "float32"))
    with builder.function("main", [ids, table], attrs={"num_input": 1}):
        with builder.dataflow():
            output = builder.emit_output(op.take(table, ids, axis=0, mode=mode))
        builder.emit_func_output(output)
    return builder.get()


def test_large_tables_are_cut():
    mod = network(5000, 100)
    before = mod.script()
    after = SliceEmbeddings(UNIT)(mod)
    assert mod.script() == before, "the given module is left alone"
    relax.analysis.well_formed(after)
    assert calls(after)[-2:] == ["embedding_0", "relax.reshape"] or calls(after)[-1] == "embedding_0"
    assert int(after["embedding_0"].attrs["flexcomp.slices"]) == -(
        -5000 // EmbeddingSpec((1, 7), "int64", 5000, 100).block_rows
    )
    lifted = relax.transform.LiftTransformParams()(after)
    table = np.random.default_rng(0).standard_normal((5000, 100)).astype("f4")
    (panel,) = evaluate(lifted["main_transform_params"], [table])
    np.testing.assert_array_equal(panel.reshape(-1, 100)[:5000], table)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", SCALED_BFLOAT16])
def test_narrow_tables(dtype):
    """Rows have the values that they are rounded to, by themselves."""
    after = SliceEmbeddings(UNIT, lambda names, weight: dtype)(network(5000, 100))
    relax.analysis.well_formed(after)
    lifted = relax.transform.LiftTransformParams()(after)
    table = np.random.default_rng(0).standard_normal((5000, 100)).astype("f4") * np.float32([[3], [0.1]] * 2500)
    (panel,) = evaluate(lifted["main_transform_params"], [table])
    spec = EmbeddingSpec((1, 7), "int64", 5000, 100, dtype)
    assert panel.shape == spec.panel and str(panel.dtype) == spec.dtype and panel.nbytes < table.nbytes * 0.53
    ids = np.int64([[0, 1, 4999, 5003, -1, 17, 2500]])
    kernel = library({"kernel": embedding.kernel(spec, UNIT.width)})["kernel"]
    y = tvm.runtime.tensor(np.full((1, 7, 100), np.nan, "f4"))
    kernel(tvm.runtime.tensor(ids), tvm.runtime.tensor(panel), 0, spec.blocks, y)
    np.testing.assert_array_equal(y.numpy(), rounded(table, dtype)[np.clip(ids, 0, 4999)])


@pytest.mark.parametrize("mod", [network(100, 100), network(5000, 100, mode="wrap")])
def test_what_stays(mod):
    assert calls(SliceEmbeddings(UNIT)(mod)) == ["relax.take"]


@pytest.mark.parametrize("width", [100, 33])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_steps_fill_in_their_rows(dtype, width):
    spec = EmbeddingSpec((1, 9), dtype, 6001, width)
    assert spec.block_rows * width * 4 % 64 == 0
    rng = np.random.default_rng(0)
    panel = rng.standard_normal(spec.panel).astype("f4")
    ids = rng.integers(0, spec.rows, spec.ids).astype(dtype)
    ids[0, :3] = 0, spec.rows - 1, spec.rows + 5
    kernel = library({"kernel": embedding.kernel(spec, UNIT.width)})["kernel"]
    y = tvm.runtime.tensor(np.full((1, 9, width), np.nan, "f4"))
    given = tvm.runtime.tensor(ids)
    cuts = [0, 1, spec.blocks // 2, spec.blocks]
    for first, last in pairwise(cuts):
        # Only these blocks are in memory: the others are not to be read.
        held = np.full(spec.panel, np.nan, "f4")
        held[: last - first] = panel[first:last]
        kernel(given, tvm.runtime.tensor(held), first, last - first, y)
    expected = panel.reshape(-1, width)[np.clip(ids, 0, spec.rows - 1)]
    np.testing.assert_array_equal(y.numpy(), expected)
