"""Operators on 8-bit tensors beside ONNX Runtime's; granularities of QuantizeLinear and DequantizeLinear beside ONNX's own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import flexcomp
from flexcomp.device import resolve_target
from flexcomp.errors import UnsupportedModelError
from tests.conformance.verdict import UNOPTIMISED
from tests.jointly import Given, jointly, together
from tests.pairs import pairs

from .agreement import agree
from .networks import node

FEW = settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
ELEMENTS = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8, np.dtype("f4"): TensorProto.FLOAT}
IMAGE = (1, 6, 9, 10)


def network(nodes, inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray], opset: int = 17) -> onnx.ModelProto:
    """One output, y, whose type is to be inferred by who reads the network."""
    graph = helper.make_graph(
        list(nodes), "network",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )  # fmt: skip
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def several(cases: st.SearchStrategy[Given]) -> st.SearchStrategy[list[Given]]:
    """Networks that are built together."""
    return st.lists(cases, min_size=3, max_size=3)


def drawn(rng, kind, shape) -> np.ndarray:
    most = np.iinfo(kind)
    return rng.integers(most.min, most.max + 1, shape).astype(kind)


def only(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The one output."""
    (found,) = outputs.values()
    return found


def theirs(model: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]


F = np.float32
# name → node over x (and z, another tensor), and what else it reads; scales and zero points are s and o, of the result t and p.
MICROSOFT = {
    "QLinearAdd": node("QLinearAdd", "x", "s", "o", "z", "t", "p", "u", "p", domain="com.microsoft"),
    "QLinearMul": node("QLinearMul", "x", "s", "o", "z", "t", "p", "u", "p", domain="com.microsoft"),
    "QLinearSigmoid": node("QLinearSigmoid", "x", "s", "o", "small", "none", domain="com.microsoft"),
    "QLinearLeakyRelu": node("QLinearLeakyRelu", "x", "s", "o", "t", "p", domain="com.microsoft", alpha=0.3),
    "QLinearGlobalAveragePool": node("QLinearGlobalAveragePool", "x", "s", "o", "t", "p", domain="com.microsoft"),
    "QLinearAveragePool": node(
        "QLinearAveragePool", "x", "s", "o", "t", "p", domain="com.microsoft", kernel_shape=[3, 2], strides=[2, 1],
        pads=[1, 0, 1, 0],
    ),
    "QLinearConcat": node("QLinearConcat", "t", "p", "x", "s", "o", "z", "t", "p", domain="com.microsoft", axis=1),
    "QLinearSoftmax": node("QLinearSoftmax", "x", "s", "o", "small", "none", domain="com.microsoft", axis=-1, opset=13),
    "QLinearWhere": node("QLinearWhere", "c", "x", "s", "o", "z", "t", "p", "u", "p", domain="com.microsoft"),
}  # fmt: skip


# ONNX Runtime averages signed pixels as if they were unsigned.
CASES = [(n, k) for n in MICROSOFT for k in (np.uint8, np.int8) if (n, k) != ("QLinearGlobalAveragePool", np.int8)]


@pytest.mark.parametrize(("name", "kind"), CASES)
@jointly(kernels="fastest")
def test_operators_of_onnx_runtime(name, kind):
    rng = np.random.default_rng(len(name))
    made = MICROSOFT[name]
    given = {"x": drawn(rng, kind, IMAGE)} | ({"z": drawn(rng, kind, IMAGE)} if "z" in made.input else {})
    weights = {"s": F(0.021), "o": kind(7), "t": F(0.034), "p": kind(3), "u": F(0.045), "small": F(1 / 256), "none": kind(0)}
    weights["c"] = rng.integers(0, 2, IMAGE).astype(bool)
    model = network([made], given, {n: v for n, v in weights.items() if n in made.input})
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    found = yield from agree(model, rtol=0, atol=1, **given)
    assert np.mean(only(found) != theirs(model, **given)) < 0.02


@st.composite
def convolutions(draw: st.DrawFn) -> Given:
    """Any attributes; signed weights have 7 bits, as ONNX Runtime saturates pairs of products where it has no VNNI."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    groups = draw(st.sampled_from([1, 1, 3, 6]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (3, 3), (5, 1), (2, 3)]))
    channels = draw(st.sampled_from([6, 12, 30]))
    kind = draw(st.sampled_from([np.uint8, np.int8]))
    weight_kind = draw(st.sampled_from([np.int8, kind]))
    each = draw(st.booleans())
    shape = (channels, IMAGE[1] // groups, *kernel)
    w = drawn(rng, weight_kind, shape) // weight_kind(2)
    zero = 0 if each or weight_kind is np.int8 else draw(st.integers(50, 80))
    scales = rng.uniform(0.01, 0.05, channels).astype("f4") if each else F(0.02)
    weights = {
        "s": F(0.03), "o": kind(draw(st.integers(0, 100))), "w": w, "v": scales,
        "q": np.full(np.shape(scales), zero, weight_kind), "t": F(0.9), "p": kind(draw(st.integers(-0, 120))),
        "b": rng.integers(-5000, 5000, channels).astype("i4"),
    }  # fmt: skip
    pads = [draw(st.integers(0, kernel[i % 2] - 1)) for i in range(4)]
    strides = [draw(st.integers(1, 2)) for _ in range(2)]
    made = node("QLinearConv", "x", "s", "o", "w", "v", "q", "t", "p", "b", group=groups, pads=pads, strides=strides)
    x = drawn(rng, kind, IMAGE)
    model = network([made], {"x": x}, weights)
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    return model, {"x": x}


@FEW
@given(several(convolutions()))
def test_convolutions(cases):
    for (model, inputs), found in zip(cases, together(cases, kernels="fastest"), strict=True):
        np.testing.assert_array_equal(only(found), theirs(model, **inputs))


def test_ties_go_to_even_whatever_the_kernel():
    """Scales are powers of two, so that of 512 sums one lies between two integers; Winograd's err before they are rounded.

    Weights less their zero point need nine bits, so no processor has integer arithmetic for them.
    """
    rng = np.random.default_rng(5)
    x, w = drawn(rng, np.uint8, (1, 32, 24, 24)), drawn(rng, np.int8, (32, 32, 3, 3)) // np.int8(2)
    weights = {"s": F(2**-4), "o": np.uint8(128), "w": w, "v": F(2**-5), "q": np.int8(-65), "t": F(1), "p": np.uint8(128)}
    model = network([node("QLinearConv", "x", "s", "o", "w", "v", "q", "t", "p", pads=[1] * 4)], {"x": x}, weights)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    artifact = flexcomp.build(model, threads=1, kernels="fastest", progress=False)
    assert any(layer.implementation.startswith("winograd") for layer in artifact.program.layers)
    with artifact.session() as session:
        np.testing.assert_array_equal(next(iter(session.run({"x": x}).values())), theirs(model, x=x))


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
@jointly(kernels="fastest")
def test_dense_layers(real, each, transposed):
    """QGemm, whose result is quantised or real."""
    rng = np.random.default_rng(3)
    x, w = drawn(rng, np.uint8, (3, 40)), drawn(rng, np.int8, (8, 40) if transposed else (40, 8)) // np.int8(2)
    scales = rng.uniform(0.01, 0.05, 8).astype("f4") if each else F(0.02)
    weights = {
        "s": F(0.03), "o": np.uint8(90), "w": w, "v": scales, "q": np.zeros(np.shape(scales), np.int8),
        "b": rng.integers(-5000, 5000, 8).astype("i4"), "t": F(0.9), "p": np.uint8(120),
    }  # fmt: skip
    result = [] if real else ["t", "p"]
    made = node("QGemm", "x", "s", "o", "w", "v", "q", "b", *result, domain="com.microsoft", transB=transposed, alpha=1.5)
    model = network([made], {"x": x}, {n: v for n, v in weights.items() if n in made.input})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT if real else TensorProto.UINT8
    np.testing.assert_allclose(only((yield model, {"x": x})), theirs(model, x=x), rtol=1e-6, atol=1e-5 if real else 0)


@jointly(kernels="fastest")
def test_dynamic_products():
    """As ONNX Runtime's optimiser writes them: an input quantised by its own range, times weights of 8 bits."""
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((3, 40)).astype("f4"), drawn(rng, np.int8, (40, 8)) // np.int8(2)
    weights = {"w": w, "v": F(0.02), "q": np.int8(0), "b": rng.standard_normal(8).astype("f4")}
    made = node("DynamicQuantizeMatMul", "x", "w", "v", "q", "b", domain="com.microsoft")
    model = network([made], {"x": x}, weights)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    yield from agree(model, rtol=1e-5, atol=1e-5, x=x)


@st.composite
def products(draw: st.DrawFn) -> tuple[Given, np.ndarray]:
    """Beyond 2^24 as well, where the product is cut into parts; and the product in 64 bits."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    inner = draw(st.sampled_from([5, 300, 900]))
    kinds = [draw(st.sampled_from([np.uint8, np.int8])) for _ in range(2)]
    is_weight, extreme = draw(st.booleans()), draw(st.booleans())
    a, b = drawn(rng, kinds[0], (3, inner)), drawn(rng, kinds[1], (inner, 4))
    if extreme:
        a[:], b[:] = np.iinfo(kinds[0]).max, np.iinfo(kinds[1]).max
    zeros = [kinds[0](draw(st.sampled_from([0, 9]))), kinds[1](draw(st.sampled_from([0, 100])))]
    inputs = {"x": a} | ({} if is_weight else {"z": b})
    weights = {"o": zeros[0], "p": zeros[1]} | ({"z": b} if is_weight else {})
    model = network([node("MatMulInteger", "x", "z", "o", "p")], inputs, weights)
    return (model, inputs), (a.astype("i8") - zeros[0]) @ (b.astype("i8") - zeros[1])


@FEW
@given(several(products()))
def test_products_of_integers(cases):
    given, wanted = zip(*cases, strict=True)
    for found, want in zip(together(given, kernels="fastest"), wanted, strict=True):
        np.testing.assert_array_equal(only(found), want)


@jointly(kernels="fastest")
def test_convolutions_of_integers_beyond_what_float32_counts():
    x, w = np.full((1, 300, 4, 4), 255, np.uint8), np.full((2, 300, 3, 3), 255, np.uint8)
    w[1] = np.random.default_rng(0).integers(0, 256, w[1].shape)
    model = network([node("ConvInteger", "x", "w", pads=[1, 1, 1, 1])], {"x": x}, {"w": w})
    (want,) = ReferenceEvaluator(
        network([node("Conv", "x", "w", pads=[1, 1, 1, 1])], {"x": x.astype("f8")}, {"w": w.astype("f8")})
    ).run(None, {"x": x.astype("f8")})
    found = only((yield model, {"x": x}))
    assert found.max() > 1 << 24
    np.testing.assert_array_equal(found, want)


def convolved(x: np.ndarray, w: np.ndarray, padding: int) -> np.ndarray:
    """int64 sums of a convolution of images with zero padding around them."""
    sides = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x.astype("i8"), sides), w.shape[2:], (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w.astype("i8"), optimize=True)


def requantised(total: np.ndarray, scale: np.float32, zero: int, kind: type) -> np.ndarray:
    """What integer kernels make of int32 sums."""
    most = np.iinfo(kind)
    return np.clip(np.rint(total.astype("i4").astype("f4") * scale) + zero, most.min, most.max).astype(kind)


@pytest.mark.parametrize(
    ("zero", "kernels", "padding", "bias"), pairs((-27, 0), ("smallest", "fastest"), (0, 1), (0, 1 << 23, -(1 << 30)))
)
def test_sums_beyond_what_float32_counts(zero, kernels, padding, bias):
    """All products of two channels have one sign; the second half of the last channel's products cancels the first half, so that
    its result shows the last bit of all sums on the way. Weights less a zero point of -27 need nine bits, so float32 sums them.
    """
    channels, kernel = (1601, 1) if not padding else (257, 3)
    half = channels // 2
    x = np.full((1, channels, 5, 5), 255, np.uint8)
    x[:, :-1, 2, 3] -= np.tile(np.arange(half, dtype=np.uint8) % 3, 2)
    x[:, -1] = np.random.default_rng(8).integers(0, 150, (5, 5))
    w = np.full((3, channels, kernel, kernel), 127 - zero)
    w[1], w[2, :half], w[2, half:-1], w[2, -1] = -99, 99, -99, 0
    w[2, -1, kernel // 2, kernel // 2] = 1
    scales = F([2**-20, 2**-20, 1]) if not bias else F([2**-23, 2**-23, 1])
    weights = {
        "s": F(1), "o": np.uint8(0), "w": (w + zero).astype(np.int8), "v": scales, "q": np.full(3, zero, np.int8), "t": F(1),
        "p": np.uint8(9), "b": np.int32([bias, -bias, 77]),
    }  # fmt: skip
    nodes = [node("QLinearConv", "x", "s", "o", "w", "v", "q", "t", "p", "b", pads=[padding] * 4)]
    model = network(nodes, {"x": x}, weights)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    total = convolved(x, w, padding) + weights["b"].astype("i8")[:, None, None]
    assert abs(total).max() > 1 << 25
    with flexcomp.build(model, UNOPTIMISED, threads=1, kernels=kernels, progress=False).session() as session:
        found = next(iter(session.run({"x": x}).values()))
    wanted = requantised(total, scales[:, None, None], 9, np.uint8)
    assert len(np.unique(wanted[0, 2])) > 10
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("is_weight", [True, False])
@jointly(kernels="fastest")
def test_products_beyond_what_float32_counts(is_weight):
    rng = np.random.default_rng(6)
    x, z = np.full((4, 3000), 255, np.uint8), np.full((3000, 6), 127, np.int8)
    x[1:], z[:, 3:] = rng.integers(250, 256, x[1:].shape), rng.integers(100, 128, z[:, 3:].shape)
    weights = {"s": F(1), "o": np.uint8(0), "v": F(1), "q": np.int8(0), "t": F(2**21 + 1), "p": np.uint8(1)}
    made = node("QLinearMatMul", "x", "s", "o", "z", "v", "q", "t", "p")
    model = network([made], {"x": x} | ({} if is_weight else {"z": z}), weights | ({"z": z} if is_weight else {}))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    wanted = requantised(x.astype("i8") @ z, F(1) / weights["t"], 1, np.uint8)
    np.testing.assert_array_equal(only((yield model, {"x": x} if is_weight else {"x": x, "z": z})), wanted)


@jointly(kernels="fastest")
def test_groups_beyond_what_float32_counts_stay_as_they_are():
    """Within one step: they are computed as they are written, as ONNX Runtime computes what it has no integer kernel for."""
    x, w = np.full((1, 1200, 4, 4), 255, np.uint8), np.full((4, 600, 1, 1), 127, np.int8)
    weights = {"s": F(1), "o": np.uint8(0), "w": w, "v": F(1), "q": np.int8(0), "t": F(1 << 18), "p": np.uint8(1)}
    model = network([node("QLinearConv", "x", "s", "o", "w", "v", "q", "t", "p", group=2)], {"x": x}, weights)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    total = np.full((1, 4, 4, 4), 600 * 255 * 127)
    np.testing.assert_allclose(only((yield model, {"x": x})), requantised(total, F(2**-18), 1, np.uint8), rtol=0, atol=1)


@jointly(kernels="fastest")
def test_16_bits_that_float32_does_not_count_stay_as_they_are():
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((2, 5, 64)).astype("f4"), drawn(rng, np.int8, (64, 9))
    nodes = [
        node("QuantizeLinear", "x", "s", "o", out="a"), node("DequantizeLinear", "a", "s", "o", out="b"),
        node("DequantizeLinear", "w", "v", out="c"), node("MatMul", "b", "c", out="d"),
        node("QuantizeLinear", "d", "t", "p", out="e"), node("DequantizeLinear", "e", "t", "p"),
    ]  # fmt: skip
    weights = {"s": F(1e-4), "o": np.uint16(30000), "w": w, "v": F(0.01), "t": F(1e-3), "p": np.uint16(32768)}
    model = network(nodes, {"x": x}, weights, opset=21)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(only((yield model, {"x": x})), wanted, rtol=0, atol=1.001e-3)


@st.composite
def granularities(draw: st.DrawFn) -> tuple[Given, Given, np.ndarray]:
    """A scale for the tensor, for each index of an axis, for blocks; forwards and back; and what lies between."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape, axis = (4, 6, 8), draw(st.integers(-3, 2))
    kind = draw(st.sampled_from([np.uint8, np.int8, np.uint16, np.int16]))
    granularity = draw(st.sampled_from(["tensor", "axis", "block"]))
    of, attributes = (), {}
    if granularity == "axis":
        of, attributes = (shape[axis],), {"axis": axis}
    elif granularity == "block":
        size = draw(st.sampled_from([1, 2, shape[axis]]))
        of = tuple(n // size if i == axis % 3 else n for i, n in enumerate(shape))
        attributes = {"axis": axis, "block_size": size}
    scale = rng.choice([0.25, 0.5, 0.1, 0.3, 1.0], of).astype("f4")
    weights = {"s": scale} | ({"o": rng.integers(0, 100, of).astype(kind)} if draw(st.booleans()) or kind is not np.uint8 else {})
    parameters = ["s", *(["o"] if "o" in weights else [])]
    x = (rng.integers(-400, 400, shape) / 8).astype("f4")  # ties among them
    there = network([node("QuantizeLinear", "x", *parameters, **attributes)], {"x": x}, weights, opset=21)
    (want,) = ReferenceEvaluator(there).run(None, {"x": x})
    back = network([node("DequantizeLinear", "x", *parameters, **attributes)], {"x": want}, weights, opset=21)
    return (there, {"x": x}), (back, {"x": want}), want


@FEW
@given(several(granularities()))
def test_granularities(cases):
    found = iter(together([one for there, back, _ in cases for one in (there, back)], kernels="fastest"))
    for _, (back, inputs), want in cases:
        got = only(next(found))
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(only(next(found)), ReferenceEvaluator(back).run(None, inputs)[0], rtol=1e-6)


@jointly(kernels="fastest")
def test_what_is_dequantised_and_quantised_alike_is_moved_as_it_is():
    """Pooling, transposing and joining 8-bit tensors, as QOperator networks do."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(IMAGE).astype("f4")
    nodes = [
        node("QuantizeLinear", "x", "s", "o", out="a"), node("MaxPool", "a", out="b", kernel_shape=[2, 2]),
        node("Transpose", "b", out="c", perm=[0, 2, 3, 1]), node("Reshape", "c", "shape", out="d"),
        node("DequantizeLinear", "d", "s", "o"),
    ]  # fmt: skip
    weights = {"s": F(0.02), "o": np.uint8(100), "shape": np.int64([8, -1])}
    model = onnx.shape_inference.infer_shapes(network(nodes, {"x": x}, weights))
    yield from agree(model, rtol=0, atol=0, x=x)


@pytest.mark.parametrize("zeros", [355540150, [355540150, -2147483648, 2147483647]])
@jointly(kernels="fastest")
def test_zero_points_beyond_what_float32_counts(zeros):
    x = np.int32([[5, 2, -8], [7, 3, -2]])
    constants = {"s": np.full(np.shape(zeros), 0.5, "f4"), "o": np.int32(zeros)}
    model = network([node("DequantizeLinear", "x", "s", "o", axis=1)], {"x": x}, constants)
    exact = (x.astype("i8") - np.int64(zeros)).astype("f4") * F(0.5)
    np.testing.assert_array_equal(only((yield model, {"x": x})), exact)


@jointly(kernels="fastest")
def test_weights_of_4_bits():
    rng = np.random.default_rng(2)
    x, q = rng.standard_normal((3, 16)).astype("f4"), rng.integers(-8, 8, (16, 5))
    packed = helper.make_tensor("w", TensorProto.INT4, q.shape, q.ravel())
    nodes = [node("DequantizeLinear", "w", "s", out="v", axis=1), node("MatMul", "x", "v")]
    model = network(nodes, {"x": x}, {"s": rng.uniform(0.1, 0.2, 5).astype("f4")}, opset=21)
    model.graph.initializer.append(packed)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    found = only((yield model, {"x": x}))
    np.testing.assert_allclose(found, ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_results_of_other_types_are_refused_by_name():
    x = np.zeros((2, 3), "f4")
    for kind in ("INT4", "FLOAT8E4M3FN"):
        made = node("QuantizeLinear", "x", "s", output_dtype=getattr(TensorProto, kind))
        with pytest.raises(UnsupportedModelError, match=rf"\(QuantizeLinear\): result 'y' holds {kind.lower()}"):
            flexcomp.build(network([made], {"x": x}, {"s": F(1)}, opset=21), threads=1)


@jointly(kernels="fastest")
def test_integers_of_onnx_runtimes_domain():
    """It has definitions of them and no kernels."""
    rng = np.random.default_rng(8)
    a, b = drawn(rng, np.uint8, IMAGE), drawn(rng, np.int8, IMAGE[-1:])
    made = node("MulInteger", "x", "o", "z", "p", domain="com.microsoft")
    given = [(network([made], {"x": a, "z": b}, {"o": np.uint8(100), "p": np.int8(-3)}), {"x": a, "z": b})]
    weights = {"s": F(0.25), "o": np.uint8(7), "t": F(0.5), "p": np.uint8(3)}
    for opset in (12, 17):
        made = node("ReduceSumInteger", "x", domain="com.microsoft", axes=[1, 3], keepdims=0)
        given.append((network([made], {"x": a}, {}, opset), {"x": a}))
        made = node("QLinearReduceMean", "x", "s", "o", "t", "p", domain="com.microsoft", axes=[2, 3], keepdims=1)
        given.append((network([made], {"x": a}, weights, opset), {"x": a}))
    product, *others = map(only, (yield given))
    np.testing.assert_array_equal(product, (a.astype("i4") - 100) * (b.astype("i4") + 3))
    for total, mean in (others[:2], others[2:]):
        np.testing.assert_array_equal(total, a.astype("i4").sum((1, 3)))
        wanted = np.rint((a.astype("f8") - 7).mean((2, 3), keepdims=True) * 0.25 / 0.5) + 3
        np.testing.assert_allclose(mean, wanted.clip(0, 255), rtol=0, atol=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zeros", [False, True])
@jointly(kernels="fastest")
def test_products_with_weights_in_blocks(bits, with_zeros):
    rng = np.random.default_rng(9)
    rows, columns, size = 24, 80, 32  # the last block is half full
    blocks = -(-columns // size)
    x = rng.standard_normal((5, columns)).astype("f4")
    weights = {
        "w": rng.integers(0, 256, (rows, blocks, size * bits // 8)).astype("u1"),
        "s": rng.uniform(0.01, 0.03, rows * blocks).astype("f4"),
    }  # fmt: skip
    if with_zeros:
        weights["o"] = rng.integers(0, 256, rows * -(-blocks * bits // 8)).astype("u1")
    given = ["x", "w", "s", *(["o"] if with_zeros else [])]
    made = node("MatMulNBits", *given, domain="com.microsoft", N=rows, K=columns, bits=bits, block_size=size)
    model = network([made], {"x": x}, weights)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    yield from agree(model, rtol=1e-4, atol=1e-4, x=x)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (node("QAttention", "x", "w", "s", "s", domain="com.microsoft", num_heads=2), r"com\.microsoft\.QAttention"),
        (
            node("MatMulNBits", "x", "w", "s", domain="com.microsoft", N=4, K=3, bits=2, block_size=16),
            r"com\.microsoft\.MatMulNBits\): it has g_idx, or weights of other than 4 or 8 bits",
        ),
    ],
    ids=["QAttention", "2 bits"],
)
def test_what_has_no_definition_is_refused_by_name(made, says):
    model = network([made], {"x": np.zeros((2, 3), "f4")}, {"w": np.zeros((4, 1, 4), "u1"), "s": np.ones(4, "f4")})
    with pytest.raises(UnsupportedModelError, match=says):
        flexcomp.build(model, threads=1)


def dynamic_lstm(direction: str, each: bool, batch: int = 1, lengths: bool = False) -> tuple[onnx.ModelProto, np.ndarray]:
    """A quantised layer of 7 steps, whose scales are one, or one for each column."""
    rng = np.random.default_rng(10)
    steps, width, hidden, directions = 7, 12, 23 if each else 24, 2 if direction == "bidirectional" else 1
    of = (directions, 4 * hidden) if each else (directions,)
    weights = {
        "w": drawn(rng, np.int8, (directions, width, 4 * hidden)) // np.int8(2),
        "r": drawn(rng, np.int8, (directions, hidden, 4 * hidden)) // np.int8(2),
        "b": rng.standard_normal((directions, 8 * hidden)).astype("f4"), "n": np.int32([steps] * batch),
        "h": rng.uniform(-1, 1, (directions, batch, hidden)).astype("f4"),
        "c": rng.uniform(-1, 1, (directions, batch, hidden)).astype("f4"),
        "p": rng.standard_normal((directions, 3 * hidden)).astype("f4"),
        "ws": rng.uniform(0.003, 0.006, of).astype("f4"), "rs": rng.uniform(0.003, 0.006, of).astype("f4"),
        "wz": np.zeros(of, np.int8), "rz": np.zeros(of, np.int8),
    }  # fmt: skip
    inputs = ["x", "w", "r", "b", "n" if lengths else "", "h", "c", "p", "ws", "wz", "rs", "rz"]
    made = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y", "yh", "yc"], "layer", domain="com.microsoft", hidden_size=hidden,
        direction=direction, clip=3.0,
    )  # fmt: skip
    x = rng.standard_normal((steps, batch, width)).astype("f4")
    model = network([made], {"x": x}, {name: value for name, value in weights.items() if name in inputs})
    del model.graph.output[:]
    shapes = {"y": (steps, directions, batch, hidden), "yh": (directions, batch, hidden), "yc": (directions, batch, hidden)}
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    return model, x


@pytest.mark.parametrize(
    ("mcpu", "direction", "each", "batch"),
    [
        ("native", "forward", False, 1), ("native", "reverse", True, 3), ("native", "bidirectional", True, 1),
        ("x86-64-v3", "bidirectional", True, 3), ("x86-64-v4", "forward", True, 3),
    ],
)  # fmt: skip
def test_layers_with_a_quantised_state(mcpu, direction, each, batch):
    """One thread there, whose range is that of the whole batch. A state that lies between two integers may be either.

    In integer arithmetic but on x86-64-v4, where the number of units is no multiple of the products taken together, too.
    """
    target = resolve_target({"opt-level": 0} | ({} if mcpu == "native" else {"mcpu": mcpu}))
    if mcpu == "x86-64-v4" and "avx512f" not in resolve_target("native").features:
        pytest.skip("not on this processor")
    model, x = dynamic_lstm(direction, each, batch)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    with flexcomp.build(model, target, threads=1, kernels="smallest", progress=False).session() as session:
        found = list(session.run({"x": x}).values())
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_ranges_that_depend_on_lengths_are_refused():
    model, _ = dynamic_lstm("forward", True, lengths=True)
    with pytest.raises(UnsupportedModelError, match=r"'layer' \(com\.microsoft\.DynamicQuantizeLSTM\): with sequence_lens"):
        flexcomp.build(model, threads=1)


def test_channels_last_are_refused_by_name():
    x = np.zeros(IMAGE, np.uint8)
    made = node("QLinearAveragePool", "x", "s", "o", "s", "o", domain="com.microsoft", kernel_shape=[2, 2], channels_last=1)
    model = network([made], {"x": x}, {"s": F(1), "o": np.uint8(0)})
    with pytest.raises(UnsupportedModelError, match=r"com\.microsoft\.QLinearAveragePool\): its channels are last"):
        flexcomp.build(model, threads=1)
