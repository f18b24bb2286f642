"""The demo's networks: what `randomize` promises."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from flexcomp.demo import compare, zoo
from flexcomp.errors import InputError

SMALL = ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121", "resnet50")


@pytest.mark.parametrize("name", SMALL)
def test_outputs_tell_inputs_apart(name):
    model = zoo.load(name)
    onnx.checker.check_model(model)
    first, second = (compare.reference(model, zoo.example_input(model, seed)) for seed in (0, 1))
    assert compare.relative_error(first, second) > 0.10


def test_seeds_decide():
    same = [zoo.load("squeezenet", seed=3).SerializeToString(deterministic=True) for _ in range(2)]
    other = zoo.load("squeezenet", seed=4).SerializeToString(deterministic=True)
    assert same[0] == same[1] != other


def test_the_shipped_model_is_not_changed():
    zoo.load("squeezenet", seed=1)
    constants = {n.op_type for n in zoo.load("squeezenet").graph.node}
    assert "ConstantOfShape" not in constants
    assert all(i.name == "data_0" for i in zoo.load("squeezenet").graph.input)


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="there is no network 'lenet': it is one of vgg19"):
        zoo.load("lenet")


@pytest.mark.parametrize("actual, expected", [([1, 2], [1, np.nan]), ([1, np.nan], [1, 2]), ([1, 2], [1, np.inf]), ([1], [1, 2])])
def test_what_is_no_number_agrees_with_nothing(actual, expected):
    assert compare.relative_error({"y": np.float32(actual)}, {"y": np.float32(expected)}) == float("inf")
