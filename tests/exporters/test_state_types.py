"""Caches in 16 and 8 bits: logits near ONNX Runtime's in float32, fewer bytes in every budget, and refusals."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import InputError
from tests.conformance.verdict import UNOPTIMISED
from tests.operators import test_caches

from . import genai, growing

ERRORS = {"float16": 2e-3, "int8": 2e-2}  # of the largest logit
CAPACITY, CHUNK = 64, 4
OPTIONS = {"threads": 1, "probe": False, "kernels": "smallest", "target": UNOPTIMISED}


@dataclass(frozen=True)
class Form:
    """An export, and the shapes of its inputs."""

    model: onnx.ModelProto
    shared: int  # heads of keys and values
    depth: int
    shapes: dict[str, tuple]
    grows: bool = False  # ONNX Runtime's caches have no places that hold nothing


def of_growing() -> Form:
    heads, depth = growing.SHARED, growing.DEPTH
    shapes = {"input_ids": (1, "s"), "position_ids": (1, "s"), "attention_mask": (1, CAPACITY)}
    names = [f"past_key_values.{i}.{part}" for i in range(2) for part in ("key", "value")]
    shapes |= dict.fromkeys(names, (1, heads, CAPACITY, depth))
    model = growing.decoder(growing.Form(layers=2))
    for weight in model.graph.initializer:  # scores as those of trained networks: one key does not take it all
        if weight.dims[:1] == [growing.WIDTH]:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) / 2, weight.name))
    return Form(model, heads, depth, shapes, grows=True)


def of_groups() -> Form:
    """With a window and a cap."""
    model = genai.decoder(genai.Form(layers=2, capacity=CAPACITY, window=5, cap=3.0), None)
    return Form(model, genai.SHARED, genai.DEPTH, {"input_ids": (1, "s")})


def build(form: Form, kind=None) -> flexcomp.Artifact:
    return flexcomp.build(
        form.model, input_shapes=form.shapes, shapes={"s": [1, CHUNK]}, state={"present.*": "past_key_values.*"}, state_type=kind,
        **OPTIONS,
    )


def steps(form: Form) -> list[dict[str, np.ndarray]]:
    """Inputs of inferences: chunks and single tokens."""
    rng, found, at = np.random.default_rng(5), [], 0
    for count in (CHUNK, CHUNK, *[1] * 8):
        end = at + count
        found.append({
            "input_ids": rng.integers(0, 64, (1, count)), "position_ids": np.arange(at, end)[None],
            "attention_mask": np.int64(np.arange(end if form.grows else CAPACITY) < end)[None],
        })  # fmt: skip
        at = end
    return found


def wanted(form: Form) -> list[np.ndarray]:
    """ONNX Runtime's logits."""
    session = onnxruntime.InferenceSession(form.model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs, outputs = [p.name for p in session.get_inputs()], [p.name for p in session.get_outputs()]
    empty = np.zeros((1, form.shared, 0 if form.grows else CAPACITY, form.depth), "f4")
    caches, logits = {name: empty for name in inputs if name.startswith("past")}, []
    for step in steps(form):
        given = {name: value for name, value in (step | caches).items() if name in inputs}
        made = dict(zip(outputs, session.run(None, given), strict=True))
        caches = {name: made[name.replace("past_key_values", "present")] for name in caches}
        logits.append(made["logits"])
    return logits


def padded(step: dict[str, np.ndarray], session) -> dict[str, np.ndarray]:
    mask = np.zeros((1, CAPACITY), "i8")
    mask[:, : step["attention_mask"].sum()] = 1
    names = [port.name for port in session.inputs]
    return {name: value for name, value in (step | {"attention_mask": mask}).items() if name in names}


@pytest.mark.parametrize("made", [of_growing, of_groups])
def test_logits_are_near_and_budgets_smaller(made):
    form = made()
    right, plain = wanted(form), build(form)
    largest = max(np.abs(one).max() for one in right)
    bytes_of = {"float32": 4 * form.depth, "float16": 2 * form.depth, "int8": form.depth + 4}
    rows = 4 * form.shared * CAPACITY
    for kind, most in ERRORS.items():
        artifact = build(form, kind)
        states = artifact.program.states
        assert {one.type.dtype for one in states} == {kind}
        assert sum(one.type.nbytes for one in states) == rows * bytes_of[kind]
        fewer = rows * (bytes_of["float32"] - bytes_of[kind])
        for ours, theirs in zip(artifact.programs, plain.programs, strict=True):
            for rung in (0, -1):  # pages are whole, and new rows are narrowed in some
                assert theirs.rungs[rung].arena - ours.rungs[rung].arena >= fewer - 2 * 4096
        implementations = [layer.implementation for layer in artifact.program.layers]
        assert implementations.count("exchange") == 4
        with artifact.session("min") as session:
            errors = []
            for number, (step, logits) in enumerate(zip(steps(form), right, strict=True)):
                if number == 5:  # what is saved is what the next inferences read
                    saved = session.state()
                    session.reset_state()
                    session.set_state(saved)
                    session.set_budget("all")
                errors.append(np.abs(session.run(padded(step, session))["logits"] - logits).max() / largest)
        assert 1e-7 < max(errors) <= most, (kind, errors)


def test_a_cache_of_rows_of_all_heads_and_types_by_name():
    """Keys in int8 with a scale for each head of a row, values in float32, as asked; sessions take over."""
    graph = joined_decoder(heads=2, depth=6)
    state = {"present.key": "past.key", "present.value": "past.value"}
    given = [np.random.default_rng(i).standard_normal((1, 1, 12)).astype("f4") for i in range(10)]
    results = {}
    for kind in (None, {"*": "int8", "past.value": "float32"}):
        artifact = flexcomp.build(graph, state=state, state_type=kind, **OPTIONS)
        with artifact.session() as session:
            results[kind is None] = np.array([session(x, np.int64([at])) for at, x in enumerate(given)])
    types = {one.input: (one.type.shape, one.type.dtype) for one in artifact.program.states}
    assert types == {"past.key": ((1, 16, 2 * (8 + 4)), "int8"), "past.value": ((1, 16, 12), "float32")}
    error = np.abs(results[True] - results[False]).max()
    assert 1e-6 < error < 2e-2 * np.abs(results[True]).max()


def joined_decoder(heads: int, depth: int, element: int = TensorProto.FLOAT, *, summed: bool = False):
    """Attention of one token over caches [batch, places, heads · depth]; with `summed` an output reads a whole cache."""
    width, places, one = heads * depth, 16, helper.make_node
    nodes = [
        one("TensorScatter", ["past.key", "x", "at"], ["present.key"], axis=1),
        one("TensorScatter", ["past.value", "x", "at"], ["present.value"], axis=1),
        one("Add", ["at", "one"], ["valid"]),
        one("Attention", ["x", "present.key", "present.value", "", "", "", "valid"], ["y"], "attend", is_causal=1,
            q_num_heads=heads, kv_num_heads=heads),
    ]  # fmt: skip
    if summed:
        nodes.append(one("ReduceSum", ["present.key"], ["sum"], "sum"))
    info = helper.make_tensor_value_info
    caches = [info(f"past.{part}", element, (1, places, width)) for part in ("key", "value")]
    made = [info(f"present.{part}", element, (1, places, width)) for part in ("key", "value")]
    graph = helper.make_graph(
        nodes, "joined", [info("x", element, (1, 1, width)), info("at", TensorProto.INT64, (1,)), *caches],
        [info("y", element, (1, 1, width)), *made, *([info("sum", element, (1, 1, 1))] if summed else [])],
        [helper.make_tensor("one", TensorProto.INT64, (1,), [1])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def test_caches_of_a_network_in_float16_are_not_widened_as_a_whole():
    state = {"present.key": "past.key", "present.value": "past.value"}
    artifact = flexcomp.build(joined_decoder(2, 8, TensorProto.FLOAT16), state=state, **OPTIONS)
    assert {one.type.dtype for one in artifact.program.states} == {"float16"}
    assert not [one for one in artifact.program.values if one.nbytes > 16 * 16 * 2 and one.name != "state"]
    assert [layer.implementation for layer in artifact.program.layers].count("exchange") == 2


def test_states_that_more_than_attention_reads_keep_their_type(caplog):
    state, summed = {"present.key": "past.key", "present.value": "past.value"}, joined_decoder(2, 8, summed=True)
    with caplog.at_level(logging.WARNING):
        artifact = flexcomp.build(summed, state=state, state_type="int8", **OPTIONS)
    assert {one.input: one.type.dtype for one in artifact.program.states} == {"past.key": "float32", "past.value": "int8"}
    assert "'past.key' is read by node 'sum'" in caplog.text
    with pytest.raises(InputError, match=r"'past.key' is read by node 'sum', and cannot be float16"):
        flexcomp.build(summed, state=state, state_type={"past.key": "float16"}, **OPTIONS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("float8", "must be one of float32, float16, int8, not 'float8'"),
        ({"past.query": "int8"}, "no state is called 'past.query'; there are past.key, past.value"),
    ],
)
def test_types_that_there_are_not(kind, reason):
    with pytest.raises(InputError, match=f"state_type.*{reason}"):
        flexcomp.build(test_caches.decoder(1), state=test_caches.CACHES, state_type=kind, **OPTIONS)


def test_a_network_without_states():
    with pytest.raises(InputError, match="the network has none: name its caches by state="):
        flexcomp.build(test_caches.decoder(1), state_type="int8", **OPTIONS)
