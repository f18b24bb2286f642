"""NaN goes through rectifiers and clips as in ONNX Runtime: a network that went wrong must not look right."""

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.jointly import jointly

from .networks import model, node

IMAGE = {"x": (1, 24, 9, 11)}
WEIGHT = np.random.default_rng(0).standard_normal((32, 24, 3, 3)).astype("f4")
BOUNDS = {"low": np.float32(-0.5), "high": np.float32(0.5), "zero": np.float32(0), "six": np.float32(6)}


def after_convolution(*follower: str):
    return model(
        [node("Conv", "x", "w", out="a"), node(follower[0], "a", *follower[1:])], IMAGE, ["y"], {"w": WEIGHT, **BOUNDS}
    )


NETWORKS = {
    "relu": model([node("Relu", "x")], IMAGE, ["y"]),
    "clip": model([node("Clip", "x", "low", "high")], IMAGE, ["y"], BOUNDS),
    "clip_below": model([node("Clip", "x", "low")], IMAGE, ["y"], BOUNDS),
    "clip_above": model([node("Clip", "x", "", "high")], IMAGE, ["y"], BOUNDS),
    "elu": model([node("Elu", "x")], IMAGE, ["y"]),
    "hard_sigmoid": model([node("HardSigmoid", "x")], IMAGE, ["y"]),
    "add_relu": model([node("Add", "x", "x", out="a"), node("Relu", "a")], IMAGE, ["y"]),
    "conv_relu": after_convolution("Relu"),
    "conv_relu6": after_convolution("Clip", "zero", "six"),
    "conv_clip_above": after_convolution("Clip", "", "high"),
    "conv_leaky": after_convolution("LeakyRelu"),
}


@pytest.mark.parametrize("name", NETWORKS)
@jointly(kernels="smallest")
def test_nan_is_kept(name):
    given, want = given_and_wanted(NETWORKS[name])
    found = yield NETWORKS[name], {"x": given}
    np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
@jointly(kernels="fastest")
def test_nan_is_kept_by_the_fastest_kernels(name):
    """Winograd's tiles mix neighbouring pixels: one that is no number makes all of its tile so."""
    given, want = given_and_wanted(NETWORKS[name])
    found = (yield NETWORKS[name], {"x": given})["y"]
    assert np.isnan(found[np.isnan(want)]).all() and not np.isnan(found).all()
    want[np.isnan(found)] = np.nan
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)


def given_and_wanted(network: onnx.ModelProto) -> tuple[np.ndarray, np.ndarray]:
    given = np.random.default_rng(1).standard_normal(IMAGE["x"]).astype("f4")
    given[0, 5, 4, 7] = given[0, 20, 8, 10] = np.nan
    (want,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": given})
    assert np.isnan(want).any()
    return given, want
