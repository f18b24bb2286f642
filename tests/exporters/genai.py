"""A decoder as ONNX Runtime GenAI's model builder writes it: com.microsoft's attention over caches, norms after sums, 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from benchmarks.networks.graph import Graph

MICROSOFT = "com.microsoft"
VOCABULARY, HEADS, SHARED, DEPTH, BLOCK = 64, 4, 2, 16, 32
WIDTH = HEADS * DEPTH


@dataclass(frozen=True)
class Form:
    """What distinguishes exports."""

    layers: int = 1
    capacity: int = 16
    opset: int = 21
    packed: bool = False  # query, key and value as one input
    interleaved: int = 0  # pairs of rotations are neighbours
    four_bits: bool = False
    window: int = -1  # of the last keys, that are seen
    cap: float = 0.0  # of scores


class _Decoder(Graph):
    """`tokens` new ones, or of any number where that is None."""

    def __init__(self, form: Form, tokens: int | None) -> None:
        super().__init__("decoder", seed=1)
        self.form = form
        self.outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, tokens or "s", VOCABULARY])]
        self.inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, tokens or "s"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, form.capacity]),
        ]

    def named(self, kind: str, inputs: list[str], outputs: list[str], **attributes) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, outputs[0], **attributes))
        return outputs[0]

    def product(self, x: str, rows: int, columns: int) -> str:
        if not self.form.four_bits:
            return self.op("MatMul", x, self.normal((rows, columns), 0.2))
        blocks = rows // BLOCK
        packed = self.weight(self.rng.integers(0, 256, (columns, blocks, BLOCK // 2), dtype=np.uint8))
        scales = self.weight(self.rng.uniform(0.01, 0.05, columns * blocks).astype("float32"))
        return self.op("MatMulNBits", x, packed, scales, K=rows, N=columns, bits=4, block_size=BLOCK, domain=MICROSOFT)

    def after_sum(self, x: str, added: str, names: str) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        inputs = [x, added, self.normal((WIDTH,), 1.0)]
        outputs = [f"{names}/norm", "", "", f"{names}/sum"]
        self.named("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=1e-5, domain=MICROSOFT)
        return outputs[0], outputs[3]

    def attention(self, y: str, layer: int, shared: list[str]) -> str:
        parts = [self.product(y, WIDTH, heads * DEPTH) for heads in (HEADS, SHARED, SHARED)]
        if self.form.packed:
            parts = [self.op("Concat", *parts, axis=-1), "", ""]
        shape = [1, SHARED, self.form.capacity, DEPTH]
        past, present = ([f"{name}.{layer}.{part}" for part in ("key", "value")] for name in ("past_key_values", "present"))
        self.inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in past]
        self.outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in present]
        return self.named(
            "GroupQueryAttention", [*parts, *past, *shared], [f"attention.{layer}", *present], domain=MICROSOFT,
            num_heads=HEADS, kv_num_heads=SHARED, do_rotary=1, rotary_interleaved=self.form.interleaved, scale=DEPTH**-0.5,
            local_window_size=self.form.window, softcap=self.form.cap,
        )  # fmt: skip


def decoder(form: Form, tokens: int | None) -> onnx.ModelProto:
    """One sequence; inputs are ids [1, tokens], a mask of all places, and caches of the form's capacity."""
    g = _Decoder(form, tokens)
    angles = np.arange(form.capacity)[:, None] / 10_000 ** (np.arange(0, DEPTH, 2) / DEPTH)
    g.nodes.append(helper.make_node("Constant", [], ["one"], "one", value_ints=[1]))
    total = g.op("ReduceSum", "attention_mask", "one", keepdims=0)
    last = g.op("Cast", g.op("Sub", total, g.integers(1)), to=TensorProto.INT32)
    places = g.op("Gather", g.op("Shape", "attention_mask"), g.weight(np.int64(1)), axis=0)
    shared = [last, g.op("Cast", places, to=TensorProto.INT32)]
    shared += [g.weight(table(angles).astype("float32")) for table in (np.cos, np.sin)]
    x = g.op("Gather", g.normal((VOCABULARY, WIDTH), 1.0), "input_ids")
    y = g.op("SimplifiedLayerNormalization", x, g.normal((WIDTH,), 1.0), axis=-1, epsilon=1e-5)
    for layer in range(form.layers):
        attended = g.product(g.attention(y, layer, shared), WIDTH, WIDTH)
        y, x = g.after_sum(x, attended, f"middle.{layer}")
        gate, up = (g.product(y, WIDTH, 96) for _ in range(2))
        down = g.product(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up), 96, WIDTH)
        y, x = g.after_sum(x, down, f"end.{layer}")
    g.named("MatMul", [y, g.normal((WIDTH, VOCABULARY), 0.2)], ["logits"])
    graph = helper.make_graph(g.nodes, g.name, g.inputs, g.outputs, g.weights)
    noted = {"one": [], total: ["batch_size"]}  # the builder notes constants without their axis: inference stops there
    graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in noted.items())
    opsets = [helper.make_opsetid("", form.opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def logits_after(form: Form) -> Callable[[Sequence[int]], np.ndarray]:
    """Logits of the token after a sequence, by ONNX Runtime, without anything kept."""
    opened = onnxruntime.InferenceSession(decoder(form, None).SerializeToString(), providers=["CPUExecutionProvider"])
    empty = {port.name: np.zeros(port.shape, "float32") for port in opened.get_inputs() if port.name.startswith("past")}

    def logits(sequence: Sequence[int]) -> np.ndarray:
        mask = (np.arange(form.capacity) < len(sequence)).astype("int64")[None]
        return opened.run(["logits"], {"input_ids": np.array([sequence]), "attention_mask": mask, **empty})[0][0, -1]

    return logits


def greedy(form: Form, prompt: Sequence[int], count: int) -> list[int]:
    """The likeliest tokens after a prompt, one after the other."""
    logits, sequence = logits_after(form), list(prompt)
    for _ in range(count):
        sequence.append(int(np.argmax(logits(sequence))))
    return sequence[len(prompt) :]
