"""Weights of 4 and 8 bits with a scale for each block of inputs: what kernels read of them, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import FlexcompError, InputError
from flexcomp.program import Layer
from flexcomp.report import describe
from tests.conformance.verdict import UNOPTIMISED

from .blocks import graph, product, several, table
from .networks import node

F16, F32 = np.float16, np.float32


def implementations(artifact: flexcomp.Artifact) -> set[str]:
    return families(artifact.program.layers)


def families(layers: Iterable[Layer]) -> set[str]:
    return {layer.implementation.split(" ×")[0].rstrip("0123456789×").strip() for layer in layers}


def compared(model: onnx.ModelProto, x: np.ndarray, budgets=("min", None), most: float = 1.5e-6, **options) -> flexcomp.Artifact:
    """The artifact of a network whose outputs are ONNX Runtime's at every budget."""
    theirs = onnxruntime.SessionOptions()
    theirs.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # by default it rounds activations to 8 bits
    (want,) = onnxruntime.InferenceSession(model.SerializeToString(), theirs).run(None, {"x": x})
    artifact = flexcomp.build(model, **{"target": UNOPTIMISED, "threads": 1, "progress": False, **options})
    for budget in budgets:
        with artifact.session(budget=budget) as session:
            (found,) = session.run({"x": x}).values()
        assert found.dtype == want.dtype and found.shape == want.shape
        np.testing.assert_allclose(found.astype("f8"), want.astype("f8"), rtol=0, atol=most * abs(want).max())
    return artifact


@pytest.mark.parametrize(
    ("rows", "sizes", "block", "bits", "zeros", "bias", "kernel"),
    [
        (1, (96, 256), 32, 4, False, False, "blockgemv"),
        (1, (100, 85), 16, 4, True, True, "blockgemv"),  # a last block of 5, blocks of channels that overlap
        (1, (40, 200), 64, 8, True, False, "blockgemv"),
        (5, (96, 1100), 128, 4, True, True, "blockgemm"),  # sums in parts, a last block
        (40, (100, 145), 32, 4, True, False, "blockgemm widened"),
        (33, (33, 1040), 64, 8, False, True, "blockgemm widened"),
        (3, (33, 7), 16, 4, True, False, "blockgemm"),
    ],
)
def test_products_with_weights_in_blocks(rows, sizes, block, bits, zeros, bias, kernel):
    rng = np.random.default_rng(1)
    made, weights = product(rng, "x", "y", sizes, block, bits, zeros, bias=bias)
    x = rng.standard_normal((rows, sizes[1])).astype("f4")
    artifact = compared(graph([made], x, weights), x, kernels="fastest")
    assert implementations(artifact) == {kernel}


@pytest.mark.parametrize(("mcpu", "scales"), [("x86-64-v3", "float16"), ("x86-64", "float32")])
def test_processors_without_avx512(mcpu, scales):
    """One row, few and many, of 4 and 8 bits, and rows of a table; without F16C scales are float32."""
    layers = ((1, (50, 85), 16, 4, True), (1, (40, 64), 64, 8, False), (5, (48, 70), 16, 8, True), (40, (48, 150), 64, 4, False))
    model, inputs = several(layers)
    artifact = flexcomp.build(model, target=f"llvm -mcpu={mcpu}", threads=1, kernels="fastest", progress=False)
    assert {"blockgemv", "blockgemm", "blockgemm widened", "rows"} <= implementations(artifact)
    (first,) = (layer.description for layer in artifact.program.layers if "85→50" in layer.description)
    assert f"int4 in blocks of 16, {scales} scales, zero points" in first
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    for budget in ("min", None):
        with artifact.session(budget=budget) as session:
            for found, want in zip(session.run(inputs).values(), wanted, strict=True):
                np.testing.assert_allclose(found, want, rtol=0, atol=1.5e-6 * abs(want).max())


@pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_dequantised_in_blocks(kind, axis):
    """Along the inputs of a MatMul, and of a Gemm with transposed weights."""
    rng = np.random.default_rng(2)
    inputs, channels, block = 96, 24, 32
    shape = (inputs, channels) if axis == 0 else (channels, inputs)
    blocks = tuple(n // block if at == axis else n for at, n in enumerate(shape))
    bits = int(kind.removeprefix("u")[3:])
    low, high = (0, 1 << bits) if kind[0] == "u" else (-(1 << (bits - 1)), 1 << (bits - 1))
    packed = lambda name, of: helper.make_tensor(  # noqa: E731
        name, getattr(TensorProto, kind.upper()), of, rng.integers(low, high, of).ravel().tolist()
    )
    weights = {"w": packed("w", shape), "s": rng.uniform(0.01, 0.02, blocks).astype("f4"), "o": packed("o", blocks)}
    nodes = [node("DequantizeLinear", "w", "s", "o", out="v", axis=axis, block_size=block)]
    nodes += [node("MatMul", "x", "v") if axis == 0 else node("Gemm", "x", "v", transB=1)]
    x = rng.standard_normal((2, inputs)).astype("f4")
    assert implementations(compared(graph(nodes, x, weights), x)) == {"blockgemm"}


def stack(kind=F32, layers: int = 4, width: int = 384) -> tuple[onnx.ModelProto, np.ndarray]:
    """Products one after the other, with an epilogue each."""
    rng = np.random.default_rng(3)
    nodes, weights, last = [], {}, "x"
    for i in range(layers):
        made, own = product(rng, last, f"h{i}", (width, width), 32, 4, bool(i % 2), kind)
        weights |= own
        last = "y" if i == layers - 1 else f"a{i}"
        nodes += [made, node("Tanh", f"h{i}", out=last)]
    return graph(nodes, np.zeros((1, width), kind), weights), rng.standard_normal((1, width)).astype(kind)


def test_files_and_budgets_have_four_bits(tmp_path):
    model, x = stack()
    artifact = compared(model, x, ("min", "0.4", None), most=1e-5)  # differences grow from layer to layer
    artifact.export_library(tmp_path / "m.so")
    constants = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    assert (tmp_path / "m.weights").stat().st_size <= 1.02 * constants + 4 * 4096, "panels begin at pages"
    one = constants / 4
    assert artifact.program.rungs[0].budget < one, "slices of a layer are smaller than the layer"


def test_products_of_one_name():
    """ONNX wants names to differ, and its checker does not look: tensors of definitions are named after nodes."""
    model, x = stack()
    expected = compared(model, x, ("min",), most=1e-5)
    for one in model.graph.node:
        if one.op_type == "MatMulNBits":
            one.name = "same"
    with expected.session() as session, flexcomp.build(model, threads=1, progress=False).session() as other:
        np.testing.assert_array_equal(other.run({"x": x})["y"], session.run({"x": x})["y"])


def test_scales_of_16_bits_stay_so(tmp_path):
    model, x = stack(F16)
    compared(model, x, most=2e-3).export_library(tmp_path / "half.so")
    stack_of_32, _ = stack()
    flexcomp.build(stack_of_32, threads=1, progress=False).export_library(tmp_path / "single.so")
    half, single = ((tmp_path / f"{name}.weights").stat().st_size for name in ("half", "single"))
    scales = 4 * 384 * 384 // 32
    assert single - half >= 2 * scales - 4096


def test_a_scale_after_the_product_leaves_weights_as_they_are():
    rng = np.random.default_rng(4)
    made, weights = product(rng, "x", "h", (64, 64), 16, 4, False)
    weights["f"] = rng.uniform(0.5, 2, 64).astype("f4")
    x = rng.standard_normal((1, 64)).astype("f4")
    assert implementations(compared(graph([made, node("Mul", "h", "f")], x, weights), x)) == {"blockgemv"}


def test_auto_keeps_types_that_lose_nothing():
    model, x = stack(layers=2, width=64)
    assert implementations(compared(model, x, weights="auto", max_error=1e-4)) == {"blockgemv"}


def test_types_that_are_asked_for_win():
    rng = np.random.default_rng(5)
    made, weights = product(rng, "x", "y", (64, 64), 16, 4, True)
    x = rng.standard_normal((1, 64)).astype("f4")
    artifact = compared(graph([made], x, weights), x, weights="float32")
    assert implementations(artifact) == {"gemv"}


@pytest.mark.parametrize("rows", [1, 40])
def test_readers_of_one_weight_share_it(rows, tmp_path):
    """A product of one row and one of several."""
    rng = np.random.default_rng(6)
    first, weights = product(rng, "x", "a", (256, 256), 32, 4, True)
    second = onnx.NodeProto.FromString(first.SerializeToString())
    second.input[0], second.output[0], second.name = "t", "b", "second"
    nodes = [first, node("ReduceMean", "a", "axes", out="t", keepdims=1), second, node("Add", "a", "b")]
    x = rng.standard_normal((rows, 256)).astype("f4")
    model = graph(nodes, x, weights | {"axes": np.int64([0])})
    artifact = compared(model, x, most=3e-6, kernels="fastest")
    artifact.export_library(tmp_path / "m.so")
    constants = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    assert (tmp_path / "m.weights").stat().st_size <= constants + 2 * 4096


def looked_up(ids: np.ndarray, weights: dict, block: int, **attributes) -> onnx.ModelProto:
    """Rows of a table."""
    gather = node(
        "GatherBlockQuantized", "t_w", "x", "t_s", *(["t_o"] if "t_o" in weights else []), domain="com.microsoft",
        block_size=block, gather_axis=0, quantize_axis=1, **attributes,
    )  # fmt: skip
    made = graph([gather], ids, weights)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return made


@pytest.mark.parametrize("kind", ["uint8", "int4", "uint4"])
@pytest.mark.parametrize(("rows", "width", "zeros"), [(3450, 352, True), (3450, 352, False), (40, 96, True)])
def test_rows_of_a_table_in_blocks(kind, rows, width, zeros, tmp_path):
    """Read by the row, in slices, or, of a small table, from float32."""
    rng = np.random.default_rng(9)
    weights, attributes = table(rng, rows, width, 32, kind, zeros)
    for ids in (np.int64([[0, 5, rows - 1, -1]]), rng.integers(0, rows, (1, 500))):
        artifact = compared(looked_up(ids, weights, 32, **attributes), ids, most=1e-7)
        assert bool({"rows", "embedding"} & implementations(artifact)) == (rows > 1000)
        if rows > 1000:
            artifact.export_library(tmp_path / "t.so")
            assert (tmp_path / "t.weights").stat().st_size <= 1.02 * rows * (width * 5 // 8 + 6) + 4096


@pytest.mark.parametrize("rows", [3450, 40])
def test_numbers_outside_of_a_table_are_refused_by_node(rows):
    """Of a table in blocks and of one in float32."""
    rng = np.random.default_rng(9)
    weights, attributes = table(rng, rows, 96, 32, "uint8", True)
    ids = np.int64([[0, rows - 1]])
    model = looked_up(ids, weights, 32, **attributes)
    with flexcomp.build(model, threads=1, progress=False).session() as session:
        for wrong in (rows, -rows - 1):
            with pytest.raises(InputError, match=rf"node 'y' \(Gather\): index {wrong} at position 1 is outside"):
                session(np.int64([[0, wrong]]))


def tied(rows: int = 3001, width: int = 352) -> tuple[onnx.ModelProto, np.ndarray]:
    """An embedding, and the head with the same table."""
    rng = np.random.default_rng(10)
    weights, attributes = table(rng, rows, width, 32, "uint8", True)
    head = {"h_w": weights["t_w"].reshape(rows, -1, 16), "h_s": weights["t_s"].ravel(), "h_o": weights["t_o"].ravel()}
    gather = node("GatherBlockQuantized", "t_w", "x", "t_s", "t_o", out="e", domain="com.microsoft", block_size=32, **attributes)
    product = node("MatMulNBits", "e", *head, domain="com.microsoft", N=rows, K=width, bits=4, block_size=32, accuracy_level=1)
    made = graph([gather, product], np.int64([[0]]), weights | head)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return made, np.int64([[2000]])


def test_a_table_of_an_embedding_and_a_head_is_stored_once(tmp_path):
    model, ids = tied()
    artifact = compared(model, ids, most=2e-6)
    artifact.export_library(tmp_path / "m.so")
    constants = sum(len(tensor.raw_data) for tensor in model.graph.initializer) // 2
    assert (tmp_path / "m.weights").stat().st_size <= 1.03 * constants
    assert {"rows", "blockgemv"} <= implementations(artifact), "the row is fetched from the head's panel"


def test_a_head_of_another_type_has_weights_of_its_own():
    model, ids = tied()
    artifact = compared(model, ids, most=2e-6, weights={"y*": "float32"})
    assert {"rows", "gemv"} <= implementations(artifact)


def in_floats(conv: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """An embedding and a dense layer, of float32 weights [channels, inputs]; and a convolution between them, if asked for."""
    rng = np.random.default_rng(12)
    weights = {"t": rng.standard_normal((2750, 100)).astype("f4"), "w": rng.standard_normal((72, 100)).astype("f4")}
    weights["w"][3, :40] = 0  # a block without a scale
    nodes = [node("Gather", "t", "x", out="e"), node("Gemm", "c" if conv else "e", "w", transB=1)]
    if conv:
        extra = {"k": rng.standard_normal((1, 1, 1, 3)).astype("f4"), "i": np.int64([1, 1, 1, 100]), "o": np.int64([1, 100])}
        nodes[1:1] = [
            node("Reshape", "e", "i", out="f"),
            node("Conv", "f", "k", out="g", pads=[0, 1, 0, 1]),
            node("Reshape", "g", "o", out="c"),
        ]
        weights |= extra
    ids = np.int64([7])
    made = graph(nodes, ids, weights)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return made, weights, ids


def test_float_weights_are_rounded_to_four_bits(tmp_path):
    """To the nearest of fifteen multiples of a scale for each block of 32."""
    model, weights, ids = in_floats()
    artifact = flexcomp.build(model, weights="int4", threads=1, progress=False)
    assert {"rows", "blockgemv"} <= implementations(artifact)
    values = {}
    for name, given in weights.items():
        padded = np.pad(given, ((0, 0), (0, 28))).reshape(len(given), 4, 32)
        step = (abs(padded).max(2, keepdims=True) / F32(7)).astype(F16).astype(F32)
        values[name] = (np.rint(padded / np.where(step > 0, step, 1)) * step).reshape(len(given), 128)[:, :100]
        assert np.all(abs(values[name] - given) <= 0.51 * np.repeat(step, 32, 1).reshape(len(given), 128)[:, :100])
    rounded, _, _ = in_floats()
    for tensor in rounded.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    (want,) = onnxruntime.InferenceSession(rounded.SerializeToString()).run(None, {"x": ids})
    for budget in ("min", None):
        with artifact.session(budget=budget) as session:
            np.testing.assert_allclose(session(ids), want, rtol=0, atol=1.5e-6 * abs(want).max())
    artifact.export_library(tmp_path / "m.so")
    assert (tmp_path / "m.weights").stat().st_size < 0.2 * sum(value.nbytes for value in weights.values())


@pytest.mark.parametrize(("most", "wanted"), [(0.5, {"int4"}), (1e-2, {"int8", "float16"}), (1e-5, {"float32"})])
def test_auto_chooses_among_four_bits_and_more(most, wanted):
    model, _, ids = in_floats()
    plain = flexcomp.build(model, threads=1, progress=False).session()(ids)
    artifact = flexcomp.build(
        model, weights="auto", max_error=most, calibration={"x": ids}, threads=1, progress=False
    )
    layers = [layer for layer in describe(artifact.program)["layers"] if layer["weights_dtype"]]
    assert {layer["weights_dtype"] for layer in layers} <= wanted
    assert all(layer["weights_errors"]["int4"] > layer["weights_errors"]["int8"] for layer in layers)
    assert abs(artifact.session()(ids) - plain).max() <= most * abs(plain).max()


def test_layers_without_blocks_have_eight_bits_instead_of_four():
    model, _, ids = in_floats(conv=True)
    kinds = "int4", {"*": "int4", "g": "int8"}
    found = [flexcomp.build(model, weights=kind, threads=1, progress=False).session()(ids) for kind in kinds]
    np.testing.assert_array_equal(*found)


def test_four_bits_have_no_infinity():
    model, weights, _ = in_floats()
    weights["w"][0, 0] = np.inf
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(weights["w"], "w"))
    with pytest.raises(FlexcompError, match=r"infinite or no numbers do not fit int4: keep them as float32, weights=\{…, 'y'"):
        flexcomp.build(model, weights="int4", threads=1, progress=False)


FAULTS = {
    "block": ({"block_size": 24}, {}, r"MatMulNBits\): its block_size is 24, and 16, 32"),
    "bits": ({"bits": 2}, {}, r"MatMulNBits\): it has g_idx, or weights of other than 4 or 8 bits"),
    "channels": ({"N": 65}, {}, r"MatMulNBits\): it has 4096 weights where 65 channels of 128 inputs in blocks of 32 have 4160"),
    "scales": ({}, {"y_s": np.ones(255, "f4")}, r"MatMulNBits\): it has 255 scales where .* have 256: quantise again"),
    "zero points": ({}, {"y_o": np.zeros(127, "u1")}, r"MatMulNBits\): it has 127 zero points where .* have 128"),
    "not finite": ({}, {"y_s": np.full(256, np.inf, "f4")}, r"some of its scales are infinite or no numbers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_blocks_are_refused_by_node(fault):
    attributes, constants, says = FAULTS[fault]
    made, weights = product(np.random.default_rng(7), "x", "y", (64, 128), 32, 4, True)
    for attribute in made.attribute:
        attribute.i = attributes.get(attribute.name, attribute.i)
    with pytest.raises(FlexcompError, match=rf"node 'y' .*{says}" if "finite" not in fault else says):
        flexcomp.build(graph([made], np.zeros((1, 128), "f4"), weights | constants), threads=1, progress=False)


def test_groups_of_inputs_in_another_order_are_refused():
    made, weights = product(np.random.default_rng(8), "x", "y", (64, 128), 32, 4, True)
    made.input.append("g")
    model = graph([made], np.zeros((1, 128), "f4"), weights | {"g": np.zeros(128, "i4")})
    with pytest.raises(FlexcompError, match=r"MatMulNBits\): it has g_idx"):
        flexcomp.build(model, threads=1, progress=False)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"t_s": np.ones((40, 2), "f4")}, r"its scales are \[40, 2\], and blocks of 32 along axis 1 of .* have \[40, 3\]"),
        ({"t_w": np.zeros((40, 48), "i1")}, "its data holds int8, and int4, uint4 and uint8 can be compiled"),
        ({"t_s": np.full((40, 3), np.nan, "f4")}, "some of its scales are infinite or no numbers"),
    ],
)
def test_bad_tables_are_refused_by_node(changed, says):
    weights, attributes = table(np.random.default_rng(11), 40, 96, 32, "uint8", False)
    with pytest.raises(FlexcompError, match=says):
        flexcomp.build(looked_up(np.int64([[0]]), weights | changed, 32, **attributes), threads=1, progress=False)


def test_scales_of_other_blocks_are_refused():
    nodes = [node("DequantizeLinear", "w", "s", out="v", axis=0, block_size=32), node("MatMul", "x", "v")]
    weights = {"w": np.zeros((96, 8), "i1"), "s": np.ones((2, 8), "f4")}
    with pytest.raises(FlexcompError):
        flexcomp.build(graph(nodes, np.zeros((1, 96), "f4"), weights), threads=1, progress=False)
