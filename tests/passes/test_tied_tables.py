"""An embedding whose table is the weights of a dense layer reads the layer's panel."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from flexcomp.compiler import pipeline
from flexcomp.compiler.weights import evaluate
from flexcomp.passes import SliceEmbeddings
from flexcomp.schedules.operators import embedding
from flexcomp.schedules.operators.embedding import EmbeddingSpec, Interleaved
from flexcomp.schedules.tiles.narrow_panel import pack, rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16, Panel
from flexcomp.schedules.tiles.tile import VectorUnit

from ..schedules.kernels import library
from .networks import calls

op = relax.op
UNIT = VectorUnit(8, 16)
ROWS, WIDTH = 5001, 100


def network(numbers: int = 3, head="transposed", table: str = "w") -> tvm.IRModule:
    """(take(table, ids), matmul(x, head)), with a table and a head that are made of the weight w, or of others."""
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", relax.TensorType((1, numbers), "int64"))
    extents = {"x": (5, WIDTH), "w": (ROWS, WIDTH), "half": (3000, WIDTH)}
    x, w, half = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in extents.items())
    with builder.function("main", [ids, x, w, half], attrs={"num_input": 2}):
        with builder.dataflow():
            tables = {"w": w, "in another shape": w, "joined": None}
            rows = builder.emit(op.concat([half, half], 0)) if table == "joined" else tables[table]
            if table == "in another shape":
                rows = builder.emit(op.reshape(rows, (ROWS, WIDTH // 4, 4)))
            found = builder.emit(op.take(rows, ids, axis=0))
            weight = half if table == "joined" else w
            if head == "transposed":
                weight = builder.emit(op.permute_dims(weight))
            else:
                weight = builder.emit(op.reshape(weight, (WIDTH, ROWS)))
            product = builder.emit(op.add(builder.emit(op.matmul(x, weight)), relax.const(np.float32(1))))
            result = builder.emit_output(relax.Tuple([found, product]))
        builder.emit_func_output(result)
    return builder.get()


def packed(mod: tvm.IRModule, kinds=("float32", "float32")) -> tvm.IRModule:
    """With an element type for the table and one for the head."""
    passes = [SliceEmbeddings(UNIT, lambda *_: kinds[0]), *pipeline.fuse(UNIT, lambda *_: kinds[1])]
    return pipeline.run(mod, [*passes, *pipeline.choose(UNIT), *pipeline.pack(UNIT)], "test")


def panels(mod: tvm.IRModule) -> list:
    """The variable that each kernel takes as its weights."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    called = [value for value in values if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.call_tir")]
    return [call.args[1].fields[1] for call in called]


@pytest.mark.parametrize("kinds", [("float32",) * 2, ("bfloat16",) * 2, ("int8",) * 2, ("values of int8",) * 2])
@pytest.mark.parametrize("table", ["w", "in another shape"])
def test_both_read_the_layers_panel(table, kinds):
    before = network(table=table)
    text = before.script()
    after = packed(before, kinds)
    assert before.script() == text, "the given module is left alone"
    relax.analysis.well_formed(after)
    first, second = panels(after)
    assert first.same_as(second)
    weight = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("f4")
    lifted = relax.transform.LiftTransformParams()(after)
    params = [weight, np.zeros((3000, WIDTH), "f4")]
    (panel,) = [found for found in evaluate(lifted["main_transform_params"], params) if found.ndim == 3]
    name = next(name for name in calls(after) if name.startswith("embedding"))
    spec = EmbeddingSpec.decode(str(after[name].attrs["flexcomp.fetch"]))
    assert spec.panel == panel.shape and EmbeddingSpec.decode(spec.encode()) == spec
    require_rows(spec, panel, rounded(weight, kinds[0].removeprefix("values of ")) if kinds[0] != "float32" else weight)


@pytest.mark.parametrize(
    "options",
    [
        ({"head": "reshaped"},),
        ({"table": "joined"},),
        ({}, ("float32", "bfloat16")),
        ({}, ("bfloat16", "float32")),
        ({}, ("values of int8", "float32")),
    ],
    ids=str,
)
def test_tables_of_their_own(options):
    model, *kinds = options
    first, second = panels(packed(network(**model), *kinds))
    assert not first.same_as(second)


@pytest.mark.parametrize("numbers", [60, 800])
def test_tables_are_shared_however_many_rows_are_asked_for(numbers):
    """For 60 rows fetching pays if they follow each other, and not if they are parts of blocks; for 800 it never does."""
    first, second = panels(packed(network(numbers=numbers)))
    assert first.same_as(second)


@pytest.mark.parametrize("kept", ["float32", "float16", "bfloat16", "int8", SCALED_BFLOAT16])
@pytest.mark.parametrize("rows", [64, 65, 100])
def test_rows_of_panels(kept, rows):
    """Of blocks of 32, of which the last one overlaps the one before it; with channel vectors."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((rows, 19)).astype("f4") * np.float32(np.arange(1, rows + 1))[:, None]
    panel = Panel(1, rows, 32, 19, 2, kept)
    spec = EmbeddingSpec((1, 9), "int64", rows, 19, kept, Interleaved.of(panel))
    head, taps = rng.standard_normal((panel.blocks, 3, 32)).astype("f4"), weight[panel.channels()].swapaxes(1, 2)
    if kept == "float32":
        data = np.concatenate([head[:, :1], taps, head[:, 1:]], axis=1)
        data = np.concatenate([data, np.zeros((panel.blocks, panel.rows - data.shape[1], 32), "f4")], axis=1)
    else:
        data = pack(head, taps, kept, panel.rows)
    require_rows(spec, data, weight if kept == "float32" else rounded(weight, kept))


def require_rows(spec: EmbeddingSpec, panel: np.ndarray, table: np.ndarray) -> None:
    """Steps of some blocks find the rows of those; so do `parts`."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, spec.rows, spec.ids)
    ids.flat[:5] = [spec.rows - 1, spec.rows - spec.block_rows, spec.rows + 5, -2, 0][: ids.size]
    kernel = library({"kernel": embedding.kernel(spec, UNIT.width)})["kernel"]
    y = tvm.runtime.tensor(np.full((*spec.ids, spec.width), np.nan, "f4"))
    for block in range(spec.blocks):
        held = np.ascontiguousarray(panel[block : block + 1])
        kernel(tvm.runtime.tensor(ids), tvm.runtime.tensor(np.resize(held, spec.panel)), block, 1, y)
    np.testing.assert_array_equal(y.numpy(), table[np.clip(ids, 0, spec.rows - 1)])
    (*_, (at, size, count)), lanes = spec.parts, spec.block_rows
    for row in (0, spec.rows - 1):
        block = row // lanes
        lane = row - min(block * lanes, spec.rows - lanes)
        raw = panel[block].reshape(-1).view("u1")
        found = np.concatenate([raw[at + (i * lanes + lane) * size :][:size] for i in range(count)])
        np.testing.assert_array_equal(found.view(panel.dtype), panel[block][spec.interleaved.first :][: spec.width, lane])
