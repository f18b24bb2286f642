"""The page of docs says what the tests of this folder show."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.compiler.builder import prepare
from flexcomp.errors import UnsupportedModelError

from .attention import DEPTH, HEADS, LEAST, WIDTH, joined, mask_of, scaled, swapped, three, x_of
from .table import OPTIMISED, PAGE, table


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == table(), "run python -m tests.exporters.table"


def two_masks(tokens: int) -> onnx.ModelProto:
    g = Graph("attention", seed=3)
    q, k, v = three(g, x_of(g, tokens), 1, tokens)
    scores = g.op("Add", scaled(g, g.op("MatMul", q, swapped(g, k)), DEPTH**-0.5), g.normal((1, HEADS, 1, tokens), 1.0))
    hidden = mask_of(g, 1, 1, tokens, tokens, dtype=TensorProto.BOOL)
    p = g.op("Softmax", g.op("Where", hidden, g.number(LEAST), scores), axis=-1)
    return g.model(joined(g, g.op("MatMul", p, v), 1, tokens), (1, tokens, WIDTH))


def test_two_masks_of_different_kinds_are_not_fused():
    network = prepare(two_masks(24), "llvm -mcpu=x86-64-v3", threads=1, kernels="smallest", cache=False).planning.network
    assert not any(layer.name.startswith("attention") for layer in network.layers)


@pytest.mark.parametrize("kind", [*OPTIMISED, "SimplifiedLayerNormalization"])
def test_operators_of_the_optimiser_are_refused_by_name(kind):
    domain = "com.microsoft" if kind in OPTIMISED else ""
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "w"], ["y"], "made", domain=domain)],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 8))],
        [onnx.numpy_helper.from_array(np.ones(8, "f4"), "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    with pytest.raises(UnsupportedModelError, match=kind):
        flexcomp.build(helper.make_model(graph, opset_imports=imports, ir_version=9), threads=1, probe=False)
