"""What fused operators are called."""

import math

import pytest

from flexcomp.schedules.tiles.epilogue import OPERATORS
from flexcomp.schedules.tiles.epilogue_names import _NUMBERS, describe

X, SUM = ("acc",), ("add", ("acc",), ("tensor", 0))


def number(value):
    return ("const", value)


def times(*factors):
    first, *others = factors
    for other in others:
        first = ("multiply", first, other)
    return first


def error_function(x):
    return ("add", ("erf", ("divide", x, number(1.4142135381698608))), number(1.0))


def tangent(x):
    inner = times(("add", x, times(number(0.044714998453855515), times(x, x, x))), number(0.7978845834732056))
    return ("add", number(1.0), ("tanh", inner))


@pytest.mark.parametrize("x, before", [(X, ""), (SUM, "add+"), (("relu", X), "relu+")])
@pytest.mark.parametrize(
    "make, name",
    [
        (lambda x: times(times(x, error_function(x)), number(0.5)), "gelu"),
        (lambda x: times(x, times(number(0.5), error_function(x))), "gelu"),
        (lambda x: times(times(x, number(0.5)), tangent(x)), "gelu_tanh"),
        (lambda x: times(x, ("sigmoid", x)), "silu"),
        (lambda x: times(x, ("sigmoid", times(x, number(1.702)))), "quick_gelu"),
        (lambda x: times(x, ("divide", ("clip", ("add", x, number(3.0)), number(0.0), number(6.0)), number(6.0))), "hardswish"),
        (lambda x: times(("clip", ("add", x, number(3.0)), number(0.0), number(6.0)), number(1 / 6)), "hardsigmoid"),
    ],
)
def test_activations_that_are_spelt_out_have_their_names(x, before, make, name):
    assert describe(make(x)) == before + name
    assert describe(("add", make(x), ("tensor", 0))) == f"{before}{name}+add"
    assert describe(("tanh", make(x))) == f"{before}{name}+tanh"


@pytest.mark.parametrize(
    "epilogue, name",
    [
        (X, ""),
        (("relu", SUM), "add+relu"),
        (("gelu", X), "gelu"),
        (times(X, ("sigmoid", ("tensor", 0))), "sigmoid+multiply"),
        (times(X, ("sigmoid", ("channel", 0))), "sigmoid+multiply"),
        (times(X, number(0.5), error_function(("tensor", 0))), "multiply+divide+erf+add+multiply"),
        (times(X, number(0.6), error_function(X)), "multiply+divide+erf+add+multiply"),
        (times(("add", X, number(3.0)), number(1 / 6)), "add+multiply"),
        (("exp", times(X, number(math.inf))), "multiply+exp"),
    ],
)
def test_what_is_no_such_activation_is_called_by_its_operators(epilogue, name):
    assert describe(epilogue) == name


def test_operators_that_are_computed_are_operators():
    assert set(_NUMBERS) <= set(OPERATORS)
