"""Resize and Upsample in all of ONNX's semantics, against ONNX Runtime."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import flexcomp
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.operators.resampling import Resampling
from tests.jointly import jointly

from .networks import model, node

IMAGE = (1, 3, 7, 5)


def resize(scales=None, sizes=None, roi=None, shape=IMAGE, opset=19, types=None, **attributes):
    weights = {"roi": roi and np.float32(roi), "scales": scales and np.float32(scales), "sizes": sizes and np.array(sizes)}
    inputs = ["x", *(name if weights[name] is not None else "" for name in ("roi", "scales", "sizes"))]
    given = {name: value for name, value in weights.items() if value is not None}
    return model([node("Resize", *inputs, **attributes)], {"x": shape}, ["y"], given, types, opset=opset)


def agree(network, given=None):
    shape = [d.dim_value for d in network.graph.input[0].type.tensor_type.shape.dim]
    given = np.random.default_rng(0).standard_normal(shape).astype("f4") if given is None else given
    found = (yield network, {"x": given})["y"]
    (want,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": given})
    assert found.shape == want.shape and found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


SCALES = [1, 1, 0.65, 1.7]  # times 7 × 5 is 4.55 × 8.5
ROI = [0, 0, -0.1, 0.25, 1, 1, 1.3, 0.9]
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")

NETWORKS = {
    **{
        f"{mode}_{coordinates}": resize(SCALES, mode=mode, coordinate_transformation_mode=coordinates)
        for mode, coordinates in itertools.product(("nearest", "linear", "cubic"), COORDINATES)
    },
    **{
        f"nearest_{way}": resize([1, 1, 2.5, 0.4], nearest_mode=way, coordinate_transformation_mode="half_pixel")
        for way in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    },
    **{
        f"{mode}_align_corners": resize(sizes=[1, 3, 4, 11], mode=mode, coordinate_transformation_mode="align_corners")
        for mode in ("nearest", "linear", "cubic")
    },
    **{
        f"{mode}_region": resize(
            sizes=[1, 3, 9, 8], roi=ROI, mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0
        )
        for mode in ("nearest", "linear", "cubic")
    },
    **{
        f"{mode}_{size}_antialias": resize(sizes=[1, 3, *size], mode=mode, antialias=1)
        for mode, size in itertools.product(("linear", "cubic"), ((3, 2), (14, 3), (2, 1)))
    },
    "one_pixel": resize(sizes=[1, 3, 1, 1], mode="linear", coordinate_transformation_mode="align_corners"),
    "one_pixel_of_pytorch": resize(sizes=[1, 3, 1, 1], mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    "cubic_outside": resize(sizes=[1, 3, 9, 4], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    "axes": resize(sizes=[4, 9], axes=[3, 2], mode="linear"),
    "negative_axis": resize(scales=[1.7], axes=[-1], mode="cubic"),
    "not_larger": resize(sizes=[20, 9], axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
    "not_smaller": resize(sizes=[9, 20], axes=[2, 3], keep_aspect_ratio_policy="not_smaller", mode="linear"),
    "one_axis": resize(scales=[1, 1.6], shape=(3, 10), mode="linear"),
    "three_axes": resize(sizes=[1, 2, 5, 3, 9], shape=(1, 2, 3, 4, 5), mode="linear"),
    "twice": resize([1, 1, 2, 2], nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
    "twice_smooth": resize([1, 1, 2, 2], mode="linear"),
    "opset_11": resize([1, 1, 2, 2], roi=[0.0], mode="linear", coordinate_transformation_mode="half_pixel", opset=11),
    "opset_10": model([node("Resize", "x", "s")], {"x": IMAGE}, ["y"], {"s": np.float32(SCALES)}, opset=10),
    "opset_10_linear": model(
        [node("Resize", "x", "s", mode="linear")], {"x": IMAGE}, ["y"], {"s": np.float32([1, 1, 1.7, 2.3])}, opset=10
    ),
    "upsample_7": model([node("Upsample", "x", scales=[1.0, 1.0, 1.7, 3.0])], {"x": IMAGE}, ["y"], opset=7),
    "upsample_9": model(
        [node("Upsample", "x", "s", mode="linear")], {"x": IMAGE}, ["y"], {"s": np.float32([1, 1, 1.7, 3.0])}, opset=9
    ),
    "upsample_twice": model([node("Upsample", "x", "s")], {"x": IMAGE}, ["y"], {"s": np.float32([1, 1, 2, 2])}, opset=9),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@jointly()
def test_agrees_with_onnx_runtime(name):
    yield from agree(NETWORKS[name])


@jointly()
def test_every_axis_at_once():
    """ONNX Runtime interpolates images only: ONNX's own implementation is the measure."""
    network = resize(sizes=[2, 5, 4, 8], mode="cubic", antialias=1, shape=(3, 3, 7, 5))
    given = np.random.default_rng(0).standard_normal((3, 3, 7, 5)).astype("f4")
    (want,) = ReferenceEvaluator(network).run(None, {"x": given})
    np.testing.assert_allclose((yield network, {"x": given})["y"], want, rtol=1e-4, atol=1e-5)


@jointly()
def test_integers_take_the_nearest():
    types = {"x": TensorProto.INT32, "y": TensorProto.INT32}
    yield from agree(resize(SCALES, types=types), np.arange(105, dtype="i4").reshape(IMAGE))


@jointly()
def test_infinity_reaches_what_is_made_of_it():
    given = np.zeros(IMAGE, "f4")
    given[0, 1, 3, 2] = np.inf
    network = resize(sizes=[1, 3, 3, 2], mode="linear", antialias=1)
    found = (yield network, {"x": given})["y"]
    want = np.zeros((1, 3, 3, 2))
    want[0, 1, 1] = np.inf  # the middle row; both columns are made of the middle one
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (resize(SCALES, mode="linear", coordinate_transformation_mode="align_corners"), "give sizes instead"),
        (resize(SCALES, mode="linear", types={"x": TensorProto.INT32, "y": TensorProto.INT32}), "interpolates int32: cast"),
    ],
)
def test_refused(network, message):
    with pytest.raises(UnsupportedModelError, match=rf"node 'y' \(Resize\): .*{message}"):
        flexcomp.build(network, threads=1)


def test_computed_sizes_are_refused():
    network = model(
        [node("Cast", "z", out="sizes", to=TensorProto.INT64), node("Resize", "x", "", "", "sizes")],
        {"x": IMAGE, "z": (4,)}, ["y"],
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"node 'y' \(Resize\): its size is computed, .*: make it a constant"):
        flexcomp.build(network, threads=1)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_weights_add_up_to_one(mode, antialias):
    for size, resized, outside in itertools.product(range(1, 9), range(1, 12), (False, True)):
        of = Resampling(size, resized, resized / size, mode=mode, antialias=antialias, exclude_outside=outside)
        np.testing.assert_allclose(of.matrix().sum(axis=1), 1, rtol=1e-6)
