"""Activations of every exporter are part of the layer before them, norms are one kernel, and both are right."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp import plan
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.options import options_of
from tests.conformance.verdict import UNOPTIMISED

from .rows import ACTIVATIONS, IMAGES, NORMS, WIDTH, Function

ROWS = {**ACTIVATIONS, **NORMS}
SMALLEST = options_of(threads=1, kernels="smallest", cache=False)


def network(functions: list[Function], is_image: bool = False) -> onnx.ModelProto:
    """A layer, and every function of its result: one output for each."""
    g = Graph("rows", seed=1)
    x = g.input("x", (1, 3, 12, 12) if is_image else (1, 40, WIDTH))
    g.channels[x] = 3 if is_image else WIDTH
    outputs = [f(g, g.conv(x, WIDTH, 3) if is_image else g.linear(x, WIDTH)) for f in functions]
    model = g.model(outputs[0], (1, WIDTH, 12, 12) if is_image else (1, 40, WIDTH))
    for name in outputs[1:]:
        model.graph.output.add().CopyFrom(model.graph.output[0])
        model.graph.output[-1].name = name
    used = {node.op_type for node in model.graph.node if not node.domain}
    if used & {"Gelu", "RMSNormalization"}:  # axes of reductions are inputs from opset 18 on
        model.opset_import[0].version, model.ir_version = 23, 10
    return model


def layers(model: onnx.ModelProto) -> list[str]:
    network = prepare(model, "llvm -mcpu=x86-64-v3", SMALLEST).planning.network
    return [layer.name.partition(".")[0] for layer in network.layers]


@pytest.mark.parametrize("case", ACTIVATIONS, ids=" ".join)
def test_activations_are_part_of_a_layer(case):
    assert layers(network([ACTIVATIONS[case]])) == ["matmul"]


@pytest.mark.parametrize("case", NORMS, ids=" ".join)
def test_norms_are_one_kernel(case):
    name = "rms_norm" if "RMS" in case[1] else "layer_norm"
    assert layers(network([NORMS[case]])) == ["matmul", name]


def test_a_group_norm_needs_no_more_than_an_instance_norm():
    """No copy of the image in another layout."""
    budgets = []
    for case in IMAGES:
        planning = prepare(network([IMAGES[case]], is_image=True), "llvm -mcpu=x86-64-v3", SMALLEST).planning
        budgets.append(min(max(plan.layer_bounds(form.problem)) for form in planning.forms))
    assert budgets[0] <= budgets[1]


NEW = [f for case, f in ROWS.items() if "opset 23" in case[1] + case[0] or case[0] == "torch, dynamo"]
OLD = [f for f in ROWS.values() if f not in NEW]


@pytest.mark.parametrize(
    ("functions", "is_image"),
    [(NEW, False), (OLD, False), (list(IMAGES.values()), True)],
    ids=["new operators", "old operators", "images"],
)
def test_they_agree_with_onnx_runtime(functions, is_image, tmp_path):
    model = network(functions, is_image)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    flexcomp.build(model, UNOPTIMISED, threads=1, probe=False).export_library(tmp_path / "network.so")
    with flexcomp.load(tmp_path / "network.so") as session:
        found = list(session.run({"x": x}).values())
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
