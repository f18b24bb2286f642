"""Inputs that broadcast to another input, and may not make it larger: slopes, biases and scales."""

import re

import numpy as np
import pytest

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend import load_model
from tests.jointly import jointly

from .agreement import agree
from .networks import model, node


def normal(*shape):
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype("f4")


@jointly(kernels="fastest")
def test_scales_of_norms_broadcast_to_the_whole_operand():
    x = normal(2, 3, 4)
    layer, rms = [(3, 4), (3, 1), (2, 1, 4), (2, 3, 4)], [(1,), (), (3, 1), (2, 3, 4)]
    weights = {f"layer{i}": normal(*shape) for i, shape in enumerate(layer)} | {f"rms{i}": normal(*s) for i, s in enumerate(rms)}
    weights |= {"row": normal(4), "square": normal(3, 1), "rows": normal(3, 4)}
    nodes = [node("LayerNormalization", "x", f"layer{i}", out=f"l{i}") for i in range(len(layer))]
    nodes += [
        node("LayerNormalization", "x", "row", "rows", out="bias of rows"),
        node("LayerNormalization", "x", "rows", "row", out="scale of rows"),
        node("LayerNormalization", "x", "layer3", "rows", out="of all", axis=1),
    ]
    nodes += [node("RMSNormalization", "x", f"rms{i}", out=f"r{i}") for i in range(len(rms))]
    nodes += [node("RMSNormalization", "x", "square", out="square of rows", axis=1), node("RMSNormalization", "x", "row", axis=0)]
    network = model(nodes, {"x": x.shape}, [each.output[0] for each in nodes], weights, opset=23)
    yield from agree(network, rtol=1e-4, atol=1e-5, x=x)


REFUSED = {
    "PRelu": [((3, 1, 1, 2), (3, 2, 1, 1)), ((1,), (3,)), ((2, 1), (3,)), ((2, 3), (1, 1, 1, 1)), ((2, 3), (2,))],
    "Gemm": [((1, 4), (4, 5), (3, 5)), ((3, 4), (4, 1), (3, 5)), ((3, 4), (4, 5), (1, 1, 5))],
    "Conv": [((1, 2, 4), (1, 2, 1), (3,))],
    "ConvTranspose": [((1, 2, 4), (2, 1, 1), (3,))],
    "InstanceNormalization": [((2, 1, 4), (3,), (3,))],
    "LayerNormalization": [((2, 1, 4), (3, 4)), ((2, 3, 4), (1, 1, 1, 4)), ((2, 3, 4), (4,), (5,))],
    "RMSNormalization": [((2, 3, 1), (4,)), ((2, 3, 4), (5, 2, 3, 4))],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_one_that_makes_the_operand_larger_is_refused_by_node(kind):
    for shapes in REFUSED[kind]:
        names = [f"v{i}" for i in range(len(shapes))]
        weights = {name: normal(*shape) for name, shape in zip(names[1:], shapes[1:], strict=True)}
        network = model([node(kind, *names, name="large")], {"v0": shapes[0]}, ["y"], weights, opset=23)
        with pytest.raises(UnsupportedModelError, match=re.escape(f"node 'large' ({kind}): its ") + ".*correct"):
            load_model(network)


def test_an_old_slope_that_fits_no_channel_is_refused_by_node():
    network = model([node("PRelu", "x", "s", name="old")], {"x": (2, 3)}, ["y"], {"s": normal(5)}, opset=6)
    with pytest.raises(UnsupportedModelError, match=r"node 'old' \(PRelu\): its slope has 5 values, its operand \[2, 3\]"):
        load_model(network)
