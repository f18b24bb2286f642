"""Which caches rows are written into in place, and which are copied."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp

CACHE, ROWS = (2, 6, 4), (2, 2, 4)


def network(*nodes, outputs=("present",), rows=ROWS):
    """`nodes` between a cache "past", what becomes new rows "x", another cache "other", and where to write, "at"."""
    constants = {"two": np.float32([2]), "zero": np.int64([0, 0]), "flat": np.int64([12, 4]), "back": np.int64(CACHE)}
    shapes = {"past": CACHE, "other": CACHE, "x": rows, "at": (2,)}
    given = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "at" else TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    for info in made:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "cache", given, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


NEW = node("Mul", "x two", "new")
SCATTER = node("TensorScatter", "past new at", "present")
READ = node("Mul", "present two", "y")


def built(model, state=None):
    return flexcomp.build(model, state=state or {"present": "past"}, threads=1)


def implementations(program, kind):
    return [layer.implementation for layer in program.layers if layer.op == kind]


IN_PLACE = {
    "alone": ((NEW, SCATTER, READ), ("present", "y"), 0),
    "read before": ((NEW, node("Exp", "past", "y"), SCATTER), ("present", "y"), 0),
    "seen in another shape": ((NEW, SCATTER, node("Reshape", "present flat", "v"), node("Exp", "v", "y")), ("present", "y"), 0),
    "an output, too": ((NEW, SCATTER, node("Identity", "present", "y")), ("present", "y"), 1),
    "new rows are an output": ((NEW, SCATTER), ("present", "new"), 1),
    "new rows are an input": ((node("TensorScatter", "past x at", "present"), READ), ("present", "y"), 1),
    "new rows are read again": ((NEW, SCATTER, node("Exp", "new", "y")), ("present", "y"), 1),
    "known places": ((NEW, node("TensorScatter", "past new zero", "present"), READ), ("present", "y"), 1),
    "circular": ((NEW, node("TensorScatter", "past new at", "present", mode="circular"), READ), ("present", "y"), 0),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_rows_change_places(case):
    """Nothing as large as the cache is copied; what must not be changed itself is, which are rows."""
    nodes, outputs, copies = IN_PLACE[case]
    artifact = built(network(*nodes, outputs=outputs))
    program = artifact.program
    assert implementations(program, "tensor_scatter") == ["exchange"]
    assert len(implementations(program, "copy")) == copies
    (state,) = program.states
    assert state.result == state.value and "present" not in [value.name for value in program.values]
    rng, cache = np.random.default_rng(0), np.zeros(CACHE, "f4")
    with artifact.session("min") as session:
        for at in ([0, 4], [4, 4], [3, 0], [2, 2]):
            x, at = rng.standard_normal(ROWS).astype("f4"), np.zeros(2, int) if case == "known places" else np.array(at)
            before = cache.copy()
            new = x if case == "new rows are an input" else 2 * x
            for i in range(2):
                cache[i, at[i] : at[i] + 2] = new[i]
            (y,) = session.run({"x": x, "at": at, "other": cache}).values()
            np.testing.assert_array_equal(session.state()["past"], cache)
            wanted = {
                "read before": np.exp(before), "seen in another shape": np.exp(cache).reshape(12, 4), "an output, too": cache,
                "new rows are an output": new, "new rows are read again": np.exp(new),
            }.get(case, 2 * cache)  # fmt: skip
            np.testing.assert_allclose(y, wanted, rtol=1e-6)


COPIED = {
    "read behind": (NEW, SCATTER, node("Mul", "past present", "y")),
    "an output as it was": (NEW, SCATTER, READ, node("Identity", "past", "z")),
    "not what it becomes": (NEW, node("TensorScatter", "other new at", "present"), READ),
    "changed again": (NEW, node("TensorScatter", "past new at", "p"), node("Mul", "p two", "present"), READ),
}


@pytest.mark.parametrize("case", COPIED)
def test_caches_that_are_copied(case):
    nodes = COPIED[case]
    outputs = ("present", "y", *(["z"] if case.startswith("an output") else []))
    program = built(network(*nodes, outputs=outputs)).program
    assert implementations(program, "tensor_scatter") == ["vector"]
    (state,) = program.states
    assert state.result != state.value


def test_a_cache_whose_new_rows_are_another_cache():
    """It takes a copy of them: what an exchange leaves in its rows would be in the other cache."""
    nodes = (NEW, SCATTER, node("TensorScatter", "other present zero", "present2"))
    model = network(*nodes, outputs=("present", "present2"))
    artifact = built(model, {"present": "past", "present2": "other"})
    assert implementations(artifact.program, "tensor_scatter") == ["exchange", "exchange"]
    with artifact.session() as session:
        for at in (1, 3):
            session.run({"x": np.full(ROWS, at, "f4"), "at": np.array([at, at])})
            state = session.state()
            np.testing.assert_array_equal(state["past"], state["other"])
            assert state["past"][0, at, 0] == 2 * at
