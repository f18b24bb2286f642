"""A decoder of Llama's structure, random weights in blocks of 4 bits, as an ONNX file and as a GGUF file of the same numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.networks.graph import Graph

MICROSOFT = "com.microsoft"
BLOCK = 32
_STD = 4.61  # of whole numbers from -8 to 7
_FLOAT32, _Q4_0 = 0, 2  # element types of GGUF
_UINT32, _INT32, _FLOAT, _BOOL, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9  # types of its metadata
_ALIGN = 32


@dataclass(frozen=True)
class Sizes:
    """Of a decoder: by default 0.2 billion weights in products."""

    layers: int = 16
    width: int = 1024
    inner: int = 2816
    heads: int = 16
    shared: int = 4  # heads of keys and values
    vocabulary: int = 32000
    capacity: int = 1024

    @property
    def depth(self) -> int:
        """Of a head."""
        return self.width // self.heads

    @property
    def state(self) -> dict[str, str]:
        """Caches after an inference, and before it."""
        names = [f"{i}.{part}" for i in range(self.layers) for part in ("key", "value")]
        return {f"present.{name}": f"past_key_values.{name}" for name in names}


@dataclass
class Matrix:
    """[channels, inputs]: whole numbers from 0 to 15, less 8, times a scale for each block."""

    numbers: np.ndarray  # uint8 [channels, blocks, 32]
    scales: np.ndarray  # float16 [channels, blocks]

    def pairs(self) -> np.ndarray:
        """Neighbours in a byte, as MatMulNBits has them."""
        return self.numbers[..., 0::2] | self.numbers[..., 1::2] << 4

    def gguf(self) -> bytes:
        """Blocks of Q4_0: a scale, then numbers with those 16 places later in a byte."""
        halves = self.numbers[..., : BLOCK // 2] | self.numbers[..., BLOCK // 2 :] << 4
        return np.concatenate([self.scales[..., None].view(np.uint8), halves], axis=-1).tobytes()


@dataclass
class Weights:
    """All weights of a decoder, by their names in GGUF; every matrix has numbers of its own."""

    sizes: Sizes
    seed: int = 0

    def matrices(self) -> Iterator[tuple[str, Matrix]]:
        """One after the other, the same in every call."""
        s, rng = self.sizes, np.random.default_rng(self.seed)
        shapes = {"token_embd": (s.vocabulary, s.width)}
        for i in range(s.layers):
            parts = {"attn_q": s.width, "attn_k": s.shared * s.depth, "attn_v": s.shared * s.depth, "attn_output": s.width}
            shapes |= {f"blk.{i}.{name}": (channels, s.width) for name, channels in parts.items()}
            shapes |= {f"blk.{i}.{name}": (s.inner, s.width) for name in ("ffn_gate", "ffn_up")}
            shapes[f"blk.{i}.ffn_down"] = (s.width, s.inner)
        shapes["output"] = (s.vocabulary, s.width)
        for name, (channels, inputs) in shapes.items():
            numbers = rng.integers(0, 16, (channels, inputs // BLOCK, BLOCK), np.uint8)
            size = (1 if name == "token_embd" else inputs**-0.5) / _STD
            yield name, Matrix(numbers, (size * rng.uniform(0.8, 1.2, numbers.shape[:2])).astype(np.float16))

    def norm(self, name: str) -> np.ndarray:
        """The factors of a norm."""
        return np.ones(self.sizes.width, np.float32)


def write_onnx(weights: Weights, path: Path, accuracy_level: int) -> None:
    """As ONNX Runtime GenAI's model builder writes decoders; `accuracy_level` is an attribute of MatMulNBits."""
    s, g, found = weights.sizes, Graph("decoder", seed=0), dict(weights.matrices())

    def named(kind: str, inputs: list[str], outputs: list[str], **attributes) -> None:
        g.nodes.append(helper.make_node(kind, inputs, outputs, outputs[0], domain=MICROSOFT, **attributes))

    def product(x: str, name: str) -> str:
        matrix = found.pop(name)
        channels, blocks, _ = matrix.numbers.shape
        packed, scales = g.weight(matrix.pairs()), g.weight(matrix.scales.astype(np.float32).reshape(-1))
        settings = dict(K=blocks * BLOCK, N=channels, bits=4, block_size=BLOCK, accuracy_level=accuracy_level)
        return g.op("MatMulNBits", x, packed, scales, domain=MICROSOFT, **settings)

    def after_sum(x: str, added: str, name: str) -> tuple[str, str]:
        outputs = [f"{name}/norm", "", "", f"{name}/sum"]
        factors = g.weight(weights.norm(name))
        named("SkipSimplifiedLayerNormalization", [x, added, factors], outputs, epsilon=1e-5)
        return outputs[0], outputs[3]

    info = helper.make_tensor_value_info
    g.inputs = [info("input_ids", TensorProto.INT64, [1, "s"]), info("attention_mask", TensorProto.INT64, [1, s.capacity])]
    made = [info("logits", TensorProto.FLOAT, [1, 1, s.vocabulary])]
    for after, before in s.state.items():
        g.inputs.append(info(before, TensorProto.FLOAT, [1, s.shared, s.capacity, s.depth]))
        made.append(info(after, TensorProto.FLOAT, [1, s.shared, s.capacity, s.depth]))
    angles = np.arange(s.capacity)[:, None] / 10_000 ** (np.arange(0, s.depth, 2) / s.depth)
    total = g.op("ReduceSum", "attention_mask", g.integers(1), keepdims=1)
    last = g.op("Cast", g.op("Sub", total, g.integers(1)), to=TensorProto.INT32)
    shared = [last, g.weight(np.int32(s.capacity)), *(g.weight(of(angles).astype(np.float32)) for of in (np.cos, np.sin))]
    table = found.pop("token_embd")
    rows = [g.weight(table.pairs().reshape(s.vocabulary, -1)), "input_ids", g.weight(table.scales.astype(np.float32))]
    x = g.op("GatherBlockQuantized", *rows, bits=4, block_size=BLOCK, gather_axis=0, quantize_axis=1, domain=MICROSOFT)
    y = g.op("SimplifiedLayerNormalization", x, g.weight(weights.norm("first")), axis=-1, epsilon=1e-5)
    for i in range(s.layers):
        parts = [product(y, f"blk.{i}.attn_{name}") for name in "qkv"]
        past, present = ([f"{side}.{i}.{part}" for part in ("key", "value")] for side in ("past_key_values", "present"))
        named(
            "GroupQueryAttention", [*parts, *past, *shared], [f"attention.{i}", *present], num_heads=s.heads,
            kv_num_heads=s.shared, do_rotary=1, scale=s.depth**-0.5,
        )  # fmt: skip
        y, x = after_sum(x, product(f"attention.{i}", f"blk.{i}.attn_output"), f"middle.{i}")
        gate, up = product(y, f"blk.{i}.ffn_gate"), product(y, f"blk.{i}.ffn_up")
        down = product(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up), f"blk.{i}.ffn_down")
        y, x = after_sum(x, down, f"end.{i}")
    end = g.op("Gather", y, g.integers(-1), axis=1)
    g.nodes.append(helper.make_node("Identity", [product(end, "output")], ["logits"], "logits"))
    graph = helper.make_graph(g.nodes, g.name, g.inputs, made, g.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def vocabulary(sizes: Sizes) -> list[str]:
    """The texts of tokens: two that begin and end texts, bytes, and words."""
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"t{i}" for i in range(259, sizes.vocabulary))]


def write_gguf(weights: Weights, path: Path) -> None:
    """For llama.cpp; types and scores of tokens are those of SentencePiece."""
    s, tokens = weights.sizes, vocabulary(weights.sizes)
    settings: dict[str, int | float | str | list] = {
        "general.architecture": "llama", "llama.context_length": s.capacity, "llama.embedding_length": s.width,
        "llama.block_count": s.layers, "llama.feed_forward_length": s.inner, "llama.attention.head_count": s.heads,
        "llama.attention.head_count_kv": s.shared, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": s.depth, "llama.vocab_size": s.vocabulary, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)], "tokenizer.ggml.add_space_prefix": False,
    }  # fmt: skip
    norms = ["output_norm", *(f"blk.{i}.{part}_norm" for i in range(s.layers) for part in ("attn", "ffn"))]
    tensors = [(f"{name}.weight", (s.width,), _FLOAT32, weights.norm(name).tobytes()) for name in norms]
    for name, matrix in weights.matrices():
        channels, blocks, _ = matrix.numbers.shape
        tensors.append((f"{name}.weight", (blocks * BLOCK, channels), _Q4_0, matrix.gguf()))
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings)))
        for name, value in settings.items():
            file.write(_text(name) + _value(value))
        offset = 0
        for name, extents, kind, data in tensors:
            file.write(_text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset))
            offset += -(-len(data) // _ALIGN) * _ALIGN
        for data in (b"", *(data for *_, data in tensors)):
            file.write(data)
            file.write(bytes(-file.tell() % _ALIGN))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: float | str | list) -> bytes:
    if isinstance(value, list):
        kind, form = (_TEXT, "") if isinstance(value[0], str) else (_FLOAT, "f") if isinstance(value[0], float) else (_INT32, "i")
        elements = struct.pack(f"<{len(value)}{form}", *value) if form else b"".join(map(_text, value))
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + elements
    if isinstance(value, str):
        return struct.pack("<I", _TEXT) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT, value)
    return struct.pack("<II", _UINT32, value)
