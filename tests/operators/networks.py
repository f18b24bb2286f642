"""ONNX networks of one or a few operators, for everything that `build` must take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
    types: dict[str, int] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A network with float inputs, or of the element types given by input or output name."""
    types = types or {}
    shapes = {name: value.shape for name, value in (weights or {}).items()}
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), shapes.get(n)) for n in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(proto, data_prop=True)


def node(kind: str, *inputs: str, out: str | Sequence[str] = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [out] if isinstance(out, str) else out, **attributes)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


def _unary(kind: str, **attributes) -> onnx.ModelProto:
    return model([node(kind, "x", **attributes)], {"x": (2, 5, 7)}, ["y"])


IMAGE = {"x": (1, 6, 9, 11)}

# name → network. Inputs are drawn from a normal distribution, or are small integers.
NETWORKS: dict[str, onnx.ModelProto] = {
    **{kind.lower(): _unary(kind) for kind in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Neg", "Abs", "Floor", "Softplus")},
    "hardswish": _unary("HardSwish"),
    "leaky": _unary("LeakyRelu", alpha=0.2),
    "elu": _unary("Elu"),
    "softmax_middle": _unary("Softmax", axis=1),
    "log_softmax": _unary("LogSoftmax", axis=-1),
    "transpose": _unary("Transpose", perm=[2, 0, 1]),
    "reduce_max": _unary("ReduceMax", axes=[1], keepdims=0),
    "reduce_l2": _unary("ReduceL2", axes=[2]),
    "argmax": model([node("ArgMax", "x", axis=2)], {"x": (2, 5, 7)}, ["y"], types={"y": TensorProto.INT64}),
    "top_k": model(
        [node("TopK", "x", "k", out=["y", "i"], axis=-1)], {"x": (2, 300)}, ["y", "i"], {"k": np.array([20])},
        {"i": TensorProto.INT64},
    ),
    "top_k_smallest": model(
        [
            node("Round", "x", out="r"), node("TopK", "r", "k", out=["y", "i"], axis=1, largest=0),
            node("TopK", "r", "one", out=["v", "unused"], axis=2), node("GatherElements", "x", "i", out="z", axis=1),
        ],
        {"x": (2, 60, 5)}, ["y", "i", "v", "z"], {"k": np.array([60]), "one": np.array([1])}, {"i": TensorProto.INT64},
    ),
    "top_k_of_integers": model(
        [node("TopK", "x", "k", out=["y", "i"], axis=0)], {"x": (200, 3)}, ["y", "i"], {"k": np.array([50])},
        {"x": TensorProto.INT64, "y": TensorProto.INT64, "i": TensorProto.INT64},
    ),
    "cumulative_sums": model(
        [
            node("CumSum", "x", "last", out="a"), node("CumSum", "x", "middle", out="b", exclusive=1),
            node("CumSum", "x", "first", out="c", reverse=1), node("CumSum", "x", "last", out="d", exclusive=1, reverse=1),
        ],
        {"x": (3, 9, 21)}, ["a", "b", "c", "d"], {"last": np.int64(-1), "middle": np.int64(1), "first": np.int64(0)},
    ),
    "clip": model(
        [node("Clip", "x", "low", "high")], {"x": (3, 4)}, ["y"],
        {"low": np.float32(-0.5), "high": np.float32(0.5)},
    ),
    "gather": model(
        [node("Gather", "table", "x")], {"x": (2, 3)}, ["y"], {"table": _normal(10, 8)}, {"x": TensorProto.INT64}
    ),
    "slice": model(
        [node("Slice", "x", "starts", "ends", "axes", "steps")], {"x": (4, 10, 6)}, ["y"],
        {"starts": np.array([1, 0]), "ends": np.array([9, 5]), "axes": np.array([1, 2]), "steps": np.array([2, 1])},
    ),
    "split": model(
        [node("Split", "x", "sizes", out=["a", "b"], axis=1), node("Relu", "a", out="c"), node("Add", "b", "b", out="d")],
        {"x": (2, 5, 3)}, ["c", "d"], {"sizes": np.array([2, 3])},
    ),
    "concat": model([node("Concat", "x", "z", axis=1)], {"x": (2, 3, 4), "z": (2, 5, 4)}, ["y"]),
    "pad_reflect": model(
        [node("Pad", "x", "pads", mode="reflect")], IMAGE, ["y"], {"pads": np.array([0, 0, 1, 2, 0, 0, 1, 2])}
    ),
    "resize": model(
        [node("Resize", "x", "", "scales", mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")],
        IMAGE, ["y"], {"scales": np.array([1, 1, 2, 2], "f4")},
    ),
    "depth_to_space": model([node("DepthToSpace", "x", blocksize=2)], {"x": (1, 8, 3, 5)}, ["y"]),
    "where": model(
        [node("Greater", "x", "zero", out="m"), node("Where", "m", "x", "z")],
        {"x": (3, 4), "z": (3, 4)}, ["y"], {"zero": np.float32(0)},
    ),
    "cast": model(
        [node("Cast", "x", to=TensorProto.INT32)], {"x": (3, 4)}, ["y"], types={"y": TensorProto.INT32}
    ),
    "einsum": model([node("Einsum", "x", "z", equation="bij,bjk->bik")], {"x": (2, 3, 4), "z": (2, 4, 5)}, ["y"]),
    "layer_norm": model(
        [node("LayerNormalization", "x", "scale", "bias", axis=-1)], {"x": (2, 5, 24)}, ["y"],
        {"scale": _normal(24), "bias": _normal(24)},
    ),
    "instance_norm": model(
        [node("InstanceNormalization", "x", "scale", "bias")], IMAGE, ["y"], {"scale": _normal(6), "bias": _normal(6)}
    ),
    "average_pool": model([node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])], IMAGE, ["y"]),
    "average_pool_ceil": model(
        [node("AveragePool", "x", kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1)], IMAGE, ["y"]
    ),
    "max_pool_ceil": model([node("MaxPool", "x", kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1)], IMAGE, ["y"]),
    "global_pool": model([node("GlobalAveragePool", "x")], IMAGE, ["y"]),
    "conv_1d": model([node("Conv", "x", "w", pads=[1, 1])], {"x": (1, 4, 10)}, ["y"], {"w": _normal(6, 4, 3)}),
    "conv_3d": model([node("Conv", "x", "w")], {"x": (1, 2, 5, 6, 7)}, ["y"], {"w": _normal(3, 2, 2, 3, 2)}),
    "conv_transpose": model(
        [node("ConvTranspose", "x", "w", "b", strides=[2, 2], pads=[1, 1, 1, 1])], IMAGE, ["y"],
        {"w": _normal(6, 4, 4, 4), "b": _normal(4)},
    ),
    "conv_of_a_computed_weight": model([node("Conv", "x", "w")], {"x": (1, 4, 6, 6), "w": (5, 4, 3, 3)}, ["y"]),
    "gemm": model(
        [node("Gemm", "x", "w", "b", transB=1, alpha=0.5, beta=2.0)], {"x": (3, 20)}, ["y"],
        {"w": _normal(33, 20), "b": _normal(33)},
    ),
    "matmul_vector": model([node("MatMul", "x", "w")], {"x": (20,)}, ["y"], {"w": _normal(20, 7)}),
    "matmul_weight_left": model([node("MatMul", "w", "x")], {"x": (20, 6)}, ["y"], {"w": _normal(9, 20)}),
    "matmul_broadcast": model([node("MatMul", "x", "z")], {"x": (2, 1, 5, 6), "z": (3, 6, 4)}, ["y"]),
    "attention": model(
        [
            node("Transpose", "k", out="kt", perm=[0, 2, 1]), node("MatMul", "q", "kt", out="s"),
            node("Mul", "s", "scale", out="t"), node("Softmax", "t", out="p", axis=-1), node("MatMul", "p", "k"),
        ],
        {"q": (2, 7, 8), "k": (2, 9, 8)}, ["y"], {"scale": np.float32(0.35)},
    ),
    "input_is_output": model([node("Identity", "x"), node("Relu", "x", out="z")], {"x": (3, 4)}, ["y", "z"]),
    "one_value_two_outputs": model(
        [node("Relu", "x", out="a"), node("Identity", "a", out="y"), node("Reshape", "a", "s", out="z")],
        {"x": (3, 4)}, ["y", "z"], {"s": np.array([12])},
    ),
    "constant_outputs": model(
        [
            node("Relu", "x"), node("Shape", "x", out="size"), node("Add", "w", "b", out="anchors"),
            node("Split", "anchors", out=["left", "right"], axis=1), node("Identity", "b", out="bias"),
            node("MatMul", "x", "w", out="z"), node("Identity", "w", out="weight"), node("Greater", "b", "zero", out="mask"),
        ],
        {"x": (3, 4)}, ["y", "z", "size", "left", "right", "bias", "weight", "mask", "scalar", "weight_2"],
        {"w": _normal(4, 6), "b": _normal(6), "zero": np.float32(0), "scalar": np.float32(3), "weight_2": _normal(5)},
        {"size": TensorProto.INT64, "mask": TensorProto.BOOL},
    ),
    "no_output_needs_the_input": model(
        [node("Shape", "x")], {"x": (3, 4)}, ["y"], types={"y": TensorProto.INT64}
    ),
    "unused_input": model([node("Relu", "x")], {"x": (3, 4), "unused": (2,)}, ["y"]),
    "tied_weights": model(
        [node("MatMul", "x", "w", out="h"), node("Transpose", "w", out="v", perm=[1, 0]), node("MatMul", "h", "v")],
        {"x": (3, 8)}, ["y"], {"w": _normal(8, 16)},
    ),
}  # fmt: skip
