"""Operators of com.microsoft agree with ONNX Runtime, as the graphs of ONNX operators that stand for them."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.onnx_model import read_onnx, simplify_onnx

RNG = np.random.default_rng(5)
BATCH, LENGTH, HEADS, WIDTH = 2, 5, 2, 8
HIDDEN = HEADS * WIDTH


def real(*shape):
    return RNG.standard_normal(shape).astype("float32")


def integers(high, *shape, kind="int32"):
    return RNG.integers(0, high, shape).astype(kind)


def model(kind, inputs, outputs=1, domain="com.microsoft", constants=(), **attributes):
    """One node. `inputs` by name, None for those that are left out; `constants` are names of those that are weights."""
    names = [name if value is not None else "" for name, value in inputs.items()]
    results = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(kind, names, results, "the_node", domain=domain, **attributes)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
         for name, value in inputs.items() if value is not None and name not in constants],
        [onnx.ValueInfoProto(name=name) for name in results if name],
        [numpy_helper.from_array(inputs[name], name) for name in constants],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run(proto, inputs):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return session.run(None, {name: value for name, value in inputs.items() if name in wanted})


def compare(kind, inputs, outputs=1, **options):
    proto = model(kind, inputs, outputs, **options)
    want = run(proto, inputs)
    simple = simplify_onnx(read_onnx(proto), {}).proto
    assert not any(node.domain for node in simple.graph.node)
    for ours, theirs in zip(run(simple, inputs), want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


X, BIAS = real(BATCH, LENGTH, HIDDEN), real(HIDDEN)


@pytest.mark.parametrize(
    "kind, inputs, attributes",
    [
        ("Gelu", {"x": X}, {}),
        ("BiasGelu", {"x": X, "b": BIAS}, {}),
        ("FastGelu", {"x": X}, {}),
        ("FastGelu", {"x": X, "b": BIAS}, {}),
        ("QuickGelu", {"x": X}, {}),
        ("QuickGelu", {"x": X}, {"alpha": 0.7}),
    ],
)
def test_gelus(kind, inputs, attributes):
    compare(kind, inputs, **attributes)


@pytest.mark.parametrize("outputs", [1, ["y", "", "", "sum"]])
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.1}])
def test_norms_after_sums(outputs, bias, attributes):
    skip, gamma, beta = real(BATCH, LENGTH, HIDDEN), real(HIDDEN), real(HIDDEN)
    for shift in (None, beta):
        inputs = {"x": X, "skip": skip, "gamma": gamma, "beta": shift, "bias": bias}
        compare("SkipLayerNormalization", inputs, outputs, **attributes)
    compare("SkipSimplifiedLayerNormalization", {"x": X, "skip": skip, "gamma": gamma, "bias": bias}, outputs, **attributes)


@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.1}, {"axis": -1}])
def test_a_norm_that_is_in_the_domain_of_onnx(attributes):
    compare("SimplifiedLayerNormalization", {"x": X, "scale": BIAS}, domain="", **attributes)


@pytest.mark.parametrize("left_out", [(), ("segments", "segment_table"), ("mask",), ("places",)])
def test_embeddings(left_out):
    inputs = {
        "ids": integers(11, BATCH, LENGTH), "segments": integers(2, BATCH, LENGTH), "words": real(11, HIDDEN),
        "positions": real(9, HIDDEN), "segment_table": real(2, HIDDEN), "gamma": BIAS, "beta": real(HIDDEN),
        "mask": np.int32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), "places": integers(9, BATCH, LENGTH),
    }  # fmt: skip
    compare("EmbedLayerNormalization", {k: None if k in left_out else v for k, v in inputs.items()}, 3)


@pytest.mark.parametrize(
    "activation, parameters",
    [("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]), ("Clip", [-0.5, 0.9])],
)
def test_convolutions_with_an_activation(activation, parameters):
    given = {"activation": activation, **({"activation_params": parameters} if parameters else {})}
    x, weights, bias = real(1, 4, 6, 6), real(4, 4, 3, 3), real(4)
    for added in (None, real(1, 4, 6, 6)):
        compare("FusedConv", {"x": x, "w": weights, "b": bias, "z": added}, pads=[1, 1, 1, 1], **given)
    if activation in ("Relu", "LeakyRelu"):
        alpha = {"activation_alpha": 0.2} if parameters else {}
        compare("FusedGemm", {"x": x[0, 0], "w": weights[:, 0, :, 0].T.repeat(2, 0), "b": bias}, activation=activation, **alpha)


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_products_with_turned_operands(turned, alpha):
    a, b = real(2, 3, 4), real(2, 4, 5)
    a, b = (one.swapaxes(1, 2) if is_turned else one for one, is_turned in zip((a, b), turned, strict=True))
    compare("FusedMatMul", {"a": a, "b": b}, transA=turned[0], transB=turned[1], alpha=alpha)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", [np.int64([2]), integers(9, BATCH, LENGTH, kind="int64")])
@pytest.mark.parametrize("part", [0, 4])
def test_rotations(interleaved, places, part):
    tables = {"cos": real(9, (part or WIDTH) // 2), "sin": real(9, (part or WIDTH) // 2)}
    given = {"num_heads": HEADS, "rotary_embedding_dim": part} if part else {}
    compare("RotaryEmbedding", {"x": X, "places": places, **tables}, interleaved=interleaved, **given)
    if not part:
        compare("RotaryEmbedding", {"x": real(BATCH, HEADS, LENGTH, WIDTH), "places": places, **tables}, interleaved=interleaved)


MASKS = [None, np.int32([3, 5]), np.int32([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])]


@pytest.mark.parametrize("mask", [*MASKS, integers(2, BATCH, LENGTH, LENGTH) | np.eye(LENGTH, dtype="int32")])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_projections(mask, unidirectional):
    for added in (None, real(BATCH, HEADS, LENGTH, LENGTH)):
        inputs = {"x": X, "w": real(HIDDEN, 3 * HIDDEN), "b": real(3 * HIDDEN), "mask": mask, "past": None, "added": added}
        compare("Attention", inputs, constants=["w"], num_heads=HEADS, unidirectional=unidirectional)


def test_attention_with_a_cache():
    inputs = {"x": X, "w": real(HIDDEN, 3 * HIDDEN), "b": real(3 * HIDDEN), "mask": None, "past": real(2, BATCH, HEADS, 3, WIDTH)}
    compare("Attention", inputs, 2, constants=["w"], num_heads=HEADS, unidirectional=1)


@pytest.mark.parametrize("mask", MASKS)
def test_attention_of_parts(mask):
    query, key, value = (real(BATCH, LENGTH, HIDDEN) for _ in range(3))
    inputs = {"q": query, "k": key, "v": value, "b": real(3 * HIDDEN), "mask": mask}
    compare("MultiHeadAttention", inputs, num_heads=HEADS, scale=0.5)
    past = {"added": real(1, HEADS, LENGTH, LENGTH + 3), "pk": real(BATCH, HEADS, 3, WIDTH), "pv": real(BATCH, HEADS, 3, WIDTH)}
    compare("MultiHeadAttention", {**inputs, "mask": None, **past}, 3, num_heads=HEADS, unidirectional=1)
    key, value = (real(BATCH, HEADS, LENGTH, WIDTH) for _ in range(2))
    compare("MultiHeadAttention", {**inputs, "k": key, "v": value, "b": None}, num_heads=HEADS)


@pytest.mark.parametrize("mask", MASKS)
def test_attention_of_packed_parts(mask):
    """ONNX Runtime has no implementation for processors; it is asked with parts that are unpacked."""
    parts = [real(BATCH, LENGTH, HEADS, 1, WIDTH) for _ in range(3)]
    query, key, value = (part.reshape(BATCH, LENGTH, HIDDEN) for part in parts)
    plain = {"q": query, "k": key, "v": value, "b": None, "mask": mask}
    (want,) = run(model("MultiHeadAttention", plain, num_heads=HEADS), plain)
    for q, k in ((np.concatenate(parts, 3), None), (query, np.concatenate(parts[1:], 3))):
        packed = {"q": q, "k": k, "v": None, "b": None, "mask": mask}
        simple = simplify_onnx(read_onnx(model("MultiHeadAttention", packed, num_heads=HEADS)), {}).proto
        np.testing.assert_allclose(run(simple, packed)[0], want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "kind, inputs, attributes, reason",
    [
        ("MultiHeadAttention", {"q": X, "k": X, "v": X}, {}, "attributes"),
        ("MultiHeadAttention", {"q": X, "k": X, "v": X, "b": None, "m": integers(2, BATCH, 9)}, {"num_heads": 2}, "mask"),
        ("FusedConv", {"x": real(1, 4, 6, 6), "w": real(4, 4, 1, 1)}, {"activation": "Mish"}, "activation is Mish"),
        ("FusedMatMul", {"a": X, "b": X}, {"transBatchA": 1}, "axis of the batch"),
        ("RotaryEmbedding", {"x": X, "p": np.int64([0]), "c": real(9, 4), "s": real(9, 4)}, {"is_packed_batching": 1}, "packed"),
    ],
)
def test_what_is_refused(kind, inputs, attributes, reason):
    proto = model(kind, inputs, **attributes)
    with pytest.raises(UnsupportedModelError, match=f"node 'the_node' .*{reason}"):
        simplify_onnx(read_onnx(proto), {})


def test_inputs_without_shapes_are_named():
    proto = model("RotaryEmbedding", {"x": X, "p": np.int64([0]), "c": real(9, 4), "s": real(9, 4)})
    proto.graph.node.insert(0, helper.make_node("NonZero", ["x"], ["found"], "first"))
    proto.graph.node[1].input[1] = "found"
    with pytest.raises(UnsupportedModelError, match="shapes of its inputs 'found' are not known"):
        simplify_onnx(read_onnx(proto), {})


def test_an_encoder_layer_as_the_optimiser_writes_it(tmp_path):
    """Attention is fused: the smallest budget has no room for scores of all heads."""
    length = 128
    weights = {
        "w": real(HIDDEN, 3 * HIDDEN) * 0.2, "wb": real(3 * HIDDEN), "o": real(HIDDEN, HIDDEN) * 0.2, "ob": real(HIDDEN),
        "g": real(HIDDEN), "b": real(HIDDEN), "f": real(HIDDEN, 32) * 0.2, "fb": real(32), "h": real(32, HIDDEN) * 0.2,
    }  # fmt: skip
    fused = {"domain": "com.microsoft"}
    nodes = [
        helper.make_node("Attention", ["x", "w", "wb"], ["a"], num_heads=HEADS, **fused),
        helper.make_node("MatMul", ["a", "o"], ["c"]),
        helper.make_node("SkipLayerNormalization", ["c", "x", "g", "b", "ob"], ["d"], epsilon=1e-5, **fused),
        helper.make_node("MatMul", ["d", "f"], ["e"]),
        helper.make_node("BiasGelu", ["e", "fb"], ["i"], **fused),
        helper.make_node("MatMul", ["i", "h"], ["j"]),
        helper.make_node("SkipLayerNormalization", ["j", "d", "g", "b"], ["y"], epsilon=1e-5, **fused),
    ]
    shape = (1, length, HIDDEN)
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(proto)
    x = real(*shape)
    flexcomp.build(proto, threads=1).export_library(tmp_path / "layer.so")
    scores = 4 * HEADS * length * length
    with flexcomp.load(tmp_path / "layer.so", budget="min") as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], run(proto, {"x": x})[0], rtol=1e-4, atol=1e-4)
        assert session.stats()["arena_bytes"] < 2 * scores
