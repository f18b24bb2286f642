"""Convolutions along one axis or three become convolutions of images."""

import pytest
import tvm
from tvm import relax

from flexcomp.passes import ToTwoDimensions

from .networks import calls, network
from .reference import assert_same_results

op = relax.op


def convolution(kind: str, **attributes) -> tvm.IRModule:
    axes = int(kind[4])
    shapes = (2, 4, *(9, 7, 8)[:axes]), (4, 4, *(3, 2, 3)[:axes])
    return network({"x": shapes[0]}, {"w": shapes[1]}, lambda emit, x, w: getattr(op.nn, kind)(x, w, **attributes))


@pytest.mark.parametrize("kind", ["conv1d", "conv1d_transpose"])
def test_a_line_is_an_image_of_one_row(kind, apply):
    before = convolution(kind, strides=2, padding=(1, 0))
    after = apply(ToTwoDimensions(), before)
    image = "relax.nn." + kind.replace("1d", "2d")
    assert calls(after) == ["relax.reshape", "relax.reshape", image, "relax.reshape"]


@pytest.mark.parametrize("kind", ["conv3d", "conv3d_transpose"])
def test_planes_are_channels_of_images(kind, apply):
    after = calls(apply(ToTwoDimensions(), convolution(kind, strides=(2, 1, 1), padding=(1, 0, 1, 0, 1, 0))))
    assert f"relax.nn.{kind}" not in after
    assert any(name.startswith("relax.nn.conv2d") for name in after)


def test_sums_are_over_the_same_products(apply):
    before = convolution("conv3d", strides=(2, 1, 2), padding=(1, 0, 1, 2, 1, 0), dilation=(2, 1, 1))
    assert_same_results(before, apply(ToTwoDimensions(), before))


def test_images_stay(becomes):
    before = convolution("conv2d")
    becomes(ToTwoDimensions(), before, before)


def test_other_layouts_stay(becomes):
    shapes = {"x": (2, 9, 4)}, {"w": (4, 4, 3)}
    before = network(*shapes, lambda emit, x, w: op.nn.conv1d(x, w, data_layout="NWC", kernel_layout="OIW"))
    becomes(ToTwoDimensions(), before, before)
