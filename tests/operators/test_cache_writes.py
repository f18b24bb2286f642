"""Exports with `past_key_values.*` and `present.*` of a fixed capacity, whose rows are scattered into caches, as state."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import InputError
from tests.conformance.verdict import UNOPTIMISED

HEADS, CAPACITY, DEPTH, WIDTH, LAYERS = 2, 12, 8, 16, 2
CACHE = (1, HEADS, CAPACITY, DEPTH)
FORMS = ("elements", "tuples", "transposed")
one = helper.make_node


def write(form: str, cache: str, rows: str, count: int, out: str) -> list[onnx.NodeProto]:
    """Nodes that write `count` rows into a cache from "at" on; "index" are their indices, int64[count]."""
    if form == "elements":
        return [
            one("Expand", ["index_of_rows", "shape_of_rows"], [f"{out}.indices"]),
            one("ScatterElements", [cache, f"{out}.indices", rows], [out], axis=2),
        ]
    if form == "tuples":
        return [
            one("Expand", ["index_of_rows", "shape_of_grid"], [f"{out}.grid"]),
            one("Concat", ["batches", "heads", f"{out}.grid"], [f"{out}.indices"], axis=-1),
            one("ScatterND", [cache, f"{out}.indices", rows], [out]),
        ]
    order = [2, 0, 1, 3]
    return [
        one("Transpose", [cache], [f"{out}.cache"], perm=order), one("Transpose", [rows], [f"{out}.rows"], perm=order),
        one("ScatterND", [f"{out}.cache", "index_of_tuples", f"{out}.rows"], [f"{out}.written"]),
        one("Transpose", [f"{out}.written"], [out], perm=[1, 2, 0, 3]),
    ]  # fmt: skip


def decoder(form: str, rows: int, groups: int = 1) -> onnx.ModelProto:
    """Layers of attention over caches; what lies behind the last row that was written is masked.

    With `groups`, so many heads of queries share a head of keys and values, which is repeated for these.
    """
    rng = np.random.default_rng(0)
    grid = (1, HEADS, rows, 1)
    constants = {
        "count": np.arange(rows, dtype="i8"), "column": np.int64([-1, 1]), "row_of_four": np.int64([1, 1, -1, 1]),
        "shape_of_rows": np.int64([1, HEADS, rows, DEPTH]), "shape_of_grid": np.int64(grid), "batches": np.zeros(grid, "i8"),
        "heads": np.broadcast_to(np.arange(HEADS).reshape(1, -1, 1, 1), grid).astype("i8"),
        "keys": np.arange(CAPACITY), "none": np.float32(0), "hidden": np.float32(-1e9), "scale": np.float32(DEPTH**-0.5),
        "split": np.int64([1, rows, -1, DEPTH]), "join": np.int64([1, rows, groups * HEADS * DEPTH]), "third": np.int64([2]),
        "repeated": np.int64([1, HEADS, groups, CAPACITY, DEPTH]), "heads_alone": np.int64([1, groups * HEADS, CAPACITY, DEPTH]),
    }  # fmt: skip
    nodes = [
        one("Add", ["at", "count"], ["index"]), one("Reshape", ["index", "column"], ["index_of_tuples"]),
        one("Reshape", ["index", "row_of_four"], ["index_of_rows"]), one("LessOrEqual", ["keys", "index_of_tuples"], ["seen"]),
        one("Where", ["seen", "none", "hidden"], ["mask"]),
    ]  # fmt: skip
    value = "x"
    for layer in range(LAYERS):
        p = f"layer{layer}"
        for name in "qkvo":
            extents = (WIDTH, WIDTH * groups) if name == "q" else (WIDTH * groups, WIDTH) if name == "o" else (WIDTH, WIDTH)
            constants[f"{p}.w{name}"] = (rng.standard_normal(extents) * WIDTH**-0.5).astype("f4")
        for name in "qkv":
            nodes += [
                one("MatMul", [value, f"{p}.w{name}"], [f"{p}.{name}0"]),
                one("Reshape", [f"{p}.{name}0", "split"], [f"{p}.{name}1"]),
                one("Transpose", [f"{p}.{name}1"], [f"{p}.{name}"], perm=[0, 2, 1, 3]),
            ]  # fmt: skip
        for name, kind in (("k", "key"), ("v", "value")):
            nodes += write(form, f"past_key_values.{layer}.{kind}", f"{p}.{name}", rows, f"present.{layer}.{kind}")
        caches = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        for i, cache in enumerate(caches if groups > 1 else ()):
            caches[i] = f"{p}.repeated{i}"
            nodes += [
                one("Unsqueeze", [cache, "third"], [f"{caches[i]}.0"]),
                one("Expand", [f"{caches[i]}.0", "repeated"], [f"{caches[i]}.1"]),
                one("Reshape", [f"{caches[i]}.1", "heads_alone"], [caches[i]]),
            ]  # fmt: skip
        nodes += [
            one("Transpose", [caches[0]], [f"{p}.kt"], perm=[0, 1, 3, 2]),
            one("MatMul", [f"{p}.q", f"{p}.kt"], [f"{p}.s0"]), one("Mul", [f"{p}.s0", "scale"], [f"{p}.s1"]),
            one("Add", [f"{p}.s1", "mask"], [f"{p}.s2"]), one("Softmax", [f"{p}.s2"], [f"{p}.s3"], axis=-1),
            one("MatMul", [f"{p}.s3", caches[1]], [f"{p}.a0"]),
            one("Transpose", [f"{p}.a0"], [f"{p}.a1"], perm=[0, 2, 1, 3]), one("Reshape", [f"{p}.a1", "join"], [f"{p}.a2"]),
            one("MatMul", [f"{p}.a2", f"{p}.wo"], [f"{p}.o"]), one("Add", [value, f"{p}.o"], [f"{p}.y"]),
        ]  # fmt: skip
        value = f"{p}.y"
    nodes.append(one("Identity", [value], ["y"]))
    names = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    given = {"x": ((1, rows, WIDTH), TensorProto.FLOAT), "at": ((1,), TensorProto.INT64)}
    given |= {f"past_key_values.{name}": (CACHE, TensorProto.FLOAT) for name in names}
    made = {"y": (1, rows, WIDTH)} | {f"present.{name}": CACHE for name in names}
    graph = helper.make_graph(
        nodes, "decoder", [helper.make_tensor_value_info(name, type_, shape) for name, (shape, type_) in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in made.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_are_written_in_place(form, rows):
    """Steps until the capacity is reached beside ONNX Runtime, whose caches are handed round."""
    model = decoder(form, rows)
    judge = onnxruntime.InferenceSession(model.SerializeToString())
    names = [port.name for port in judge.get_inputs()][2:]
    caches = {name: np.zeros(CACHE, "f4") for name in names}
    artifact = flexcomp.build(model, UNOPTIMISED, state={"present.*": "past_key_values.*"}, threads=1)
    written = [layer for layer in artifact.program.layers if any(getattr(arg, "exchanged", False) for arg in layer.args)]
    assert len(written) == 2 * LAYERS and all(layer.op == "tensor_scatter" for layer in written)
    rng = np.random.default_rng(rows)
    with artifact.session("all") as session:
        assert [port.name for port in session.inputs] == ["x", "at"] and len(session.states) == 2 * LAYERS
        for at in range(0, CAPACITY - rows + 1, rows):
            x = rng.standard_normal((1, rows, WIDTH)).astype("f4")
            want, *present = judge.run(None, {"x": x, "at": np.int64([at]), **caches})
            caches = dict(zip(names, present, strict=True))
            np.testing.assert_allclose(session(x, np.int64([at])), want, atol=1e-5)
        for name, cache in session.state().items():
            np.testing.assert_allclose(cache, caches[name], atol=1e-5)
        with pytest.raises(InputError, match="TensorScatter"):
            session(x, np.int64([CAPACITY]))
        np.testing.assert_allclose(session.state()[names[0]], caches[names[0]], atol=1e-5)
        x = rng.standard_normal((1, rows, WIDTH)).astype("f4")
        want, *present = judge.run(None, {"x": x, "at": np.int64([-rows]), **caches})  # counted from the end
        session(x, np.int64([-rows]))
        np.testing.assert_allclose(session.state()[names[-1]], present[-1], atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "groups", "most"), [("float16", 2, 2e-3), ("int8", 2, 2e-2), ("int8", 1, 2e-2)])
def test_caches_of_all_forms_lie_in_fewer_bits(form, kind, groups, most):
    """Next to ONNX Runtime, whose caches are float32."""
    model = decoder(form, 3, groups)
    judge = onnxruntime.InferenceSession(model.SerializeToString())
    caches = {port.name: np.zeros(CACHE, "f4") for port in judge.get_inputs()[2:]}
    options = {"target": UNOPTIMISED, "threads": 1, "probe": False, "kernels": "smallest"}
    artifact = flexcomp.build(model, state={"present.*": "past_key_values.*"}, state_type=kind, **options)
    assert {one.type.dtype for one in artifact.program.states} == {kind}
    rng, errors = np.random.default_rng(3), []
    with artifact.session("min") as session:
        for at in range(0, CAPACITY - 2, 3):
            x = rng.standard_normal((1, 3, WIDTH)).astype("f4")
            want, *present = judge.run(None, {"x": x, "at": np.int64([at]), **caches})
            caches = dict(zip(caches, present, strict=True))
            errors.append(np.abs(session(x, np.int64([at])) - want).max() / np.abs(want).max())
    assert 1e-7 < max(errors) <= most


@pytest.mark.parametrize("form", FORMS)
def test_indices_that_may_be_any_are_scattered_as_they_are(form):
    """Rows that need not follow each other: "count" is an input."""
    model = decoder(form, 3)
    counts = next(tensor for tensor in model.graph.initializer if tensor.name == "count")
    model.graph.initializer.remove(counts)
    model.graph.input.append(helper.make_tensor_value_info("count", TensorProto.INT64, [3]))
    artifact = flexcomp.build(model, UNOPTIMISED, threads=1)
    assert not any(layer.op == "tensor_scatter" for layer in artifact.program.layers)
    rng = np.random.default_rng(1)
    given = {"x": rng.standard_normal((1, 3, WIDTH)).astype("f4"), "at": np.int64([2]), "count": np.int64([4, -2, 1])}
    judge = onnxruntime.InferenceSession(model.SerializeToString())
    given |= {port.name: rng.standard_normal(CACHE).astype("f4") for port in judge.get_inputs() if "past" in port.name}
    with artifact.session() as session:
        for got, want in zip(session.run(given).values(), judge.run(None, given), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"present.*": "past"}, r'"present.\*" and "past": a pattern has one \*, which stands for the same on both sides'),
        ({"*.*": "past.*.*"}, r"a pattern has one \*"),
        ({"presents.*": "past_key_values.*"}, r'no output that matches "presents.\*"; there are y, present.0.key'),
        ({"present.*": "past.*"}, r'the network has no input "past.0.key"; there are x, at, past_key_values.0.key'),
        ({"present.*.key": "past_key_values.*.key", "present.0.*": "past_key_values.1.*"}, r'would become two inputs, "past_key'),
        ({"present.0.*": "past_key_values.1.*", "present.1.*": "past_key_values.1.*"}, r"two outputs, "),
    ],
)
def test_patterns_that_mean_nothing_are_refused(state, says):
    with pytest.raises(InputError, match=rf"^state: .*{says}"):
        flexcomp.build(decoder("elements", 1), state=state, threads=1)


def test_names_count_before_patterns():
    """And outputs need not come in the order of the inputs that they become: two caches change places in every inference."""
    names = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    swapped = {"present.0.key": "past_key_values.0.value", "present.0.value": "past_key_values.0.key"}
    model = decoder("elements", 1)
    judge = onnxruntime.InferenceSession(model.SerializeToString())
    caches, rng = {f"past_key_values.{name}": np.zeros(CACHE, "f4") for name in names}, np.random.default_rng(2)
    with flexcomp.build(model, state={"present.*": "past_key_values.*"} | swapped, threads=1).session() as session:
        for at in range(4):
            given = {"x": rng.standard_normal((1, 1, WIDTH)).astype("f4"), "at": np.int64([at])}
            want, *present = judge.run(None, given | caches)
            becomes = [swapped.get(f"present.{name}", f"past_key_values.{name}") for name in names]
            caches = dict(zip(becomes, present, strict=True))
            np.testing.assert_allclose(next(iter(session.run(given).values())), want, atol=1e-5)
        for name, cache in session.state().items():
            np.testing.assert_allclose(cache, caches[name], atol=1e-5)
