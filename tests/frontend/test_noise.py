"""Random numbers that make no difference, as exporters of speech leave them in."""

import numpy as np
import pytest

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend import load_model

from ..passes.reference import evaluate
from .imported import compare
from .models import model, node, random

X = {"m": (1, 4, 6), "s": (1, 4, 6)}


def test_noise_of_a_scale_of_zero():
    """As VITS: z = m + randn_like(m) * exp(s) * noise_scale."""
    nodes = [
        node("RandomNormalLike", "m", "r"), node("Exp", "s", "e"), node("Mul", "r e", "a"), node("Mul", "a scale", "b"),
        node("Add", "m b", "y"),
    ]  # fmt: skip
    assert compare(model(nodes, X, ["y"], {"scale": np.float32(0)})).input_names == ("m", "s")
    with pytest.raises(UnsupportedModelError, match="RandomNormalLike"):
        load_model(model(nodes, X, ["y"], {"scale": np.float32(0.5)}))


def test_noise_in_another_shape():
    nodes = [
        node("RandomUniform", "", "r", shape=[1, 24, 2]), node("Slice", "r zero two last", "p"), node("Mul", "none p", "q"),
        node("Reshape", "q shape", "b"), node("Shape", "r", "n"), node("Add", "m b", "a"), node("Add", "a s", "y"),
    ]  # fmt: skip
    nodes[0].ClearField("input")
    weights = {"zero": np.int64([0]), "two": np.int64([1]), "last": np.int64([2]), "none": np.zeros((24, 1), "f4")}
    compare(model(nodes, X, ["y"], weights | {"shape": np.int64([1, 4, 6])}))


@pytest.mark.parametrize(
    ("kind", "attributes", "value"),
    [("RandomNormalLike", {"mean": 1.5, "scale": 0.0}, 1.5), ("RandomUniformLike", {"low": 2.0, "high": 2.0}, 2.0)],
)
def test_noise_that_is_always_the_same(kind, attributes, value):
    proto = model([node(kind, "m", "r", **attributes), node("Mul", "r s", "y")], X, ["y"])
    imported = load_model(proto)
    given = [random(1, 4, 6), random(1, 4, 6, seed=1)]
    np.testing.assert_array_equal(evaluate(imported.mod, [*given, *imported.weights])[0], value * given[1])


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Mul", "r zero", "b"), node("Add", "m r", "y")],
        [node("Exp", "r", "e"), node("Mul", "e zero", "b"), node("Add", "m b", "y")],
        [node("Div", "m r", "e"), node("Mul", "e zero", "b"), node("Add", "m b", "y")],
        [node("Mul", "r zero", "b"), node("Add", "m b", "y"), node("Identity", "r", "z")],
    ],
)
def test_noise_that_counts_is_refused(nodes):
    outputs = [name for one in nodes for name in one.output if name in "yz"]
    proto = model([node("RandomNormalLike", "m", "r"), *nodes], X, outputs, {"zero": np.float32(0)})
    with pytest.raises(UnsupportedModelError, match="RandomNormalLike"):
        load_model(proto)
