"""Networks with weights in blocks of inputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .networks import node

F32 = np.float32
DOMAINS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


def graph(nodes, x: np.ndarray, weights: dict[str, np.ndarray | onnx.TensorProto]) -> onnx.ModelProto:
    """A network from x to y."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    initialisers = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value), name)
        for name, value in weights.items()
    ]
    info = helper.make_tensor_value_info
    made = helper.make_graph(nodes, "blocks", [info("x", kind, x.shape)], [info("y", kind, None)], initialisers)
    return helper.make_model(made, opset_imports=DOMAINS, ir_version=10)


def product(
    rng, x: str, out: str, sizes: tuple[int, int], block: int, bits: int, zeros: bool, kind=np.float32, bias: bool = False
) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """A MatMulNBits of (channels, inputs), and its weights."""
    channels, inputs = sizes
    blocks = -(-inputs // block)
    weights = {
        f"{out}_w": rng.integers(0, 256, (channels, blocks, block * bits // 8)).astype("u1"),
        f"{out}_s": rng.uniform(0.01, 0.03, channels * blocks).astype(kind),
    }
    if zeros:
        weights[f"{out}_o"] = rng.integers(0, 256, channels * -(-blocks * bits // 8)).astype("u1")
    given = [x, *weights, *([] if zeros else [""] * bias)]
    if bias:
        weights[f"{out}_b"] = rng.standard_normal(channels).astype(kind)
        given += ["", f"{out}_b"]
    attributes = {"N": channels, "K": inputs, "bits": bits, "block_size": block, "accuracy_level": 1}
    return node("MatMulNBits", *given, out=out, domain="com.microsoft", **attributes), weights


def table(rng, rows: int, width: int, block: int, kind: str, zeros: bool) -> tuple[dict, dict]:
    """A quantised table and the attributes of its reader: bytes of two numbers, or a type of 4 bits."""
    blocks = -(-width // block)
    scales = rng.uniform(0.01, 0.03, (rows, blocks)).astype("f4")
    if kind == "uint8":
        weights = {"t_w": rng.integers(0, 256, (rows, width // 2)).astype("u1"), "t_s": scales}
        weights |= {"t_o": rng.integers(0, 256, (rows, -(-blocks // 2))).astype("u1")} if zeros else {}
        return weights, {"bits": 4}
    low, high = (0, 16) if kind == "uint4" else (-8, 8)
    packed = lambda name, of: helper.make_tensor(  # noqa: E731
        name, getattr(TensorProto, kind.upper()), of, rng.integers(low, high, of).ravel().tolist()
    )
    weights = {"t_w": packed("t_w", (rows, width)), "t_s": scales}
    return weights | ({"t_o": packed("t_o", scales.shape)} if zeros else {}), {}


def several(layers, rows_of: tuple[int, int] = (3450, 160)) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Products of (rows, sizes, block, bits, zero points), each of an input of its own, and rows of a table; and inputs.

    The first product has scales that are numbers of float16.
    """
    rng = np.random.default_rng(0)
    nodes, weights, inputs = [], {}, {}
    for rows, sizes, block, bits, zeros in layers:
        name = f"x{len(nodes)}"
        made, own = product(rng, name, f"y{len(nodes)}", sizes, block, bits, zeros)
        if not nodes:
            own["y0_s"] = own["y0_s"].astype("f2").astype("f4")
        nodes.append(made)
        weights |= own
        inputs[name] = rng.standard_normal((rows, sizes[1])).astype("f4")
    rows, attributes = table(rng, *rows_of, 32, "uint8", True)
    weights |= rows
    inputs["ids"] = np.int64([0, rows_of[0] - 1, 17])
    gather = {"domain": "com.microsoft", "block_size": 32, **attributes}
    nodes.append(node("GatherBlockQuantized", "t_w", "ids", "t_s", "t_o", out="rows", **gather))
    info = helper.make_tensor_value_info
    made = helper.make_graph(
        nodes, "blocks",
        [info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in inputs.items()],
        [info(one.output[0], TensorProto.FLOAT, None) for one in nodes],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=DOMAINS, ir_version=10), inputs


def rounded_product(
    x: np.ndarray, weights: dict[str, np.ndarray], out: str, sizes: tuple[int, int], block: int, bits: int
) -> np.ndarray:
    """What `product` computes with activations in 8 bits: exact integers, and scales in float64."""
    channels, inputs = sizes
    blocks = -(-inputs // block)

    def unpacked(values: np.ndarray, count: int) -> np.ndarray:
        values = values.reshape(channels, -1)
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(channels, -1) if bits == 4 else values
        return values[:, :count].astype("i8")

    q = unpacked(weights[f"{out}_w"], blocks * block).reshape(channels, blocks, block)
    zeros = unpacked(weights[f"{out}_o"], blocks) if f"{out}_o" in weights else np.full((channels, blocks), 1 << (bits - 1))
    parts = np.pad(x, ((0, 0), (0, blocks * block - inputs))).reshape(len(x), blocks, block)
    largest = abs(parts).max(axis=2, keepdims=True)
    back = np.where(largest > 0, F32(127) / np.where(largest > 0, largest, F32(1)), F32(0)).astype("f4")
    integers, scales = np.rint(parts.astype("f8") * back).astype("i8"), (largest[..., 0] / F32(127)).astype("f8")
    sums = np.einsum("mbk,nbk->mnb", integers, q - zeros[..., None])
    return (sums * scales[:, None] * weights[f"{out}_s"].reshape(channels, blocks).astype("f8")).sum(axis=2)
