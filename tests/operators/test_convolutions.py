"""Convolutions outside the common case: they are computed by the kernels of 2-D ones, and agree with ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import onnx
import onnxruntime
import pytest

from flexcomp.passes.transposed import Axis, are_together
from tests.jointly import jointly
from tests.pairs import pairs
from tests.uncompiled import planned

from .networks import model, node


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def check(network: onnx.ModelProto, x: np.ndarray, layers: int = 1) -> Generator:
    """It agrees, and its products are computed by so many layers that have a choice of kernels."""
    found = yield network, {"x": x}
    (want,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": x})
    assert found["y"].shape == want.shape
    np.testing.assert_allclose(found["y"], want, rtol=0, atol=3e-6 * abs(want).max())
    kinds = [layer.op for layer in found.layers]
    assert kinds.count("conv2d") == layers
    assert not any("conv" in kind for kind in kinds if kind != "conv2d")


def parts(kernel, strides, dilations=None, groups: int = 1, channels: int = 6) -> int:
    """How many convolutions a transposed one becomes: phases with as many taps, at the same pixels, are one."""
    axes = [Axis(9, 9, *axis, 0) for axis in zip(kernel, strides, dilations or [1] * len(kernel), strict=True)]
    if len(axes) == 3:
        planes = axes[0].phases()
        flat = kernel[1:], strides[1:], (dilations or [1] * 3)[1:], groups
        return sum(parts(*flat, channels * phases.count) for phases in planes if phases.taps)
    together = are_together(groups, channels, axes)
    return math.prod(sum(phases.taps > 0 for phases in axis.phases(together)) for axis in axes)


def conv(x: np.ndarray, *kernel: int, out: int = 6, op: str = "Conv", after: tuple = (), **attributes) -> onnx.ModelProto:
    groups, channels = attributes.get("group", 1), x.shape[1]
    weights = (out, channels // groups, *kernel) if op == "Conv" else (channels, out // groups, *kernel)
    nodes = [node(op, "x", "w", "b", out="c", **attributes), *after, node("Relu", "c")]
    return model(nodes, {"x": x.shape}, ["y"], {"w": normal(*weights), "b": normal(out)})


@pytest.mark.parametrize(
    "attributes",
    [{}, {"pads": [2, 1], "strides": [2]}, {"dilations": [3]}, {"group": 2}, {"group": 4, "auto_pad": "SAME_UPPER"}],
    ids=str,
)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@jointly(kernels="fastest")
def test_one_axis(op, attributes):
    x = normal(2, 4, 19)
    yield from check(conv(x, 3, out=8, op=op, **attributes), x)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 1, 1, 2, 0]},
        {"strides": [2, 1, 2], "pads": [1] * 6},
        {"dilations": [2, 1, 1]},
        {"group": 2, "pads": [0, 1, 1, 0, 1, 1]},
        {"strides": [3, 2, 2], "dilations": [2, 2, 1], "pads": [2, 2, 1, 0, 1, 1]},
    ],
    ids=str,
)
@jointly(kernels="fastest")
def test_three_axes(attributes):
    x = normal(2, 4, 7, 9, 8)
    yield from check(conv(x, 3, 2, 3, **attributes), x)


@jointly(kernels="fastest")
def test_a_kernel_of_one_plane():
    x = normal(1, 4, 5, 6, 7)
    yield from check(conv(x, 1, 3, 3, pads=[0, 1, 1, 0, 1, 1]), x)


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "out"),
    pairs(
        [(1, 1), (2, 3), (4, 4), (5, 2)], [(1, 1), (2, 2), (3, 1), (4, 5)], [(0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 1, 1)], [6, 16]
    ),
)
@jointly(kernels="fastest")
def test_transposed(kernel, strides, pads, out):
    """All alignments of a kernel to its phases: taps that are missing, patches that are cut off, rows that nothing reaches."""
    x = normal(1, 4, 5, 4)
    more = [s - 1 for s in strides]
    network = conv(x, *kernel, out=out, op="ConvTranspose", strides=strides, pads=pads, output_padding=more)
    yield from check(network, x, parts(kernel, strides, channels=out))


@pytest.mark.parametrize(("strides", "dilations"), [((2, 1), (3, 2)), ((3, 2), (2, 2)), ((4, 6), (6, 4))])
@jointly(kernels="fastest")
def test_transposed_kernels_with_holes(strides, dilations):
    x = normal(1, 4, 5, 4)
    network = conv(x, 3, 2, op="ConvTranspose", strides=strides, dilations=dilations, pads=[1, 0, 2, 1])
    yield from check(network, x, parts((3, 2), strides, dilations))


@pytest.mark.parametrize(("width", "out", "layers"), [(3, 6, 1), (2, 16, 2)])
@jointly(kernels="fastest")
def test_transposed_with_pads_beyond_the_kernel(width, out, layers):
    """Pixels of the input that reach nothing."""
    x = normal(1, 4, 9, 8)
    yield from check(conv(x, 3, width, out=out, op="ConvTranspose", strides=[2, 1], pads=[5, 4, 6, 3]), x, layers)


@pytest.mark.parametrize(
    ("planes", "attributes"),
    [
        (3, {}),
        (1, {"strides": [2, 2, 2], "pads": [1] * 6, "output_padding": [1, 0, 1]}),
        (4, {"strides": [2, 2, 2], "pads": [1] * 6, "output_padding": [1, 0, 1]}),
        (1, {"strides": [3, 1, 2], "pads": [2, 0, 1, 1, 0, 0]}),
        (4, {"strides": [3, 1, 2], "pads": [2, 0, 1, 1, 0, 0]}),
        (3, {"strides": [4, 1, 1], "output_padding": [3, 0, 0]}),
        (4, {"dilations": [2, 1, 2], "strides": [2, 1, 1]}),
        (3, {"dilations": [3, 1, 1], "strides": [2, 2, 1], "pads": [4, 0, 0, 5, 0, 0]}),
        (4, {"pads": [4, 0, 1, 3, 1, 0], "strides": [1, 2, 1]}),
        (3, {"group": 2, "strides": [2, 1, 2]}),
    ],
    ids=str,
)
@jointly(kernels="fastest")
def test_transposed_in_three_axes(planes, attributes):
    """Phases of planes, planes that are cut off, planes that nothing reaches."""
    if planes == 1 and attributes.get("pads", [0])[0] > 1:
        attributes = attributes | {"pads": [0, *attributes["pads"][1:3], 0, *attributes["pads"][4:]]}
    x = normal(2, 4, 6, 5, 4)
    layers = parts((planes, 2, 3), attributes.get("strides", [1] * 3), attributes.get("dilations"), attributes.get("group", 1))
    yield from check(conv(x, planes, 2, 3, op="ConvTranspose", **attributes), x, layers)


@pytest.mark.parametrize(("channels", "groups"), [(6, 3), (32, 8), (48, 48), (6, 6)])
@pytest.mark.parametrize("batch", [1, 2])
@jointly(kernels="fastest")
def test_pointwise_in_groups(channels, groups, batch):
    """Their pixels are one long row."""
    x = normal(batch, channels, 5, 4)
    yield from check(conv(x, 1, 1, out=channels, group=groups), x)


@pytest.mark.parametrize(("kernel", "strides"), [((4, 4), (2, 2)), ((3, 3), (2, 2)), ((5, 2), (4, 3))])
@jointly(kernels="fastest")
def test_transposed_in_groups(kernel, strides):
    x = normal(2, 6, 5, 4)
    network = conv(x, *kernel, op="ConvTranspose", group=3, strides=strides, pads=[1, 1, 1, 1])
    yield from check(network, x)


@pytest.mark.parametrize(
    ("kernel", "attributes", "out"),
    [
        ((3, 3), {"strides": [2, 2]}, 9),
        ((2, 5), {"strides": [3, 4], "dilations": [2, 3]}, 16),
        ((3, 2, 2), {"strides": [2, 1, 3]}, 16),
        ((2, 2), {"strides": [3, 3]}, 1),
        ((3, 3), {"strides": [2, 2]}, 3),
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 0, 1]}, 8),
        ((5, 5), {"strides": [2, 2]}, 12),
        ((5, 7), {"strides": [2, 3]}, 16),
        ((3, 4), {"strides": [2, 2], "group": 2}, 6),
        ((4, 3), {"strides": [2, 2], "group": 2}, 2),
        ((3, 3), {"strides": [1, 2], "group": 4}, 4),
        ((3, 1, 2), {"strides": [2, 1, 3]}, 2),
        ((40, 101), {"strides": [3, 2]}, 2),
    ],
)
@jointly(kernels="smallest")
def test_what_is_no_number_reaches_only_what_it_is_a_part_of(kernel, attributes, out):
    """Of phases with fewer taps than others: a product of a zero with infinity is no number."""
    x = normal(1, 4, *[5] * len(kernel))
    x[0, 1, 2, 3], x[0, 2, 4, 1], x[0, 3, 0, 0] = np.inf, np.nan, -np.inf
    network = conv(x, *kernel, out=out, op="ConvTranspose", **attributes)
    network.graph.node.pop()
    network.graph.node[0].output[0] = "y"
    found = (yield network, {"x": x})["y"]
    (want,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": x})
    assert np.isnan(want).any() and np.isfinite(want).any() and np.isinf(want).any()
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-6 * abs(want[np.isfinite(want)]).max())


@pytest.mark.parametrize(
    ("size", "kernel", "attributes"),
    [
        ((30, 1), (3, 1), {}),
        ((30, 1), (3, 1), {"pads": [1, 0, 2, 0], "strides": [2, 1], "dilations": [2, 1]}),
        ((30, 1), (3, 1), {"group": 2}),
        ((30, 1), (5, 1), {"group": 4, "out": 4}),
        ((30, 20), (3, 20), {}),
        ((30, 20), (4, 20), {"pads": [3, 0, 3, 0], "strides": [2, 1]}),
    ],
    ids=str,
)
@jointly(kernels="fastest")
def test_columns_are_rows(size, kernel, attributes):
    """A result of one column is computed with register tiles of several pixels."""
    x = normal(1, 4, *size)
    network = conv(x, *kernel, **attributes)
    yield from check(network, x)
    (layer,) = (
        layer for layer in planned(network, threads=1, kernels="smallest").layers if layer.op == "conv2d"
    )
    rows = int(layer.implementation.split()[1].split("×")[0])
    assert rows > 1
    products = 2 * math.prod(network.graph.initializer[0].dims) * math.prod(layer.args[-1].type.shape[1:3])
    assert layer.flops == products


@pytest.mark.parametrize(
    ("size", "kernel", "attributes"),
    [((9, 20), (3, 20), {"group": 2}), ((9, 20), (3, 19), {}), ((9, 20), (3, 20), {"pads": [0, 1, 0, 1]})],
)
@jointly(kernels="fastest")
def test_what_is_no_column_stays(size, kernel, attributes):
    x = normal(1, 4, *size)
    yield from check(conv(x, *kernel, **attributes), x)
