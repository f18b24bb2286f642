"""Layers that read rows of a table, and what plans think that costs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from flexcomp import plan
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import options_of
from flexcomp.network.fetching import fetch_seconds

ROWS, WIDTH = 4096, 64


def prepared(numbers: int, **options):
    """A table of 1 MiB."""
    table = numpy_helper.from_array(np.zeros((ROWS, WIDTH), "f4"), "t")
    ids, y = (
        helper.make_tensor_value_info("ids", TensorProto.INT64, (numbers,)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (numbers, WIDTH)),
    )
    graph = helper.make_graph([helper.make_node("Gather", ["t", "ids"], ["y"])], "table", [ids], [y], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return prepare(model, options=options_of(threads=1, **options)).planning


def test_both_ways_read_the_same_bytes_of_the_file():
    network = prepared(2).network
    rows = next(layer for layer in network.base.layers if layer.implementation == "rows")
    (held,) = (one.layer for one in network.alternatives)
    assert rows.weights is None and rows.scratch_nbytes == rows.fetched.room_nbytes
    assert rows.fetched.table == held.weights.offset and rows.fetched.table_nbytes <= held.weights.nbytes
    assert network.weights_nbytes < ROWS * WIDTH * 4 + 2 * plan.PAGE
    assert rows.fetched.read_nbytes >= rows.fetched.row_nbytes + plan.PAGE  # wherever in its pages a row begins


@pytest.mark.parametrize(("numbers", "options"), [(64, {}), (2, {"kernels": "flexnn"})])
def test_tables_that_are_loaded(numbers, options):
    """Where so many rows are asked for that they are a quarter of it, and as FlexNN does."""
    network = prepared(numbers, **options).network
    assert "rows" not in {layer.implementation for layer in network.layers}


def test_rows_cost_what_the_storage_takes():
    planning = prepared(3)
    layers = planning.network.layers
    index = next(i for i, layer in enumerate(layers) if layer.implementation == "rows")
    slow = plan.Storage(bandwidth=1e6, overhead_s=1e-3, latency_s=2e-3)
    wanted = 3 * (3e-3 + layers[index].fetched.read_nbytes / 1e6)
    assert fetch_seconds(layers[index], slow) == pytest.approx(wanted)
    moved = planning.on(slow)
    before, after = (one.costs.seconds[index] for one in (planning, moved))
    assert after - before == pytest.approx(wanted - fetch_seconds(layers[index], planning.costs.storage))
    smallest = moved.forms[0]
    assert smallest.problem.layers[smallest.layers.index(index)].seconds == pytest.approx(after)
    assert all(fetch_seconds(layer, slow) == 0 for i, layer in enumerate(layers) if i != index)
