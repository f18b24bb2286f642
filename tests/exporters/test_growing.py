"""Decoders whose caches grow get a capacity: the tokens of ONNX Runtime with the growing ones."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp.errors import InputError, UnsupportedModelError
from tests.conformance.verdict import UNOPTIMISED

from .growing import DEPTH, SHARED, VOCABULARY, Form, decoder, merged

CAPACITY, STATE = 24, {"present.*": "past_key_values.*"}


def tokens_of(model, prompt: np.ndarray, count: int) -> list[int]:
    """What ONNX Runtime gives, with caches that grow."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    outputs = [port.name for port in session.get_outputs()]
    given = {name: np.zeros((1, SHARED, 0, DEPTH), "f4") for name in names if name.startswith("past")}
    found, ids, at = [], prompt, 0
    while len(found) < count:
        end = at + len(ids)
        inputs = {"input_ids": ids[None], "attention_mask": np.ones((1, end), "i8"), "position_ids": np.arange(at, end)[None]}
        made = dict(zip(outputs, session.run(None, {n: v for n, v in (inputs | given).items() if n in names}), strict=True))
        given = {name: made[name.replace("past_key_values", "present")] for name in given}
        found.append(int(made["logits"][0, -1].argmax()))
        ids, at = np.int64(found[-1:]), end
    return found


def built(form: Form, sizes: list[int], capacity: int = CAPACITY) -> flexcomp.Artifact:
    model = merged(decoder(form)) if form.merged else decoder(form)
    shapes = {port.name: (1, "s") for port in model.graph.input if port.name in ("input_ids", "position_ids")}
    shapes |= {port.name: (1, SHARED, capacity, DEPTH) for port in model.graph.input if port.name.startswith("past")}
    shapes |= {"attention_mask": (1, capacity)} if "attention_mask" in form.inputs else {}
    options = {"threads": 1, "probe": False, "progress": False, "kernels": "smallest", "target": UNOPTIMISED}
    return flexcomp.build(model, input_shapes=shapes, shapes={"s": sizes}, state=STATE, **options)


def assert_bounded(artifact: flexcomp.Artifact) -> None:
    """Every attention reads valid keys only."""
    described = [layer.description for layer in artifact.program.layers if layer.implementation.startswith("attention")]
    assert described and all("of valid keys" in one for one in described)


def poison(session: flexcomp.Session) -> None:
    """NaN in all places of the caches."""
    session.set_state({name: np.full_like(cache, np.nan) for name, cache in session.state().items()})


@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        (Form(layers=2), [1, 4]),
        (Form(inputs=("attention_mask",)), [1, 4]),  # positions are those after the past rows
        (Form(mask="table"), [1, 4]),
        (Form(inputs=("position_ids",)), [1, 4]),
        (Form(mask="none", inputs=("position_ids",)), [1]),  # only the number of valid rows hides the others
        (Form(inputs=()), [1, 4]),  # nothing says how many rows are valid: the network gets an input that does
        (Form(merged=True), [1]),
        (Form(mask="written"), [1, 4]),
        (Form(cast=True), [1]),
    ],
    ids=str,
)
def test_tokens_are_those_with_caches_that_grow(form, sizes, tmp_path):
    prompt = np.random.default_rng(4).integers(0, VOCABULARY, 7)
    if form.mask == "none":  # ONNX Runtime would let tokens of a prompt see later ones
        prompt = prompt[:1]
    wanted = tokens_of(decoder(form), prompt, 10)
    assert len(set(wanted)) > 2
    artifact = built(form, sizes)
    assert {"exchange", "attention"} <= {layer.implementation.split()[0] for layer in artifact.program.layers}
    assert_bounded(artifact)
    artifact.export_library(tmp_path / "decoder.so")
    for budget in ("min", "all"):
        with flexcomp.load(tmp_path / "decoder.so", budget=budget) as session:
            poison(session)
            generator = flexcomp.Generator(session)
            assert list(generator.reply(prompt.tolist(), max_tokens=10)) == wanted
            other = [*prompt[:1].tolist(), 1, 2]  # rows of the other reply are still in the caches
            assert list(generator.reply(other[: len(prompt)], max_tokens=5)) == tokens_of(
                decoder(form), np.int64(other[: len(prompt)]), 5
            )


def test_of_a_merged_decoder_what_the_other_branch_reads_is_gone():
    program = built(Form(merged=True), [1]).program
    assert [port.name for port in program.inputs] == ["input_ids", "attention_mask", "position_ids"]
    assert [port.name for port in program.outputs] == ["logits"]


def test_a_full_cache_takes_no_more(tmp_path):
    built(Form(), [1], capacity=5).export_library(tmp_path / "decoder.so")
    with flexcomp.load(tmp_path / "decoder.so", budget="min") as session:
        given = {"input_ids": np.int64([[1]]), "position_ids": np.int64([[5]])}
        with pytest.raises(InputError, match=r"present\.0\.key|join\.0\.key"):
            session.run({**given, "attention_mask": np.zeros((1, 5), "i8")})  # no row is valid, not even the new one


@pytest.mark.parametrize(
    ("form", "sizes", "error", "reason"),
    [
        (Form(summed=True), [1], UnsupportedModelError, r"node 'sum' \(ReduceSum\) reads a cache that grows"),
        (Form(mask="written", every_second=True), [1], UnsupportedModelError, r"\(ScatterND\) reads a cache that grows"),
        (Form(), [CAPACITY - 1], InputError, "of which an inference takes 23: give it more"),
    ],
    ids=str,
)
def test_what_is_refused(form, sizes, error, reason):
    with pytest.raises(error, match=reason):
        built(form, sizes)
