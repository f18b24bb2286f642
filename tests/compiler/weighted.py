"""A network whose weights have all types."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from safetensors import safe_open

from tests.operators.networks import model

SAFETENSORS = {"float16": "F16", "bfloat16": "BF16", "int8": "I8", "float32": "F32"}
IMAGE, WIDTH = (1, 16, 12, 12), 32


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def weights() -> dict[str, np.ndarray]:
    return {
        "body": normal(WIDTH, 16, 3, 3), "bias": normal(WIDTH), "each": normal(WIDTH, 1, 3, 3),
        "head": normal(WIDTH, 40), "last": normal(40),
    }  # fmt: skip


def network(given: dict[str, np.ndarray]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "body", "bias"], ["a"], "/body/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "/body/relu"),
        helper.make_node("Conv", ["b", "each"], ["c"], "/body/each", group=WIDTH, pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], "/pool"),
        helper.make_node("Flatten", ["d"], ["e"], "/flat"),
        helper.make_node("Gemm", ["e", "head", "last"], ["f"], "/head/fc"),
        helper.make_node("Sigmoid", ["f"], ["y"], "/head/sigmoid"),
    ]
    return model(nodes, {"x": IMAGE}, ["y"], given)


def stored(path) -> dict[str, str]:
    """The element types of the tensors in a weights file, by layer, as safetensors itself reads them."""
    with safe_open(path, "np") as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys() if not name.startswith("~")}  # noqa: SIM118
