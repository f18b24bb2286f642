"""Attention of every exporter is one kernel, right, and needs no more memory than its plainest form."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp import plan
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import options_of
from tests.conformance.verdict import UNOPTIMISED

from .attention import ADDITIVE, ATTENTION, BY_POSITION, DEPTH, RELATIONS, WIDTH, Structure, plain

TOKENS = 512
FEW = 21


def network(structure: Structure, tokens: int) -> onnx.ModelProto:
    g = Graph("attention", seed=3)
    output = structure(g, tokens)
    batch = g.inputs[0].type.tensor_type.shape.dim[0].dim_value
    return g.model(output, (batch, tokens, WIDTH))


@cache
def planned(structure: Structure, tokens: int) -> tuple[list[str], int]:
    """Names of the layers, and the smallest budget of all forms."""
    options = options_of(threads=1, kernels="smallest", cache=False)
    planning = prepare(network(structure, tokens), "llvm -mcpu=x86-64-v3", options).planning
    return [layer.name for layer in planning.network.layers], min(max(plan.layer_bounds(f.problem)) for f in planning.forms)


@pytest.mark.parametrize("case", ATTENTION, ids=" ".join)
def test_it_is_one_kernel_and_needs_no_more_than_the_plain_form(case):
    structure, best = ATTENTION[case]
    layers, nbytes = planned(structure, TOKENS)
    _, least = planned(best, TOKENS)
    assert sum(name.startswith("attention") for name in layers) == 1
    assert not any(name.startswith("softmax") for name in layers)
    assert nbytes <= 1.1 * least, layers


@pytest.mark.parametrize("case", BY_POSITION, ids=" ".join)
def test_scores_by_position_need_no_more_than_a_bias_of_pairs(case):
    layers, nbytes = planned(BY_POSITION[case], TOKENS)
    _, least = planned(plain("bias"), TOKENS)
    assert sum(name.startswith("attention") for name in layers) == 1
    assert not any(name.startswith(("softmax", "take", "gather")) for name in layers), layers
    assert nbytes <= 1.1 * least, layers


@pytest.mark.parametrize("case", ADDITIVE, ids=" ".join)
def test_additive_attention_needs_its_scores_and_no_tensor_of_pairs_by_width(case):
    _, nbytes = planned(ADDITIVE[case], TOKENS)
    assert nbytes < 4 * (3 * TOKENS * TOKENS + 4 * TOKENS * WIDTH)


@pytest.mark.parametrize("case", RELATIONS, ids=" ".join)
def test_pairs_are_multiplied_before_they_are_made(case):
    """Rows of two hidden layers for all pairs exist, and no tensor of concatenated pairs."""
    objects = 96
    _, nbytes = planned(RELATIONS[case], objects)
    assert nbytes < 4 * (2 * objects * objects * DEPTH + 12 * objects * WIDTH)


@pytest.mark.parametrize("case", [*ATTENTION, *BY_POSITION, *ADDITIVE, *RELATIONS], ids=" ".join)
def test_it_agrees_with_onnx_runtime(case, tmp_path):
    others = ADDITIVE | BY_POSITION | RELATIONS
    model = network(others[case] if case in others else ATTENTION[case][0], FEW)
    random = np.random.default_rng(0)
    given = {}
    for one in model.graph.input:
        extents = [d.dim_value for d in one.type.tensor_type.shape.dim]
        given[one.name] = random.standard_normal(extents).astype("f4")
        if one.type.tensor_type.elem_type == TensorProto.BOOL:
            given[one.name] = given[one.name] < 1.0
            given[one.name][0] = False  # a batch that sees nothing at all
        elif one.type.tensor_type.elem_type == TensorProto.INT32:
            given[one.name] = (given[one.name] < 1.0).astype("i4")
    flexcomp.build(model, UNOPTIMISED, threads=1, probe=False).export_library(tmp_path / "network.so")
    with flexcomp.load(tmp_path / "network.so") as session:
        (found,) = session.run(given).values()
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
