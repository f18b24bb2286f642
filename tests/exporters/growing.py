"""Decoders whose caches grow, as optimum and torch's exporters write these: past rows and new ones are joined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks.graph import Graph

VOCABULARY, HEADS, SHARED, DEPTH, LONGEST = 64, 4, 2, 8, 64
WIDTH = HEADS * DEPTH


@dataclass(frozen=True)
class Form:
    """What distinguishes exports."""

    # How later tokens are hidden: by positions, which are "written" into all places (OPT, Falcon), by rows of a table (GPT-2), or
    # "none", for single tokens.
    mask: str = "positions"
    cast: bool = False  # caches are cast to the type that they have (GPT-J)
    inputs: tuple[str, ...] = ("attention_mask", "position_ids")
    layers: int = 1
    merged: bool = False  # with a decoder without past, as optimum merges the two
    every_second: bool = False  # of places is written
    summed: bool = False  # an output is the sum over all places of a cache


class _Decoder(Graph):
    def __init__(self, form: Form) -> None:
        super().__init__("decoder", seed=3)
        self.form = form
        info = helper.make_tensor_value_info
        self.outputs = [info("logits", TensorProto.FLOAT, [1, "s", VOCABULARY])]
        self.inputs = [info("input_ids", TensorProto.INT64, [1, "s"])]
        extents = {"attention_mask": "p + s", "position_ids": "s"}
        self.inputs += [info(name, TensorProto.INT64, [1, extents[name]]) for name in form.inputs]
        self.past = [f"past_key_values.{i}.{part}" for i in range(form.layers) for part in ("key", "value")]
        self.inputs += [info(name, TensorProto.FLOAT, [1, SHARED, "p", DEPTH]) for name in self.past]
        made = [name.replace("past_key_values", "present") for name in self.past]
        self.outputs += [info(name, TensorProto.FLOAT, [1, SHARED, "p + s", DEPTH]) for name in made]

    def extent(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.weight(np.int64(axis)), axis=0)

    def vector(self, number: str) -> str:
        return self.op("Unsqueeze", number, self.integers(0))

    def positions(self) -> str:
        """int64[1, tokens]: an input, or the numbers after the past rows."""
        if "position_ids" in self.form.inputs:
            return "position_ids"
        return self.op("Unsqueeze", self.counted, self.integers(0))

    def begin(self) -> None:
        self.before, self.new = self.extent(self.past[0], 2), self.extent("input_ids", 1)
        self.total = self.op("Add", self.before, self.new)
        self.counted = self.op("Range", self.before, self.total, self.weight(np.int64(1)))

    def bias(self) -> str | None:
        """float32[1, 1, tokens, places], the least number where a token does not look."""
        hidden = []
        if self.form.mask in ("positions", "written"):
            places = self.op("Range", self.weight(np.int64(0)), self.total, self.weight(np.int64(1)))
            hidden.append(self.op("Greater", places, self.op("Unsqueeze", self.counted, self.integers(1))))
        if self.form.mask == "table":
            table = self.weight(np.triu(np.ones((1, 1, LONGEST, LONGEST), bool), 1))
            starts = self.op("Concat", self.vector(self.before), self.integers(0), axis=0)
            ends = self.op("Concat", self.vector(self.total), self.vector(self.total), axis=0)
            hidden.append(self.op("Slice", table, starts, ends, self.integers(2, 3)))
        if "attention_mask" in self.form.inputs:
            mask = self.op("Unsqueeze", "attention_mask", self.integers(1, 2))
            hidden.append(self.op("Equal", mask, self.weight(np.int64(0))))
        if not hidden:
            return None
        joined = hidden[0] if len(hidden) == 1 else self.op("Or", *hidden)
        bias = self.op("Where", joined, self.number(np.finfo("f4").min), self.number(0.0))
        return self.written(bias) if self.form.mask == "written" else bias

    def written(self, bias: str) -> str:
        """Zeros, into all places of which the bias is written."""
        extents = [self.integers(1), self.integers(1), self.vector(self.new), self.vector(self.total)]
        shape = self.op("Concat", *extents, axis=0)
        columns = []
        for axis, extent in enumerate(extents):
            end = self.op("Squeeze", extent, self.integers(0))
            places = self.op("Range", self.weight(np.int64(0)), end, self.weight(np.int64(1)))
            if self.form.every_second:
                places = self.op("Mul", self.op("Div", places, self.weight(np.int64(2))), self.weight(np.int64(2)))
            places = self.op("Reshape", places, self.integers(*(-1 if i == axis else 1 for i in range(4))))
            columns.append(self.op("Unsqueeze", self.op("Expand", places, shape), self.integers(-1)))
        zeros = self.op("Expand", self.number(0.0), shape)
        return self.op("ScatterND", zeros, self.op("Concat", *columns, axis=-1), bias)

    def heads(self, x: str, count: int) -> str:
        product = self.op("MatMul", x, self.normal((WIDTH, count * DEPTH), 0.3))
        split = self.op("Reshape", product, self.integers(0, -1, count, DEPTH))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def repeated(self, x: str) -> str:
        """Shared heads for all, with extents that are computed."""
        each = self.op("Unsqueeze", x, self.integers(2))
        extents = [self.integers(1), self.integers(SHARED), self.integers(HEADS // SHARED), self.vector(self.extent(x, 2))]
        grown = self.op("Expand", each, self.op("Concat", *extents, self.integers(DEPTH), axis=0))
        flat = self.op("Concat", self.integers(1, HEADS), self.vector(self.extent(x, 2)), self.integers(DEPTH), axis=0)
        return self.op("Reshape", grown, flat)

    def attention(self, x: str, layer: int, bias: str | None) -> str:
        query, key, value = (self.heads(x, count) for count in (HEADS, SHARED, SHARED))
        caches = []
        for part, rows in (("key", key), ("value", value)):
            past = f"past_key_values.{layer}.{part}"
            made = past.replace("past_key_values", "present")
            joined = f"joined.{layer}.{part}" if self.form.cast else made
            self.nodes.append(helper.make_node("Concat", [past, rows], [joined], f"join.{layer}.{part}", axis=-2))
            if self.form.cast:
                self.nodes.append(helper.make_node("Cast", [joined], [made], f"cast.{layer}.{part}", to=TensorProto.FLOAT))
            caches.append(self.repeated(made))
        scores = self.op("MatMul", query, self.op("Transpose", caches[0], perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.number(DEPTH**-0.5))
        scores = scores if bias is None else self.op("Add", scores, bias)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), caches[1])
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.integers(0, 0, WIDTH))
        return self.op("MatMul", joined, self.normal((WIDTH, WIDTH), 0.3))


def decoder(form: Form) -> onnx.ModelProto:
    """One sequence; inputs are ids [1, tokens], the form's, and caches [1, heads, past rows, depth]."""
    g = _Decoder(form)
    g.begin()
    x = g.op("Gather", g.normal((VOCABULARY, WIDTH), 1.0), "input_ids")
    x = g.op("Add", x, g.op("Gather", g.normal((LONGEST, WIDTH), 1.0), g.positions()))
    bias = g.bias()
    for layer in range(form.layers):
        x = g.op("Add", x, g.attention(x, layer, bias))
    if form.summed:
        g.nodes.append(helper.make_node("ReduceSum", ["present.0.key", g.integers(2)], ["sum"], "sum"))
        g.outputs.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, None))
    g.nodes.append(helper.make_node("MatMul", [x, g.normal((WIDTH, VOCABULARY), 0.3)], ["logits"], "logits"))
    graph = helper.make_graph(g.nodes, g.name, g.inputs, g.outputs, g.weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def merged(model: onnx.ModelProto) -> onnx.ModelProto:
    """If(use_cache_branch; the decoder, another one that reads hidden states), and an output that is empty with past."""
    graph = model.graph
    none = helper.make_node("Constant", [], ["cross"], "cross", value=numpy_helper.from_array(np.zeros((0, WIDTH), "f4")))
    cross = helper.make_tensor_value_info("cross", TensorProto.FLOAT, ["n", WIDTH])
    hidden = helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, ["n", WIDTH])
    outputs = [*graph.output, cross]
    first = onnx.GraphProto.FromString(graph.SerializeToString())
    first.node.append(none)
    table = numpy_helper.from_array(np.ones((WIDTH, VOCABULARY), "f4"), "table")
    other = [helper.make_node("MatMul", ["hidden_states", "table"], ["products"])]
    other += [helper.make_node("Unsqueeze", ["products", "zero"], ["logits"])]
    other += [helper.make_node("Identity", ["hidden_states"], [port.name]) for port in outputs[1:]]
    weights = [table, numpy_helper.from_array(np.int64([0]), "zero")]
    with_past = helper.make_graph([*first.node], "with_past", [], outputs, [*first.initializer])
    without = helper.make_graph(other, "without", [], outputs, weights)
    names = [port.name for port in outputs]
    node = helper.make_node("If", ["use_cache_branch"], names, "if", then_branch=with_past, else_branch=without)
    condition = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    whole = helper.make_graph([node], "merged", [*graph.input, hidden, condition], outputs)
    return helper.make_model(whole, ir_version=8, opset_imports=model.opset_import)
