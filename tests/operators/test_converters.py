"""Operators with converters of their own, against ONNX Runtime or ONNX's implementation: results that TVM's importer leaves out
or gets wrong, and inputs that rounding or infinities spoil."""

import numpy as np
import pytest
from onnx import TensorProto

import flexcomp
from flexcomp.errors import UnsupportedModelError
from tests.jointly import jointly

from .agreement import agree
from .networks import model, node

INF = np.inf
INT = TensorProto.INT64


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


@pytest.mark.parametrize("axis", [-1, 1, 0, -2])
@jointly(kernels="fastest")
def test_layer_normalization_gives_mean_and_deviation(axis):
    x = normal(3, 4, 5)
    row = x.shape[axis:] if axis else x.shape
    network = model(
        [node("LayerNormalization", "x", "s", "b", out=["y", "mean", "inverse"], axis=axis)], {"x": x.shape},
        ["y", "mean", "inverse"], {"s": normal(*row), "b": normal(*row)},
    )  # fmt: skip
    found = yield from agree(network, rtol=1e-4, x=x)
    assert found["mean"].shape == x.shape[: axis % 3] + (1,) * (3 - axis % 3)


@jointly(kernels="fastest")
def test_layer_normalization_with_one_scale_for_a_row():
    network = model(
        [node("LayerNormalization", "x", "s", axis=1)], {"x": (3, 4, 5)}, ["y"], {"s": normal(5)}
    )  # fmt: skip
    yield from agree(network, rtol=1e-4, x=normal(3, 4, 5))


@pytest.mark.parametrize("axis", [0, 1, -3])
@jointly(kernels="fastest")
def test_rms_normalization(axis):
    network = model(
        [node("RMSNormalization", "x", "s", axis=axis)], {"x": (3, 4, 5)}, ["y"], {"s": normal(3, 4, 5)[(0,) * (axis % 3)]},
        opset=23,
    )  # fmt: skip
    yield from agree(network, rtol=1e-4, x=normal(3, 4, 5))


@jointly(kernels="fastest")
def test_mean_variance_normalization_far_from_zero():
    """Of E[x²] - E[x]² nothing would be left."""
    x = normal(2, 3, 4, 5) + np.float32(1e4)
    network = model([node("MeanVarianceNormalization", "x")], {"x": x.shape}, ["y"])
    found = (yield network, {"x": x})["y"]
    exact = x.astype("f8")
    want = (exact - exact.mean((0, 2, 3), keepdims=True)) / exact.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found, want, atol=2e-3)


@pytest.mark.parametrize("p", [1, 2])
@jointly(kernels="fastest")
def test_lp_normalization_of_zeros(p):
    x = normal(3, 7)
    x[1] = 0
    network = model([node("LpNormalization", "x", p=p, axis=1)], {"x": x.shape}, ["y"])
    found = (yield network, {"x": x})["y"]
    norm = np.linalg.norm(x, p, axis=1, keepdims=True)
    np.testing.assert_allclose(found, np.where(norm == 0, 0, x / np.maximum(norm, 1e-30)), rtol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"output_shape": [10, 8], "strides": [3, 2]},
        {"output_shape": [7, 9], "strides": [2, 2]},
        {"output_shape": [7, 9], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [3, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "VALID"},
        {"strides": [3, 2], "output_padding": [2, 1], "pads": [1, 0, 0, 1]},
        {"strides": [3, 2], "dilations": [2, 1], "output_padding": [2, 1]},
        {"group": 2, "strides": [2, 2]},
    ],
    ids=str,
)
@jointly(kernels="fastest")
def test_transposed_convolution(attributes):
    network = model(
        [node("ConvTranspose", "x", "w", "b", kernel_shape=[3, 3], **attributes)], {"x": (1, 4, 3, 4)}, ["y"],
        {"w": normal(4, 6 // attributes.get("group", 1), 3, 3), "b": normal(6)},
    )  # fmt: skip
    yield from agree(network, rtol=1e-3, x=normal(1, 4, 3, 4))


@pytest.mark.parametrize(
    "attributes",
    [{"p": 1}, {"p": 2, "ceil_mode": 1}, {"p": 3, "pads": [1, 0, 0, 1]}, {"ceil_mode": 1, "dilations": [2, 1]}],
    ids=str,
)
@jointly(kernels="fastest")
def test_pooling_by_norms(attributes):
    pool = node("LpPool", "x", kernel_shape=[3, 2], strides=[2, 3], **attributes)
    nodes = [pool, node("Relu", "y", out="r"), node("GlobalLpPool", "x", out="g", p=3)]
    network = model(nodes, {"x": (1, 3, 8, 9)}, ["y", "r", "g"], opset=18)
    yield from agree(network, rtol=1e-5, x=normal(1, 3, 8, 9))


@pytest.mark.parametrize("order", [0, 1])
@jointly(kernels="fastest")
def test_places_of_maxima(order):
    x = np.random.default_rng(0).integers(0, 4, (2, 3, 6, 7)).astype("f4")  # with equal ones
    network = model(
        [node("MaxPool", "x", out=["y", "i"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], storage_order=order)],
        {"x": x.shape}, ["y", "i"], types={"i": INT}, opset=12,
    )  # fmt: skip
    yield from agree(network, x=x)


@jointly(kernels="fastest")
def test_blocks_to_channels():
    x = np.arange(2 * 3 * 4 * 6, dtype="f4").reshape(2, 3, 4, 6)
    blocks = x.reshape(2, 3, 2, 2, 3, 2)
    network = model([node("SpaceToDepth", "x", blocksize=2)], {"x": x.shape}, ["y"])
    found = (yield network, {"x": x})["y"]
    np.testing.assert_array_equal(found, blocks.transpose(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3))


@pytest.mark.parametrize("kind", ["i8", "f4"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@jointly(kernels="fastest")
def test_one_hot(axis, kind):
    indices = np.array([[0, 2, -1], [-3, 3, 9]], kind)  # 3 and 9 lie outside of the depth
    types = {"x": {"i8": INT, "f4": TensorProto.FLOAT}[kind], "y": TensorProto.INT32}
    network = model(
        [node("OneHot", "x", "depth", "values", axis=axis)], {"x": indices.shape}, ["y"],
        {"depth": np.array(3), "values": np.array([5, 7], "i4")}, types,
    )  # fmt: skip
    found = (yield network, {"x": indices})["y"]
    chosen = np.where(indices < 0, indices + 3, indices)
    want = np.stack([np.where(chosen == i, 7, 5) for i in range(3)], axis)
    np.testing.assert_array_equal(found, want)


@jointly(kernels="fastest")
def test_one_hot_with_computed_values():
    network = model(
        [node("Neg", "v", out="values"), node("OneHot", "x", "depth", "values")], {"x": (4,), "v": (2,)}, ["y"],
        {"depth": np.array([3])}, {"x": INT},
    )  # fmt: skip
    yield from agree(network, x=np.array([0, 2, 1, 1]), v=np.float32([1, -2]))


@jointly(kernels="fastest")
def test_cumulative_products():
    x = normal(3, 7)
    nodes = [
        node("CumProd", "x", "axis", out=f"y{e}{r}", exclusive=e, reverse=r) for e in (0, 1) for r in (0, 1)
    ]  # fmt: skip
    names = [n.output[0] for n in nodes]
    network = model(nodes, {"x": x.shape}, names, {"axis": np.array(1)}, opset=26)
    found = yield network, {"x": x}
    np.testing.assert_allclose(found["y00"], np.cumprod(x, 1), rtol=1e-5)
    np.testing.assert_allclose(found["y01"], np.cumprod(x[:, ::-1], 1)[:, ::-1], rtol=1e-5)
    before = np.concatenate([np.ones((3, 1)), np.cumprod(x, 1)[:, :-1]], 1)
    np.testing.assert_allclose(found["y10"], before, rtol=1e-5)
    after = np.concatenate([np.cumprod(x[:, ::-1], 1)[:, ::-1][:, 1:], np.ones((3, 1))], 1)
    np.testing.assert_allclose(found["y11"], after, rtol=1e-5)


@jointly(kernels="fastest")
def test_logarithms_of_sums_of_infinities():
    x = normal(4, 6)
    x[0], x[1, 2], x[2, 3], x[3, 0] = -INF, INF, -INF, 100
    network = model([node("ReduceLogSumExp", "x", axes=[1], keepdims=0)], {"x": x.shape}, ["y"], opset=13)
    found = (yield network, {"x": x})["y"]
    np.testing.assert_allclose(found, np.logaddexp.reduce(x.astype("f8"), axis=1), rtol=1e-6)


@pytest.mark.parametrize(("kind", "function"), [("ReduceMax", np.any), ("ReduceMin", np.all)])
@jointly(kernels="fastest")
def test_reductions_of_booleans(kind, function):
    x = np.random.default_rng(0).integers(0, 2, (5, 3)).astype(bool)
    types = {"x": TensorProto.BOOL, "y": TensorProto.BOOL}
    network = model([node(kind, "x", "axes", keepdims=0)], {"x": x.shape}, ["y"], {"axes": np.array([1])}, types, opset=20)
    np.testing.assert_array_equal((yield network, {"x": x})["y"], function(x, axis=1))


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceL2", "ReduceMean", "ReduceMax", "ReduceProd"])
@jointly(kernels="fastest")
def test_axes_that_are_left_out(kind):
    x = normal(2, 3, 4)
    network = model(
        [
            node(kind, "x", out="all"), node(kind, "x", "none", out="too"),
            node(kind, "x", "none", out="same", noop_with_empty_axes=1), node(kind, "x", "last", out="one", keepdims=0),
        ],
        {"x": x.shape}, ["all", "too", "same", "one"], {"none": np.zeros(0, "i8"), "last": np.array([-1, 0])}, opset=18,
    )  # fmt: skip
    found = yield network, {"x": x}
    function = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceProd": np.prod}.get(
        kind, lambda x, axis=None, keepdims=False: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))
    )
    np.testing.assert_allclose(found["all"], function(x, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(found["too"], found["all"])
    np.testing.assert_allclose(found["same"], np.abs(x) if kind == "ReduceL2" else x, rtol=1e-6)
    np.testing.assert_allclose(found["one"], function(x, axis=(0, 2)), rtol=1e-5)


@jointly(kernels="fastest")
def test_columns_to_an_image():
    attributes = {"pads": [1, 0, 0, 1], "strides": [2, 1], "dilations": [1, 2]}
    network = model(
        [node("Col2Im", "x", "image", "block", **attributes)], {"x": (1, 8, 12)}, ["y"],
        {"image": np.array([5, 5]), "block": np.array([2, 2])}, opset=18,
    )  # fmt: skip
    yield from agree(network, rtol=1e-5, x=normal(1, 8, 12))


def test_computed_axes_are_refused():
    network = model(
        [node("Cast", "a", out="axes", to=INT), node("ReduceSum", "x", "axes")], {"x": (2, 3), "a": (1,)}, ["y"]
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"node 'y' \(ReduceSum\): its input 'axes' is .*make it a constant"):
        flexcomp.build(network)


def test_the_largest_of_a_region_is_refused():
    network = model(
        [node("RoiAlign", "x", "rois", "i", mode="max")], {"x": (1, 2, 6, 6), "rois": (1, 4)}, ["y"], {"i": np.array([0])}
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"node 'y' \(RoiAlign\): mode max: .*; use avg"):
        flexcomp.build(network)


@pytest.mark.parametrize("hidden", [-INF, -3.4e38, -1e9])
@jointly(kernels="fastest")
def test_attention_with_rows_that_see_nothing(hidden):
    """What a softmax makes of them: NaN of -inf, a mean of all values of a finite number, as in ONNX Runtime."""
    network = model(
        [
            node("Transpose", "k", out="kt", perm=[0, 1, 3, 2]), node("MatMul", "q", "kt", out="s"),
            node("Add", "s", "m", out="t"), node("Softmax", "t", out="p", axis=-1), node("MatMul", "p", "v"),
        ],
        {"q": (1, 2, 20, 16), "k": (1, 2, 24, 16), "v": (1, 2, 24, 16), "m": (1, 1, 20, 24)}, ["y"],
    )  # fmt: skip
    mask = np.where(np.random.default_rng(0).integers(0, 2, (1, 1, 20, 24)), 0, hidden).astype("f4")
    mask[0, 0, 3] = mask[0, 0, 11] = hidden
    q, k, v = normal(1, 2, 20, 16), normal(1, 2, 24, 16), normal(2, 1, 24, 16).reshape(1, 2, 24, 16)
    found = (yield from agree(network, rtol=1e-3, q=q, k=k, v=v, m=mask))["y"]
    assert np.isnan(found[0, :, [3, 11]]).all() == (hidden == -INF)


@jointly(kernels="fastest")
def test_masked_rows_of_onnx_attention_are_zero():
    mask = np.array([[True, True, False], [False, False, False]])
    network = model(
        [node("Attention", "q", "k", "v", "m")], {"q": (1, 2, 2, 8), "k": (1, 2, 3, 8), "v": (1, 2, 3, 8)}, ["y"],
        {"m": mask}, opset=23,
    )  # fmt: skip
    given = {"q": normal(1, 2, 2, 8), "k": normal(1, 2, 3, 8), "v": normal(2, 1, 3, 8).reshape(1, 2, 3, 8)}
    found = (yield network, given)["y"]
    assert (found[0, :, 1] == 0).all() and np.isfinite(found).all() and (found[0, :, 0] != 0).all()
