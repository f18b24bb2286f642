"""TensorScatter, and decoding with caches of keys and values that stay in the arena."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import flexcomp
from flexcomp.errors import InputError, ModelError, UnsupportedModelError
from tests.conformance.verdict import UNOPTIMISED
from tests.pairs import pairs

from .networks import model, node

HEADS, CAPACITY, DEPTH, WIDTH, TOKENS = 2, 24, 8, 16, 50


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


def scattered(session, given: dict[str, np.ndarray]) -> np.ndarray:
    (found,) = session.run(given).values()
    return found


@pytest.mark.parametrize(
    ("past", "rows", "axis", "mode"),
    [
        ((2, 3, 8, 5), 2, -2, "linear"),
        ((3, 7, 1), 7, 1, "linear"),
        ((2, 6, 4, 16), 3, 1, "circular"),
        ((2, 3, 9), 4, -1, "circular"),
    ],
)
def test_every_place_is_written_to(past, rows, axis, mode):
    update = tuple(rows if i == axis % len(past) else extent for i, extent in enumerate(past))
    graph = model(
        [node("TensorScatter", "p", "u", "w", axis=axis, mode=mode)], {"p": past, "u": update, "w": (past[0],)}, ["y"],
        types={"w": TensorProto.INT64}, opset=24,
    )  # fmt: skip
    right, capacity = ReferenceEvaluator(graph), past[axis]
    with flexcomp.build(graph, threads=1).session() as session:
        starts = range(capacity - rows + 1) if mode == "linear" else [*range(capacity), 10**9, 2**62 - 1]
        for start in starts:
            at = np.array([start, *[max(start - 1, 0)] * (past[0] - 1)])
            given = {"p": random(*past), "u": random(*update), "w": at}
            # NumPy's index, like ours, is taken modulo the capacity before rows are counted.
            wanted = right.run(None, given | {"w": at % capacity if mode == "circular" else at})[0]
            np.testing.assert_array_equal(scattered(session, given), wanted)
        for wrong in (-1, *([capacity - rows + 1] if mode == "linear" else [2**62])):
            with pytest.raises(InputError, match="TensorScatter"):
                scattered(session, {"p": random(*past), "u": random(*update), "w": np.full(past[0], wrong)})


def test_indices_that_are_known_or_left_out():
    past, update = random(2, 6, 4), random(2, 3, 4)
    for at, name in ((np.array([0, 3]), "w"), (None, "")):
        graph = model(
            [node("TensorScatter", "p", "u", *([name] if name else []))], {"p": past.shape, "u": update.shape}, ["y"],
            {"w": at} if name else {}, opset=24,
        )  # fmt: skip
        with flexcomp.build(graph, threads=1).session() as session:
            wanted = ReferenceEvaluator(graph).run(None, {"p": past, "u": update})[0]
            np.testing.assert_array_equal(scattered(session, {"p": past, "u": update}), wanted)
    wrong = model(
        [node("TensorScatter", "p", "u", "w")], {"p": past.shape, "u": update.shape}, ["y"], {"w": np.array([0, 4])}, opset=24
    )
    with pytest.raises(ModelError, match=r"TensorScatter.*4"):
        flexcomp.build(wrong, threads=1)


def test_updates_that_do_not_fit_are_refused():
    for update in ((2, 7, 4), (2, 3, 5)):
        graph = model([node("TensorScatter", "p", "u")], {"p": (2, 6, 4), "u": update}, ["y"], opset=24)
        with pytest.raises((UnsupportedModelError, ModelError), match=r"TensorScatter"):
            flexcomp.build(graph, threads=1)


@pytest.mark.parametrize(
    ("attributes", "indices", "says"),
    [
        ({"axis": 7}, 2, "axis 7 is out of range for rank 3"),
        ({"mode": "foo"}, 2, "its mode is 'foo': make it one of linear, circular"),
        ({}, 1, "Dimension mismatch in unification between 1 and 2"),
    ],
)
def test_what_onnx_does_not_know_is_refused(attributes, indices, says):
    graph = model(
        [node("TensorScatter", "p", "u", "w", **attributes)], {"p": (2, 6, 4), "u": (2, 3, 4), "w": (indices,)}, ["y"],
        types={"w": TensorProto.INT64}, opset=24,
    )  # fmt: skip
    with pytest.raises((UnsupportedModelError, ModelError), match=says):
        flexcomp.build(graph, threads=1)


@pytest.mark.parametrize(
    ("element", "is_causal", "heads", "rank"), pairs(("float32", "float16"), (0, 1), ((4, 4), (4, 2)), (3, 4))
)
def test_attention_to_valid_keys(element, is_causal, heads, rank):
    """As ONNX defines it; heads of keys that several heads of queries have in common, and queries that see nothing."""
    queries, keys, depth, sizes = 3, 10, 8, (2, 3)
    shapes = {"q": (2, queries, heads[0]), "k": (2, keys, heads[1]), "v": (2, keys, heads[1])}
    extents = {n: (b, h, r, depth) if rank == 4 else (b, r, h * depth) for n, (b, r, h) in shapes.items()}
    numbers = {} if rank == 4 else {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    none = [""] * 3
    type_ = helper.np_dtype_to_tensor_dtype(np.dtype(element))
    types = dict.fromkeys("qkv", type_) | {"n": TensorProto.INT64}
    graph = model(
        [node("Attention", "q", "k", "v", *none, "n", is_causal=is_causal, scale=0.4, **numbers)], {**extents, "n": sizes[:1]},
        ["y"], types=types | {"y": type_}, opset=24,
    )  # fmt: skip
    judge = ReferenceEvaluator(graph)
    artifact = flexcomp.build(graph, UNOPTIMISED, threads=1)
    assert "attention" in [layer.op for layer in artifact.program.layers]
    with artifact.session() as session:
        for lengths in ([10, 4], [1, 3], [0, 7]):
            given = {name: random(*extent).astype(element) for name, extent in extents.items()} | {"n": np.int64(lengths)}
            found, tolerance = scattered(session, given), 1e-5 if element == "float32" else 2e-3
            np.testing.assert_allclose(found, judge.run(None, given)[0], rtol=tolerance, atol=tolerance)
        for wrong in ([11, 0], [-1, 5]):
            with pytest.raises(InputError, match=r"\(Attention\): .* outside of"):
                scattered(session, given | {"n": np.int64(wrong)})


@pytest.mark.parametrize(
    ("extents", "attributes", "types", "says"),
    [
        ({"k": (1, 2, 9, 8)}, {}, {}, "do not fit each other"),
        ({}, {}, dict.fromkeys("qkv", TensorProto.DOUBLE), "export the network in float32"),
    ],
)
def test_attention_that_is_none(extents, attributes, types, says):
    shapes = {"q": (1, 4, 3, 8), "k": (1, 2, 10, 8), "v": (1, 2, 10, 8), "n": (1,)} | extents
    graph = model(
        [node("Attention", "q", "k", "v", "", "", "", "n", **attributes)], shapes, ["y"],
        types={"n": TensorProto.INT64, "y": types.get("q", TensorProto.FLOAT), **types}, opset=24,
    )  # fmt: skip
    with pytest.raises((UnsupportedModelError, ModelError), match=says):
        flexcomp.build(graph, threads=1)


def decoder(rows: int):
    """A layer of attention over a cache: embedding, one norm, heads, logits. "at" counts the tokens before."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype("f4")

    constants = {
        "table": 2 * weights(TOKENS, WIDTH), "wq": weights(WIDTH, HEADS * DEPTH), "wk": weights(WIDTH, HEADS * DEPTH),
        "wv": weights(WIDTH, HEADS * DEPTH), "wo": weights(HEADS * DEPTH, WIDTH), "head": weights(WIDTH, TOKENS),
        "scale": np.ones(WIDTH, "f4"), "rows": np.int64([rows]), "split": np.int64([1, rows, HEADS, DEPTH]),
        "join": np.int64([1, rows, HEADS * DEPTH]),
    }  # fmt: skip
    one = helper.make_node
    nodes = [one("Gather", ["table", "token"], ["x"]), one("RMSNormalization", ["x", "scale"], ["n"])]
    for name in "qkv":
        nodes += [
            one("MatMul", ["n", f"w{name}"], [f"{name}0"]), one("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            one("Transpose", [f"{name}1"], [name], perm=[0, 2, 1, 3]),
        ]  # fmt: skip
    nodes += [
        one("TensorScatter", ["past.key", "k", "at"], ["present.key"]),
        one("TensorScatter", ["past.value", "v", "at"], ["present.value"]),
        one("Add", ["at", "rows"], ["valid"]),
        one("Attention", ["q", "present.key", "present.value", "", "", "", "valid"], ["a"], is_causal=1),
        one("Transpose", ["a"], ["a1"], perm=[0, 2, 1, 3]), one("Reshape", ["a1", "join"], ["a2"]),
        one("MatMul", ["a2", "wo"], ["o"]), one("Add", ["x", "o"], ["z"]), one("MatMul", ["z", "head"], ["logits"]),
    ]  # fmt: skip
    cache = (1, HEADS, CAPACITY, DEPTH)
    given = {"token": ((1, rows), TensorProto.INT64), "at": ((1,), TensorProto.INT64)}
    given |= {f"past.{name}": (cache, TensorProto.FLOAT) for name in ("key", "value")}
    made = {"logits": (1, rows, TOKENS), "present.key": cache, "present.value": cache}
    graph = helper.make_graph(
        nodes, "decoder", [helper.make_tensor_value_info(name, type_, shape) for name, (shape, type_) in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in made.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


CACHES = {"present.key": "past.key", "present.value": "past.value"}


def test_greedy_decoding_gives_the_tokens_of_onnxruntime():
    """A prompt by one network, whose state the other goes on with, token by token, in every budget."""
    prompt, first, rest = np.random.default_rng(1).integers(0, TOKENS, (1, 6)), decoder(6), decoder(1)
    judges = [onnxruntime.InferenceSession(graph.SerializeToString()) for graph in (first, rest)]
    caches = {name: np.zeros((1, HEADS, CAPACITY, DEPTH), "f4") for name in ("past.key", "past.value")}
    want, tokens, at = [], prompt, 0
    while at < CAPACITY:
        logits, key, value = judges[at > 0].run(None, {"token": tokens, "at": np.int64([at]), **caches})
        caches, at = {"past.key": key, "past.value": value}, at + tokens.shape[1]
        tokens = logits[:, -1:].argmax(-1)
        want.append(tokens.item())

    opened = [flexcomp.build(graph, state=CACHES, threads=1).session("all") for graph in (first, rest)]
    with opened[0] as start, opened[1] as step:
        assert [port.name for port in step.inputs] == ["token", "at"] and len(step.ladder) > 1
        found = [start(prompt, np.int64([0]))[:, -1:].argmax(-1).item()]
        step.set_state(start.state())
        for at in range(prompt.size, CAPACITY):
            step.set_budget(step.ladder[at % len(step.ladder)].budget_bytes)
            found.append(step(np.array([found[-1:]]), np.int64([at]))[:, -1:].argmax(-1).item())
        assert found == want
        np.testing.assert_allclose(step.state()["past.value"], caches["past.value"], atol=1e-5)
        with pytest.raises(InputError, match="TensorScatter"):
            step(np.array([[0]]), np.int64([CAPACITY]))
        np.testing.assert_allclose(step.state()["past.value"], caches["past.value"], atol=1e-5)
