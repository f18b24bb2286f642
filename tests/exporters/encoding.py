"""Encoder-decoders as optimum writes them: an encoder, a decoder without caches and one with, or both merged."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks.graph import Graph

VOCABULARY, HEADS, DEPTH, LAYERS = 64, 4, 8, 2
WIDTH = HEADS * DEPTH
MELS, ROWS = 6, 10  # of sound: features for each frame, and rows of its encoder, of two frames each
REACH = 8  # of relative positions
_PARTS = ("key", "value")


@dataclass(frozen=True)
class Form:
    """What distinguishes exports."""

    merged: bool = False
    sound: bool = False  # an encoder of features, whose rows are all valid
    hides: bool = True  # rows after a text, by a mask


class _Network(Graph):
    """Weights by name: both decoders have the same."""

    def __init__(self, name: str, form: Form) -> None:
        super().__init__(name, seed=0)
        self.form = form

    def named(self, name: str, shape: Sequence[int], deviation: float = 0.3) -> str:
        """A random weight."""
        if all(weight.name != name for weight in self.weights):
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            value = (rng.standard_normal(tuple(shape)) * deviation).astype("f4")
            self.weights.append(numpy_helper.from_array(value, name))
        return name

    def vector(self, number: str) -> str:
        return self.op("Unsqueeze", number, self.integers(0))

    def extent(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.weight(np.int64(axis)), axis=0)

    def range(self, begin: str, end: str) -> str:
        return self.op("Range", begin, end, self.weight(np.int64(1)))

    def product(self, x: str, name: str) -> str:
        return self.op("MatMul", x, self.named(name, (WIDTH, WIDTH)))

    def heads(self, x: str, name: str, batch: str) -> str:
        """[batch, heads, rows, depth]; `batch` has as many sequences."""
        extents = self.op("Concat", self.vector(self.extent(batch, 0)), self.integers(-1, HEADS, DEPTH), axis=0)
        return self.op("Transpose", self.op("Reshape", self.product(x, name), extents), perm=[0, 2, 1, 3])

    def relative(self, queries: str, keys: str, name: str) -> str:
        """[1, heads, queries, keys]: numbers by the distance of places."""
        far = self.op("Sub", self.op("Unsqueeze", keys, self.integers(0)), self.op("Unsqueeze", queries, self.integers(1)))
        near = self.op("Clip", far, self.weight(np.int64(-REACH)), self.weight(np.int64(REACH)))
        row = self.op("Add", near, self.weight(np.int64(REACH)))
        bias = self.op("Gather", self.named(name, (2 * REACH + 1, HEADS), 1.0), row)
        return self.op("Unsqueeze", self.op("Transpose", bias, perm=[2, 0, 1]), self.integers(0))

    def hidden(self, mask: str) -> str:
        """float32[1, 1, 1, places], the least number where a mask is 0."""
        is_hidden = self.op("Equal", self.op("Unsqueeze", mask, self.integers(1, 2)), self.weight(np.int64(0)))
        return self.op("Where", is_hidden, self.number(np.finfo("f4").min), self.number(0.0))

    def attention(self, query: str, key: str, value: str, bias: str | None, name: str) -> str:
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = scores if bias is None else self.op("Add", scores, bias)
        mixed = self.op("Transpose", self.op("MatMul", self.op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        return self.product(self.op("Reshape", mixed, self.integers(0, 0, WIDTH)), name)

    def embedded(self, ids: str) -> str:
        return self.op("Gather", self.named("shared", (VOCABULARY, WIDTH), 1.0), ids)


def _info(name: str, kind: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _model(g: _Network, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    graph = helper.make_graph(g.nodes, g.name, g.inputs, outputs, g.weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def encoder(form: Form) -> onnx.ModelProto:
    """Tokens with a mask, or features [1, mels, frames]; its output is last_hidden_state."""
    g, bias = _Network("encoder", form), None
    if form.sound:
        g.inputs = [_info("input_features", TensorProto.FLOAT, ["batch_size", "feature_size", "encoder_sequence_length"])]
        x = g.op("Conv", "input_features", g.named("conv", (WIDTH, MELS, 3)), strides=[2], pads=[1, 1])
        x = g.op("Transpose", g.op("Relu", x), perm=[0, 2, 1])
    else:
        names = ("input_ids", "attention_mask")
        g.inputs = [_info(name, TensorProto.INT64, ["batch_size", "encoder_sequence_length"]) for name in names]
        places = g.range(g.weight(np.int64(0)), g.extent("input_ids", 1))
        bias = g.op("Add", g.relative(places, places, "encoder.bias"), g.hidden("attention_mask"))
        x = g.embedded("input_ids")
    for i in range(LAYERS):
        q, k, v = (g.heads(x, f"encoder.{i}.{part}", x) for part in ("q", "k", "v"))
        x = g.op("Add", x, g.attention(q, k, v, bias, f"encoder.{i}.o"))
    g.nodes.append(helper.make_node("Tanh", [x], ["last_hidden_state"], "last"))
    return _model(g, [_info("last_hidden_state", TensorProto.FLOAT, ["batch_size", "encoder_sequence_length", WIDTH])])


def decoder(form: Form, with_past: bool) -> onnx.ModelProto:
    """One token after cached ones, or the first tokens, of which caches are made."""
    g = _Network("decoder", form)
    has_mask = form.hides and not form.sound
    if has_mask:
        g.inputs.append(_info("encoder_attention_mask", TensorProto.INT64, ["batch_size", "encoder_sequence_length"]))
    g.inputs.append(_info("input_ids", TensorProto.INT64, ["batch_size", 1 if with_past else "decoder_sequence_length"]))
    if not with_past:
        g.inputs.append(_info("encoder_hidden_states", TensorProto.FLOAT, ["batch_size", "encoder_sequence_length", WIDTH]))
    cross = ["batch_size", HEADS, "encoder_sequence_length_out", DEPTH]
    own = ["batch_size", HEADS, "past_decoder_sequence_length", DEPTH]
    longer = ["batch_size", HEADS, "past_decoder_sequence_length + 1", DEPTH]
    outputs = [_info("logits", TensorProto.FLOAT, ["batch_size", "decoder_sequence_length", VOCABULARY])]
    for i in range(LAYERS):
        if with_past:
            g.inputs += [_info(f"past_key_values.{i}.decoder.{part}", TensorProto.FLOAT, own) for part in _PARTS]
            g.inputs += [_info(f"past_key_values.{i}.encoder.{part}", TensorProto.FLOAT, cross) for part in _PARTS]
        outputs += [_info(f"present.{i}.decoder.{part}", TensorProto.FLOAT, longer) for part in _PARTS]
        outputs += [_info(f"present.{i}.encoder.{part}", TensorProto.FLOAT, cross) for part in _PARTS] * (not with_past)
    new = g.extent("input_ids", 1)
    before = g.extent("past_key_values.0.decoder.key", 2) if with_past else g.weight(np.int64(0))
    total = g.op("Add", before, new)
    queries, keys = g.range(before, total), g.range(g.weight(np.int64(0)), total)
    later = g.op("Greater", g.op("Unsqueeze", keys, g.integers(0)), g.op("Unsqueeze", queries, g.integers(1)))
    causal = g.op("Where", later, g.number(np.finfo("f4").min), g.number(0.0))
    bias = g.op("Add", g.relative(queries, keys, "decoder.bias"), causal)
    hidden = g.hidden("encoder_attention_mask") if has_mask else None
    x = g.embedded("input_ids")
    for i in range(LAYERS):
        caches = []
        for part in _PARTS:
            made = f"present.{i}.decoder.{part}"
            rows = g.heads(x, f"decoder.{i}.{part}", "input_ids")
            given = [f"past_key_values.{i}.decoder.{part}", rows] if with_past else [rows]
            g.nodes.append(helper.make_node("Concat", given, [made], f"join.{i}.{part}", axis=2))
            caches.append(made)
        x = g.op("Add", x, g.attention(g.heads(x, f"decoder.{i}.q", "input_ids"), *caches, bias, f"decoder.{i}.o"))
        caches = [f"past_key_values.{i}.encoder.{part}" for part in _PARTS]
        if not with_past:
            for part in _PARTS:
                made = g.heads("encoder_hidden_states", f"cross.{i}.{part}", x)  # of x the extents alone
                g.nodes.append(helper.make_node("Identity", [made], [f"present.{i}.encoder.{part}"], f"cross.{i}.{part}"))
            caches = [f"present.{i}.encoder.{part}" for part in _PARTS]
        x = g.op("Add", x, g.attention(g.heads(x, f"cross.{i}.q", "input_ids"), *caches, hidden, f"cross.{i}.o"))
    g.nodes.append(helper.make_node("MatMul", [x, g.named("head", (WIDTH, VOCABULARY))], ["logits"], "logits"))
    return _model(g, outputs)


def merged(form: Form) -> onnx.ModelProto:
    """If(use_cache_branch): with caches, those of the encoder's result being empty outputs; or without. Weights are one."""
    with_past, first = decoder(form, True), decoder(form, False)
    ports = {port.name: port for model in (with_past, first) for port in model.graph.input}
    ports["input_ids"] = next(port for port in first.graph.input if port.name == "input_ids")
    weights = {}
    for which, model in enumerate((with_past, first)):
        names = {one.name: f"{which}/{one.name}" for one in model.graph.initializer if one.name.startswith("w")}
        names |= {name: f"{which}/{name}" for node in model.graph.node for name in node.output}
        names = {old: new for old, new in names.items() if not old.startswith(("present", "logits"))}
        for one in model.graph.initializer:
            one.name = names.get(one.name, one.name)
            weights[one.name] = one
        for node in model.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
    outputs = list(first.graph.output)
    for name in [port.name for port in outputs if ".encoder." in port.name]:
        none = numpy_helper.from_array(np.zeros((0, HEADS, 1, DEPTH), "f4"))
        with_past.graph.node.append(helper.make_node("Constant", [], [name], name, value=none))
    branches = {
        side: helper.make_graph([*model.graph.node], side, [], outputs)
        for side, model in (("then_branch", with_past), ("else_branch", first))
    }
    node = helper.make_node("If", ["use_cache_branch"], [port.name for port in outputs], "if", **branches)
    inputs = [*ports.values(), _info("use_cache_branch", TensorProto.BOOL, [1])]
    graph = helper.make_graph([node], "merged", inputs, outputs, [*weights.values()])
    return helper.make_model(graph, ir_version=8, opset_imports=first.opset_import)


def write(folder: Path, form: Form, suffix: str = "") -> None:
    """The files, weights in files of their own."""
    models = {"encoder_model": encoder(form)}
    if form.merged:
        models["decoder_model_merged"] = merged(form)
    else:
        models |= {"decoder_model": decoder(form, False), "decoder_with_past_model": decoder(form, True)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        options = {"save_as_external_data": True, "location": f"{name}{suffix}.onnx_data", "size_threshold": 1024}
        onnx.save(onnx.ModelProto.FromString(model.SerializeToString()), folder / f"{name}{suffix}.onnx", **options)
