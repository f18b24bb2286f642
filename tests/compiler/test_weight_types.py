"""`build(weights=…)`: what weights are kept as, in which layers, and that nothing else is rounded."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import flexcomp
from flexcomp.errors import InputError
from flexcomp.report import describe
from flexcomp.schedules.tiles.narrow_panel import natural, rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16
from tests.operators.networks import model, node

from .weighted import IMAGE, SAFETENSORS, WIDTH, network, normal, stored, weights

NARROW = ("float16", "bfloat16", "int8")


def kept_as(given: dict[str, np.ndarray], dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    """The weights as they are after they were kept in these types; channels of a product are on its last axis."""
    axes = {"head": 1}
    return given | {
        name: np.moveaxis(rounded(np.moveaxis(given[name], axes.get(name, 0), 0), dtype), 0, axes.get(name, 0))
        for name, dtype in dtypes.items()
        if dtype != "float32"
    }


def found_and_wanted(given, dtypes, tmp_path, **options) -> tuple[np.ndarray, np.ndarray, flexcomp.Artifact]:
    artifact = flexcomp.build(network(given), threads=1, **options)
    artifact.export_library(tmp_path / "network.so")
    x = normal(*IMAGE)
    with flexcomp.load(tmp_path / "network.so") as session:
        found = session(x)
    reference = network(kept_as(given, dtypes)).SerializeToString()
    (wanted,) = onnxruntime.InferenceSession(reference).run(None, {"x": x})
    return found, wanted, artifact


@pytest.mark.parametrize("kernels", ["smallest", "auto"])
@pytest.mark.parametrize("dtype", NARROW)
def test_only_the_weights_are_rounded(dtype, kernels, tmp_path):
    """Whatever computes a layer: kernels on narrow weights, and those on transformed ones."""
    types = dict.fromkeys(("body", "each", "head"), dtype)
    found, wanted, _ = found_and_wanted(weights(), types, tmp_path, weights=dtype, kernels=kernels)
    # F(5, 3) errs by some 6e-6, where the processor makes it worth while.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 if kernels == "smallest" else 1e-5)
    types = stored(tmp_path / "network.weights")
    assert SAFETENSORS[dtype] in types.values()
    if kernels == "smallest":
        assert set(types.values()) == {SAFETENSORS[dtype]}


def test_types_by_patterns(tmp_path):
    """The last pattern that matches counts."""
    wish = {"*": "int8", "/body/*": "bfloat16", "/head/*": "float32", "/body/each": "float16"}
    types = {"body": "bfloat16", "each": "float16", "head": "float32"}
    found, wanted, _ = found_and_wanted(weights(), types, tmp_path, weights=wish, kernels="smallest")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6)
    assert sorted(stored(tmp_path / "network.weights").values()) == ["BF16", "F16", "F32"]


def test_weights_are_float32_unless_asked(tmp_path):
    found, wanted, _ = found_and_wanted(weights(), {}, tmp_path)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6)
    assert set(stored(tmp_path / "network.weights").values()) == {"F32"}


@pytest.mark.parametrize("dtype", NARROW)
def test_what_loses_nothing_is_kept_narrow_unasked(dtype, tmp_path):
    """Weights that hold numbers of a narrow type, be it because they were given in it."""
    types = dict.fromkeys(("body", "each", "head"), dtype)
    given = kept_as(weights(), types)
    found, wanted, _ = found_and_wanted(given, {}, tmp_path, kernels="smallest")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6)
    # What bfloat16 has of usual sizes float16 has as well.
    allowed = {"F16", "BF16"} if dtype == "bfloat16" else {SAFETENSORS[dtype]}
    assert set(stored(tmp_path / "network.weights").values()) <= allowed
    flexcomp.build(network(given), threads=1, kernels="smallest", weights="float32").export_library(tmp_path / "wide.so")
    assert set(stored(tmp_path / "wide.weights").values()) == {"F32"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_initialisers_of_16_bits(dtype, tmp_path):
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    given = {name: array.astype(kind) for name, array in weights().items()}
    nodes = [
        node("Conv", "x", "body", "bias", pads=[1, 1, 1, 1], out="a"), node("Relu", "a", out="b"),
        node("Conv", "b", "each", group=WIDTH, pads=[1, 1, 1, 1], out="c"),
    ]  # fmt: skip
    tensor = onnx.TensorProto.FLOAT16 if dtype == "float16" else onnx.TensorProto.BFLOAT16
    narrow = model(nodes, {"x": IMAGE}, ["c"], {n: given[n] for n in ("body", "bias", "each")}, {"x": tensor, "c": tensor})
    artifact = flexcomp.build(narrow, threads=1, kernels="smallest")
    artifact.export_library(tmp_path / "narrow.so")
    assert set(stored(tmp_path / "narrow.weights").values()) <= {"F16", SAFETENSORS[dtype]}


def test_weights_that_were_quantised_before(tmp_path):
    """DequantizeLinear of 8-bit weights, one scale for each channel: the same integers are in the file."""
    integers = np.random.default_rng(0).integers(-127, 128, (WIDTH, 16, 3, 3)).astype("i1")
    integers[3] //= 9  # a channel that does not reach the largest
    scale = np.abs(normal(WIDTH)) / 50 + np.float32(1e-3)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], "/dequantise", axis=0),
        helper.make_node("Conv", ["x", "w"], ["y"], "/conv", pads=[1, 1, 1, 1]),
    ]
    quantised = model(nodes, {"x": IMAGE}, ["y"], {"q": integers, "s": scale})
    assert stored_and_right(quantised, normal(*IMAGE), tmp_path) == {"I8"}


ZEROS = {  # zero points of WIDTH channels, and the type in which nothing is lost
    "int8, none": (np.zeros(WIDTH, "i1"), "I8"),
    "int8, other": (np.arange(WIDTH).astype("i1") - 16, "BF16"),
    "uint8, middle": (np.full(WIDTH, 128, "u1"), "I8"),
    "uint8, other": (np.arange(WIDTH).astype("u1") * 8, "BF16"),
    "uint8, end": (np.full(WIDTH, 255, "u1"), "BF16"),
    "uint8, one for all": (np.array(131, "u1"), "BF16"),
}


@pytest.mark.parametrize("kind", ["Conv", "depthwise", "MatMul", "Gemm"])
@pytest.mark.parametrize(("zero", "kept"), ZEROS.values(), ids=ZEROS)
def test_zero_points_lose_nothing(zero, kept, kind, tmp_path):
    """Differences of 8-bit integers need 9 bits: half the bytes of float32, and the same numbers."""
    limits = np.iinfo(zero.dtype)
    shape, axis = {"Conv": ((WIDTH, 16, 3, 3), 0), "depthwise": ((WIDTH, 1, 3, 3), 0)}.get(kind, ((24, WIDTH), 1))
    integers = np.random.default_rng(1).integers(limits.min, limits.max, shape, zero.dtype, endpoint=True)
    scale = np.abs(normal(*zero.shape)) / 50 + np.float32(1e-3)
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], "/dequantise", axis=axis)]
    if axis:
        nodes.append(helper.make_node(kind, ["x", "w"], ["y"], "/dense"))
    else:
        nodes.append(helper.make_node("Conv", ["x", "w"], ["y"], "/conv", group=WIDTH if kind == "depthwise" else 1))
    x = normal(5, 24) if axis else normal(1, WIDTH if kind == "depthwise" else 16, 12, 12)
    quantised = model(nodes, {"x": x.shape}, ["y"], {"q": integers, "s": np.float32(scale), "z": zero})
    assert stored_and_right(quantised, x, tmp_path) == {kept}


def test_tables_with_zero_points_lose_nothing(tmp_path):
    integers = np.random.default_rng(1).integers(0, 256, (6000, 64), np.uint8)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], "/dequantise"),
        helper.make_node("Gather", ["w", "x"], ["y"], "/table"),
    ]
    given = {"q": integers, "s": np.float32(0.02), "z": np.uint8(140)}
    table = model(nodes, {"x": (1, 7)}, ["y"], given, {"x": onnx.TensorProto.INT64})
    assert stored_and_right(table, np.int64([[0, 5999, 17, 18, 3000, 3001, 44]]), tmp_path) == {"BF16"}


def stored_and_right(network: onnx.ModelProto, x: np.ndarray, tmp_path) -> set[str]:
    """The element types in the weights file of a network with one input and output, which is held against ONNX Runtime."""
    flexcomp.build(network, threads=1, kernels="smallest").export_library(tmp_path / "network.so")
    plain = onnxruntime.SessionOptions()
    # It would quantise x, too, where weights are 8 bits wide.
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = onnxruntime.InferenceSession(network.SerializeToString(), plain).run(None, {"x": x})
    with flexcomp.load(tmp_path / "network.so") as session:
        np.testing.assert_allclose(session(x), wanted, rtol=0, atol=3e-6 * abs(wanted).max())
    return set(stored(tmp_path / "network.weights").values())


def test_natural_types():
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((40, 50), "f4")
    counts = rng.integers(-128, 128, (40, 50)).astype("f4")
    scale = np.exp(rng.standard_normal((40, 1))).astype("f4")
    assert natural(wide, 0) == "float32"
    assert natural(wide.astype("f2").astype("f4"), 0) == "float16"
    assert natural(wide.astype(ml_dtypes.bfloat16).astype("f4") * np.float32(2**30), 0) == "bfloat16"
    assert natural(counts * scale, 0) == "int8"
    assert natural((counts * scale).T, 1) == "int8"
    assert natural(counts * scale, 1) == "float32", "its channels are not multiples of a scale"
    assert natural(counts * scale, 0, counted=True) == "int8"
    for far in (-256, 256):
        wider = np.concatenate([counts, np.full((40, 1), far, "f4"), counts], axis=1) * scale
        assert natural(wider, 0, counted=True) == SCALED_BFLOAT16 and natural(wider, 0) == "float32"
        np.testing.assert_array_equal(rounded(wider, SCALED_BFLOAT16), wider)
    assert natural(np.concatenate([counts, np.full((40, 1), 257, "f4"), counts + 1], 1) * scale, 0, counted=True) == "float32"
    assert natural(counts, None) == "float16", "channels that are not known have no scales"
    one_more = counts * scale
    one_more[39, 49] = np.nextafter(one_more[39, 49], np.float32(9e9))
    assert natural(one_more, 0) == "float32"
    one_more[39, 49] = np.nan
    assert natural(one_more, 0) == "float32"
    np.testing.assert_array_equal(rounded(counts * scale, "int8"), counts * scale)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("float8", "weights cannot be kept as 'float8': the types are float32, float16, bfloat16, int8, int4"),
        ({"/body/*": "int2"}, "weights of '/body/\\*' cannot be kept as 'int2'"),
        ({"*": 8}, "cannot be kept as 8"),
        ({"/nose/*": "int8"}, r"no layer with weights is called '/nose/\*'; there are /body/conv, /body/each, /head/fc"),
    ],
)
def test_wishes_that_cannot_be_granted(wish, message):
    with pytest.raises(InputError, match=message):
        flexcomp.build(network(weights()), threads=1, weights=wish)


def test_weights_that_a_type_does_not_have(tmp_path):
    given = weights()
    given["head"][3, 4] = 1e5
    with pytest.raises(InputError, match=r"/head/fc.*weights up to 100000 do not fit float16, whose largest is 65504.*float32"):
        flexcomp.build(network(given), threads=1, weights="float16").export_library(tmp_path / "network.so")


def test_models_without_names_have_every_type(tmp_path):
    given = weights()
    plain = network(given)
    for part in plain.graph.node:
        part.name = ""
    flexcomp.build(plain, threads=1, kernels="smallest", weights="int8").export_library(tmp_path / "network.so")
    assert set(stored(tmp_path / "network.weights").values()) == {"I8"}
    assert numpy_helper.to_array(plain.graph.initializer[0]).dtype == np.float32, "the given model is left alone"


def shared(first: str, second: str) -> dict[str, str]:
    """The types of two products with one weight, by node."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"), helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "second"),
    ]  # fmt: skip
    network = model(nodes, {"x": (2, 24)}, ["y"], {"w": normal(24, 24)})
    artifact = flexcomp.build(network, threads=1, kernels="smallest", weights={"first": first, "second": second})
    layers = [layer for layer in describe(artifact.program)["layers"] if layer["op"] == "matmul"]
    return {layer["node"]: layer["weights_dtype"] for layer in layers}


def test_layers_that_share_a_weight_have_types_of_their_own():
    assert shared("int8", "float32") == {"first": "int8", "second": "float32"}
    assert shared("float32", "bfloat16") == {"first": "float32", "second": "bfloat16"}


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_layers_that_end_a_network_have_names(op, tmp_path):
    nodes = [helper.make_node(op, ["x", "w"], ["y"], "/head/last", kernel_shape=[3, 3])]
    last = model(nodes, {"x": IMAGE}, ["y"], {"w": normal(16, 16, 3, 3)})
    flexcomp.build(last, threads=1, kernels="smallest", weights={"*": "int8", "/head/*": "bfloat16"}).export_library(
        tmp_path / "last.so"
    )
    assert set(stored(tmp_path / "last.weights").values()) == {"BF16"}


def test_transposed_weights_of_16_bits_stay(tmp_path):
    nodes = [node("ConvTranspose", "x", "w", strides=[2, 2], kernel_shape=[3, 3])]
    weight = normal(16, 8, 3, 3).astype("f2").astype("f4")
    network = model(nodes, {"x": IMAGE}, ["y"], {"w": weight})
    flexcomp.build(network, threads=1, kernels="smallest").export_library(tmp_path / "network.so")
    assert set(stored(tmp_path / "network.weights").values()) == {"F16"}


def test_processors_that_cannot_widen_float16():
    """They would call a function for every weight."""
    old = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v2"
    with pytest.raises(InputError, match=r"cannot widen float16 .* needs F16C\): the types are float32, bfloat16, int8"):
        flexcomp.build(network(weights()), target=old, weights="float16")
    given = kept_as(weights(), dict.fromkeys(("body", "each", "head"), "float16"))
    artifact = flexcomp.build(network(given), target=old, kernels="smallest")
    assert {layer["weights_dtype"] for layer in describe(artifact.program)["layers"]} <= {"float32", None}
