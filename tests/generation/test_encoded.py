"""Replies of the decoder of an encoder-decoder: caches of the encoder's result stay, those of tokens grow."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import InputError
from tests.exporters import growing

CAPACITY, ROWS = 24, 6  # places for tokens, and the encoder's
CROSS = tuple(f"past_key_values.0.encoder.{part}" for part in ("key", "value"))


def decoder() -> onnx.ModelProto:
    """As optimum writes decoder_with_past_model.onnx, of one layer: attention to tokens, then to what the encoder made."""
    g = growing._Decoder(growing.Form())
    info = helper.make_tensor_value_info
    g.inputs.append(info("encoder_attention_mask", TensorProto.INT64, [1, ROWS]))
    g.inputs += [info(name, TensorProto.FLOAT, [1, growing.HEADS, ROWS, growing.DEPTH]) for name in CROSS]
    g.begin()
    x = g.op("Gather", g.normal((growing.VOCABULARY, growing.WIDTH), 1.0), "input_ids")
    x = g.op("Add", x, g.op("Gather", g.normal((growing.LONGEST, growing.WIDTH), 1.0), g.positions()))
    x = g.op("Add", x, g.attention(x, 0, g.bias()))
    hidden = g.op("Equal", g.op("Unsqueeze", "encoder_attention_mask", g.integers(1, 2)), g.weight(np.int64(0)))
    bias = g.op("Where", hidden, g.number(np.finfo("f4").min), g.number(0.0))
    scores = g.op("MatMul", g.heads(x, growing.HEADS), g.op("Transpose", CROSS[0], perm=[0, 1, 3, 2]))
    scores = g.op("Add", g.op("Mul", scores, g.number(growing.DEPTH**-0.5)), bias)
    mixed = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), CROSS[1]), perm=[0, 2, 1, 3])
    x = g.op("Add", x, g.op("Reshape", mixed, g.integers(0, 0, growing.WIDTH)))
    g.nodes.append(helper.make_node("MatMul", [x, g.normal((growing.WIDTH, growing.VOCABULARY), 0.3)], ["logits"], "logits"))
    graph = helper.make_graph(g.nodes, g.name, g.inputs, g.outputs, g.weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def tokens_of(model: onnx.ModelProto, prompt: list[int], encoded: dict[str, np.ndarray], count: int) -> list[int]:
    """Those of ONNX Runtime, which computes each sequence anew."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    empty = {f"past_key_values.0.{part}": np.zeros((1, growing.SHARED, 0, growing.DEPTH), "f4") for part in ("key", "value")}
    sequence = list(prompt)
    for _ in range(count):
        places = np.arange(len(sequence))[None]
        given = {"input_ids": np.int64([sequence]), "attention_mask": np.ones_like(places), "position_ids": places}
        sequence.append(int(session.run(["logits"], given | empty | encoded)[0][0, -1].argmax()))
    return sequence[len(prompt) :]


def encoded(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    caches = {name: rng.standard_normal((1, growing.HEADS, ROWS, growing.DEPTH)).astype("f4") for name in CROSS}
    return caches | {"encoder_attention_mask": np.int64([[1] * (ROWS - seed) + [0] * seed])}


def test_replies_to_what_encoders_made(tmp_path):
    """Two replies in turns, each with caches of its own for what was encoded."""
    model = decoder()
    caches = {f"past_key_values.0.{part}": (1, growing.SHARED, CAPACITY, growing.DEPTH) for part in ("key", "value")}
    shapes = {"input_ids": (1, "s"), "position_ids": (1, "s"), "attention_mask": (1, CAPACITY), **caches}
    state = {"present.*": "past_key_values.*", **{name: name for name in CROSS}}
    flexcomp.build(
        model, input_shapes=shapes, shapes={"s": [1, 4]}, state=state, threads=1, probe=False, kernels="smallest"
    ).export_library(tmp_path / "decoder.so")
    with flexcomp.load(tmp_path / "decoder.so", budget="min") as session:
        assert session.staying == {*CROSS}
        generator = flexcomp.Generator(session)
        given, prompts = [encoded(1), encoded(2)], [[3, 1, 4, 1, 5], [9, 2]]
        replies = [generator.reply(prompt, 5, encoded=one) for prompt, one in zip(prompts, given, strict=True)]
        found = [[next(reply) for reply in replies] for _ in range(5)]
        wanted = [tokens_of(model, prompt, one, 5) for prompt, one in zip(prompts, given, strict=True)]
        assert [list(one) for one in zip(*found, strict=True)] == wanted
        with pytest.raises(InputError, match=r"must be encoder_attention_mask, past_key_values\.0\.encoder\.key.*, not n"):
            generator.reply([1], 1)
        with pytest.raises(InputError, match=r"'encoder_attention_mask' is .*, not of shape"):
            generator.reply([1], 1, encoded=given[0] | {"encoder_attention_mask": np.int64([1])})


@pytest.mark.parametrize("kind, bound", [("float16", 2e-3), ("int8", 2e-2)])
def test_what_encoders_made_in_fewer_bits(tmp_path, kind, bound):
    model = decoder()
    caches = {f"past_key_values.0.{part}": (1, growing.SHARED, CAPACITY, growing.DEPTH) for part in ("key", "value")}
    shapes = {"input_ids": (1, 1), "position_ids": (1, 1), "attention_mask": (1, CAPACITY), **caches}
    state = {"present.*": "past_key_values.*", **{name: name for name in CROSS}}
    flexcomp.build(
        model, input_shapes=shapes, state=state, state_type=dict.fromkeys(CROSS, kind), threads=1, probe=False,
        kernels="smallest",
    ).export_library(tmp_path / "decoder.so")  # fmt: skip
    given, prompt = encoded(2), [9, 2, 7]
    given[CROSS[0]][0, 1, 3] = 0  # a row without a largest number
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    empty = {name: np.zeros((1, growing.SHARED, 0, growing.DEPTH), "f4") for name in caches}
    places = np.arange(len(prompt))[None]
    inputs = {"input_ids": np.int64([prompt]), "attention_mask": np.ones_like(places), "position_ids": places}
    (wanted,) = session.run(["logits"], inputs | empty | given)
    with flexcomp.load(tmp_path / "decoder.so", budget="min") as opened:
        types = {port.name: (port.dtype, port.shape[-1]) for port in opened.states}
        depth = growing.DEPTH + 4 if kind == "int8" else growing.DEPTH
        assert {types[name] for name in CROSS} == {(kind, depth)} and types["past_key_values.0.key"][0] == "float32"
        taker = flexcomp.Generator(opened).decoder
        taker.require_encoded(given)
        taker.turn_to(object(), prompt, given)
        rows = [taker.advance(prompt[:end])[-1] for end in range(1, len(prompt) + 1)]
        error = np.abs(rows - wanted[0]).max() / np.abs(wanted).max()
        assert 0 < error < bound
        stored = opened.state()
        taker.turn_to(object(), prompt, given | {name: stored[name] for name in CROSS})  # the bytes themselves
        np.testing.assert_array_equal([taker.advance(prompt[:end])[-1] for end in range(1, len(prompt) + 1)], rows)
