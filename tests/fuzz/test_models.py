"""The fuzzer of models draws the same graphs whenever it is asked, and notices a wrong result."""

from __future__ import annotations

import random

import numpy as np
import onnx

from tests.fuzz.models import joint, oracle
from tests.fuzz.models.draw import OPSETS, draw, schemas


def drawn(number: int, opset: int = 20):
    return draw(random.Random(number), opset)


def test_a_graph_is_the_same_whenever_it_is_drawn():
    for number in range(30):
        one, two = drawn(number), drawn(number)
        assert one.model() == two.model()
        assert all(np.array_equal(one.inputs[n], two.inputs[n], equal_nan=v.dtype.kind == "f") for n, v in two.inputs.items())


def test_every_operator_of_the_schema_is_drawn_from():
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.deprecated}
    assert names <= {name.rpartition(".")[2] for name in schemas(max(OPSETS))}


def test_most_graphs_are_what_onnx_allows():
    allowed = 0
    for number in range(60):
        try:
            onnx.shape_inference.infer_shapes(drawn(number).model(), check_type=True, strict_mode=True)
            allowed += 1
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
            pass
    assert allowed > 36


def test_graphs_that_are_put_together_keep_their_results():
    parts = []
    for number in range(40):
        graph = drawn(number)
        want = oracle.by_onnxruntime(graph.model().SerializeToString(), graph.inputs)
        if want is not None:
            parts.append((graph, want))
    assert len(parts) > 15
    model = joint.together([graph.model() for graph, _ in parts])
    inputs = {joint.mark(i) + name: v for i, (graph, _) in enumerate(parts) for name, v in graph.inputs.items()}
    found = oracle.by_onnxruntime(model.SerializeToString(), inputs)
    for i, (_, want) in enumerate(parts):
        assert not oracle.difference(want, {name: found[joint.mark(i) + name] for name in want})


def test_a_wrong_result_is_noticed():
    want = {"y": np.array([1.0, np.nan, np.inf, 0.0], "f4")}
    for at, value in enumerate([1.01, 2.0, -np.inf, 0.01]):
        got = want["y"].copy()
        got[at] = value
        assert f"y[{at}] is" in oracle.difference(want, {"y": got})
    assert not oracle.difference(want, {"y": want["y"] * np.float32(1 + 1e-6)})
    assert "instead of float32[4]" in oracle.difference(want, {"y": want["y"].astype("f8")})
    assert oracle.difference({"y": np.array([3])}, {"y": np.array([4])})
