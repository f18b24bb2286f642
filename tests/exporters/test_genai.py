"""Decoders as ONNX Runtime GenAI's model builder writes them: the same tokens, from one library for prompts and single tokens."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from flexcomp.errors import InputError, UnsupportedModelError
from tests.conformance.verdict import UNOPTIMISED

from .genai import DEPTH, SHARED, VOCABULARY, Form, decoder

RNG = np.random.default_rng(2)


def mask(valid: int, capacity: int) -> np.ndarray:
    return (np.arange(capacity) < valid).astype("int64")[None]


def oracle(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def caches(form: Form) -> dict[str, str]:
    """The names of caches after an inference and before it."""
    return {f"present.{i}.{part}": f"past_key_values.{i}.{part}" for i in range(form.layers) for part in ("key", "value")}


def poisoned(cache: np.ndarray, valid: int) -> np.ndarray:
    """The cache with NaN in all places that are not valid."""
    return np.where(np.arange(cache.shape[2])[:, None] < valid, cache, np.float32(np.nan))


FORMS = [Form(opset=14), Form(packed=True), Form(interleaved=1), Form(window=3), Form(cap=2.0, window=4)]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_caches_with_room_are_those_of_onnx_runtime(form, tmp_path):
    tokens = 5
    model = decoder(form, tokens)
    flexcomp.build(model, UNOPTIMISED, threads=1, probe=False).export_library(tmp_path / "decoder.so")
    run = oracle(model)
    with flexcomp.load(tmp_path / "decoder.so", budget="min") as session:
        for before in (0, 6, form.capacity - tokens):
            valid = before + tokens
            inputs = {"input_ids": RNG.integers(0, VOCABULARY, (1, tokens)), "attention_mask": mask(valid, form.capacity)}
            for name in caches(form).values():
                inputs[name] = RNG.standard_normal((1, SHARED, form.capacity, DEPTH)).astype("float32")
            wanted = run(inputs)
            found = session.run(inputs | {name: poisoned(inputs[name], before) for name in caches(form).values()})
            np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-4, atol=2e-5)
            for name in caches(form):
                np.testing.assert_allclose(found[name][:, :, :valid], wanted[name][:, :, :valid], rtol=1e-4, atol=2e-5)
        with pytest.raises(InputError):
            session.run({**inputs, "attention_mask": mask(2, form.capacity)})  # rows would begin before the first


@pytest.mark.parametrize("budget", ["min", "all"])
def test_one_library_takes_a_prompt_in_chunks_and_gives_the_tokens_of_onnx_runtime(budget, tmp_path):
    form, chunk = Form(layers=2, capacity=32, four_bits=True), 8
    model = decoder(form, None)
    flexcomp.build(
        model, UNOPTIMISED, input_shapes={"input_ids": (1, "s")}, shapes={"s": [1, chunk]}, state=caches(form), threads=1,
        probe=False,
    ).export_library(tmp_path / "decoder.so")  # fmt: skip
    run = oracle(model)
    past = {name: np.zeros((1, SHARED, form.capacity, DEPTH), "float32") for name in caches(form).values()}
    prompt = RNG.integers(0, VOCABULARY, 18)
    pieces = [*np.split(prompt, (chunk, 2 * chunk, 2 * chunk + 1)), *[None] * 8]
    valid, token = 0, 0
    with flexcomp.load(tmp_path / "decoder.so", budget=budget) as session:
        for piece in pieces:
            ids = np.array([[token]] if piece is None else [piece])
            valid += ids.size
            inputs = {"input_ids": ids, "attention_mask": mask(valid, form.capacity)}
            wanted = run({**inputs, **past})
            past = {before: wanted[after] for after, before in caches(form).items()}
            found = session.run(inputs)["logits"]
            np.testing.assert_allclose(found, wanted["logits"], rtol=1e-4, atol=1e-4)
            token = int(wanted["logits"][0, -1].argmax())
            assert int(found[0, -1].argmax()) == token


@pytest.mark.parametrize(
    "changed, reason",
    [({"smooth_softmax": 1}, "smooth_softmax"), ({"num_heads": None}, "attributes")],
)
def test_what_is_refused(changed, reason):
    model = decoder(Form(), 1)
    (node,) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    kept = [attribute for attribute in node.attribute if attribute.name not in changed]
    del node.attribute[:]
    node.attribute.extend(kept)
    for name, value in changed.items():
        if value is not None:
            node.attribute.append(onnx.helper.make_attribute(name, value))
    with pytest.raises(UnsupportedModelError, match=f"node 'attention.0' .*{reason}"):
        flexcomp.build(model, threads=1, probe=False)
