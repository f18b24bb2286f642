"""Small ONNX models."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def model(nodes, inputs: dict, outputs: list[str], weights: dict | None = None, opset: int = 17) -> onnx.ModelProto:
    """`inputs` maps names to shapes; a dimension may be a name. Outputs are of unknown rank until inferred."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(result)


def node(operator: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    """Names are separated by spaces; `-` is a missing input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), name=f"{operator}_{outputs.split()[0]}", **attributes)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")
