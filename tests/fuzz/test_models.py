"""The fuzzer of models draws the same graphs whenever it is asked, and notices a wrong result."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import onnx

from flexcomp.errors import FlexcompError
from flexcomp.frontend import load_model
from tests.fuzz.models import judge, oracle
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
    candidates = []
    for number in range(30):
        graph = drawn(number)
        truth = oracle.by_onnxruntime(graph.model().SerializeToString(), graph.inputs)
        with suppress(FlexcompError):
            if truth is not None:
                subject = judge.Subject(number, graph.model(), graph.inputs)
                candidates.append(judge.Candidate(subject, oracle.Truth("onnxruntime", truth), load_model(subject.model)))
    assert len(candidates) > 8
    stages = []
    verdicts = judge.build(candidates, lambda at, stage: stages.append(stage))
    assert [v.outcome for v in verdicts] == ["right"] * len(candidates) and stages == ["build", "run"]


def test_a_wrong_result_is_noticed():
    want = {"y": np.array([1.0, np.nan, np.inf, 0.0], "f4")}
    for at, value in enumerate([1.01, 2.0, -np.inf, 0.01]):
        got = want["y"].copy()
        got[at] = value
        assert f"y[{at}] is" in oracle.difference(want, {"y": got})
    assert not oracle.difference(want, {"y": want["y"] * np.float32(1 + 1e-6)})
    assert "instead of float32[4]" in oracle.difference(want, {"y": want["y"].astype("f8")})
    assert oracle.difference({"y": np.array([3])}, {"y": np.array([4])})
