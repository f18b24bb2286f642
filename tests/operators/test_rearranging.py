"""Operators of flexcomp/frontend/operators/rearranging.py beyond what ONNX's node tests try."""

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import flexcomp
from flexcomp.errors import InputError, UnsupportedModelError
from tests.jointly import jointly

from .networks import model, node


def test_a_length_that_leads_out_of_the_tensor_is_an_error_that_names_the_node():
    reverse = node("ReverseSequence", "x", "lengths", batch_axis=0, time_axis=1)
    network = model([reverse], {"x": (4, 4), "lengths": (4,)}, ["y"], types={"lengths": TensorProto.INT64})
    x = np.arange(16, dtype="f4").reshape(4, 4)
    with flexcomp.build(network, threads=2).session() as session:
        found = session.run({"x": x, "lengths": np.int64([4, 3, 1, 0])})["y"]
        np.testing.assert_array_equal(found, [x[0][::-1], [*x[1][2::-1], x[1][3]], x[2], x[3]])
        for length in (2**40, -(2**40), 5, -1):
            with pytest.raises(InputError, match=rf"node 'y' \(ReverseSequence\): index {length} at position 2 is outside"):
                session.run({"x": x, "lengths": np.int64([4, 3, length, 0])})


@pytest.mark.parametrize(
    "attributes", [{}, {"strides": [2, 3]}, {"dilations": [2, 1]}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}]
)
@jointly(threads=2)
def test_patches_are_summed_at_their_places(attributes):
    image, block = (9, 10), (3, 2)
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    count = [
        (image[a] + pads[a] + pads[2 + a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(2)
    ]
    weights = {"image": np.int64(image), "block": np.int64(block)}
    network = model(
        [node("Col2Im", "x", "image", "block", **attributes)], {"x": (2, 18, count[0] * count[1])}, ["y"], weights, opset=18
    )
    x = np.random.default_rng(0).standard_normal((2, 18, count[0] * count[1])).astype("f4")
    (expected,) = ReferenceEvaluator(network).run(None, {"x": x})
    np.testing.assert_allclose((yield network, {"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@jointly(threads=2)
def test_determinants_of_small_matrices(size):
    x = np.random.default_rng(0).standard_normal((3, 5, size, size)).astype("f4")
    found = yield model([node("Det", "x")], {"x": x.shape}, ["y"]), {"x": x}
    np.testing.assert_allclose(found["y"], np.linalg.det(x.astype("f8")), rtol=1e-4, atol=1e-5)


def test_determinants_of_larger_ones_are_refused_by_name():
    network = model([node("Det", "x", name="n")], {"x": (5, 5)}, ["y"])
    with pytest.raises(UnsupportedModelError, match=r"node 'n' \(Det\): .* not of 5 × 5"):
        flexcomp.build(network, threads=1)
