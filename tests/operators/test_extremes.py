"""The largest and the smallest of many, where some are infinite or no numbers: as NumPy, and so ONNX, defines them."""

import numpy as np
import pytest
from onnx import TensorProto

from tests.jointly import jointly

from .networks import model, node

INF, NAN = np.inf, np.nan
SHAPES = [(6, 5), (6, 40), (6, 7, 33)]
REDUCTIONS = {"ReduceMax": np.max, "ReduceMin": np.min, "ArgMax": np.argmax, "ArgMin": np.argmin}


def hostile(shape) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    x[0], x[1], x[3] = -INF, INF, NAN
    x[2].flat[2] = x[4].flat[0] = x[5].flat[-1] = NAN
    return x


def network_of(kind, shape, keepdims):
    """One output for each axis."""
    attribute = (lambda axis: {"axis": axis}) if kind.startswith("Arg") else (lambda axis: {"axes": [axis]})
    outputs = [f"y{axis}" for axis in range(len(shape))]
    types = dict.fromkeys(outputs, TensorProto.INT64 if kind.startswith("Arg") else TensorProto.FLOAT)
    nodes = [node(kind, "x", out=name, keepdims=keepdims, **attribute(axis)) for axis, name in enumerate(outputs)]
    return model(nodes, {"x": shape}, outputs, types=types)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", REDUCTIONS)
@jointly()
def test_reductions_of_hostile_rows(kind, shape):
    given = hostile(shape)
    found = yield network_of(kind, shape, keepdims=1), {"x": given}
    for axis in range(len(shape)):
        want = REDUCTIONS[kind](given, axis=axis, keepdims=True)
        np.testing.assert_array_equal(found[f"y{axis}"], want, err_msg=f"axis {axis}")


@pytest.mark.parametrize("value", [INF, -INF])
@pytest.mark.parametrize("kind", REDUCTIONS)
@jointly()
def test_reductions_of_one_infinity(kind, value):
    given = np.full((3, 20), value, "f4")
    found = yield network_of(kind, given.shape, keepdims=0), {"x": given}
    np.testing.assert_array_equal(found["y1"], REDUCTIONS[kind](given, axis=1))


@jointly()
def test_the_first_and_the_last_of_equal_ones():
    given = np.array([[1, 3, 3, 2, 3, 1], [0, 0, 0, 0, 0, 0]], "f4")
    network = model(
        [
            node("ArgMax", "x", out="a", axis=1), node("ArgMax", "x", out="b", axis=1, select_last_index=1),
            node("ArgMin", "x", out="c", axis=1), node("ArgMin", "x", out="d", axis=1, select_last_index=1),
        ],
        {"x": (2, 6)}, ["a", "b", "c", "d"], types=dict.fromkeys("abcd", TensorProto.INT64),
    )  # fmt: skip
    found = yield network, {"x": given}
    assert {name: value.ravel().tolist() for name, value in found.items()} == {
        "a": [1, 0], "b": [4, 5], "c": [0, 0], "d": [5, 5],
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "function"), [("Max", np.maximum), ("Min", np.minimum)])
@jointly()
def test_nan_on_either_side(kind, function):
    a = np.array([NAN, 1, NAN, 0, 3, INF, -INF, NAN] * 5, "f4")
    b = np.array([1, NAN, NAN, 2, 1, NAN, -1, INF] * 5, "f4")
    network = model([node(kind, "x", "z")], {"x": (40,), "z": (40,)}, ["y"])
    np.testing.assert_array_equal((yield network, {"x": a, "z": b})["y"], function(a, b))


@jointly()
def test_nan_in_a_layers_epilogue():
    """Max of a product and of a tensor that the kernel reads as it stores."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((24, 40)).astype("f4")
    a, b = rng.standard_normal((9, 24)).astype("f4"), rng.standard_normal((9, 40)).astype("f4")
    a[2], b[4, ::3] = NAN, NAN
    network = model(
        [node("Neg", "z", out="n"), node("MatMul", "x", "w", out="a"), node("Max", "a", "n"), node("Max", "n", "a", out="v")],
        {"x": (9, 24), "z": (9, 40)}, ["y", "v"], {"w": w},
    )  # fmt: skip
    found = yield network, {"x": a, "z": b}
    for name in ("y", "v"):
        np.testing.assert_allclose(found[name], np.maximum(a @ w, -b), rtol=1e-5, atol=1e-5)


def pooled(x, size, stride):
    """Maxima of windows with one pixel of padding around."""
    rank = x.ndim - 2
    padded = np.pad(x, [(0, 0)] * 2 + [(1, 1)] * rank, constant_values=-INF)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size,) * rank, axis=tuple(range(2, x.ndim)))
    windows = windows[(slice(None), slice(None), *[slice(None, None, stride)] * rank)]
    return windows.max(axis=tuple(range(-rank, 0)))


@pytest.mark.parametrize("shape", [(1, 3, 9, 11), (1, 20, 9, 11), (2, 4, 13), (1, 2, 5, 6, 7)], ids=str)
@jointly()
def test_pooling_keeps_nan_and_infinity(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    x[0, 0] = -INF
    x[0, 1].flat[[7, -1]] = NAN
    rank = len(shape) - 2
    attributes = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * (2 * rank)}
    network = model(
        [node("MaxPool", "x", **attributes), node("GlobalMaxPool", "x", out="g")], {"x": shape}, ["y", "g"]
    )  # fmt: skip
    found = yield network, {"x": x}
    np.testing.assert_array_equal(found["y"], pooled(x, 3, 2))
    np.testing.assert_array_equal(found["g"], x.max(axis=tuple(range(2, x.ndim)), keepdims=True))
