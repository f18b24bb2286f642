"""Elementwise operators at the edges of their types, against ONNX Runtime or, where it has none, ONNX's own implementation."""

import numpy as np
import pytest
from onnx import TensorProto

from tests.jointly import jointly

from .agreement import agree
from .networks import model, node

INF, NAN = np.inf, np.nan
TYPES = {"f4": TensorProto.FLOAT, "i4": TensorProto.INT32, "i8": TensorProto.INT64, "bool": TensorProto.BOOL}
FLOATS = np.float32(
    [0, 1, -1, 0.5, -0.5, 1.5, -2.5, INF, -INF, NAN, 3.4e38, -3.4e38, 1e-38, 2, -3, 7, -7, 89.2, -89.2, 1e-3, 1e10, 0.1]
)  # fmt: skip
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 7, -7, 100, -100, 5]


def pairs(first, second):
    return [a.ravel() for a in np.meshgrid(first, second)]


def unary(kind, opset=20, to=TensorProto.FLOAT, **attributes):
    return model([node(kind, "x", **attributes)], {"x": FLOATS.shape}, ["y"], types={"y": to}, opset=opset)


def binary(kind, a, b, out, opset=20, **attributes):
    types = {"x": TYPES[a.dtype.str[1:] if a.dtype != bool else "bool"], "y": TYPES[out]}
    types["z"] = TYPES[b.dtype.str[1:] if b.dtype != bool else "bool"]
    return model([node(kind, "x", "z", **attributes)], {"x": a.shape, "z": b.shape}, ["y"], types=types, opset=opset)


UNARY = {
    **{kind.lower(): unary(kind) for kind in ("Cosh", "Sinh", "Elu", "Selu", "Celu", "ThresholdedRelu")},
    "celu_alpha": unary("Celu", alpha=2.5),
    "is_inf": unary("IsInf", to=TensorProto.BOOL),
    "is_positive_inf": unary("IsInf", to=TensorProto.BOOL, detect_negative=0),
    "is_negative_inf": unary("IsInf", to=TensorProto.BOOL, detect_positive=0),
    "is_no_inf": unary("IsInf", to=TensorProto.BOOL, detect_positive=0, detect_negative=0),
    "clip_6": unary("Clip", opset=6, min=-0.5, max=2.0),
}


@pytest.mark.parametrize("name", UNARY)
@jointly(kernels="fastest")
def test_one_operand(name):
    yield from agree(UNARY[name], x=FLOATS)


@jointly(kernels="fastest")
def test_sinh_keeps_small_arguments():
    x = np.float32(np.geomspace(1e-7, 88, FLOATS.size))
    found = (yield unary("Sinh"), {"x": x})["y"]
    np.testing.assert_allclose(found, np.sinh(x.astype("f8")), rtol=1e-6)


@jointly(kernels="fastest")
def test_nan_has_no_sign():
    found = (yield unary("Sign"), {"x": FLOATS})["y"]
    np.testing.assert_array_equal(found, np.sign(FLOATS))


@pytest.mark.parametrize(("fmod", "opset"), [(1, 20), (0, 20)])
@jointly(kernels="fastest")
def test_what_is_left_of_a_division(fmod, opset):
    a, b = pairs(FLOATS, FLOATS)
    found = (yield binary("Mod", a, b, "f4", opset, fmod=fmod), {"x": a, "z": b})["y"]
    with np.errstate(all="ignore"):
        want = np.fmod(a, b) if fmod else np.mod(a, b)
        if not fmod:  # NumPy of some versions gives NaN, C and Python the divisor
            other = np.isinf(b) & np.isfinite(a) & (a != 0) & (np.sign(a) != np.sign(b))
            want = np.where(other, b, np.where(np.isinf(b) & np.isfinite(a), a, want))
    np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize(("operator", "attributes"), [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})], ids=str)
@jointly(kernels="fastest")
def test_integer_division(operator, attributes, kind):
    a, b = pairs(np.array(INTEGERS, kind), np.array([n for n in INTEGERS if n], kind))
    yield from agree(binary(operator, a, b, kind, **attributes), x=a, z=b)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@jointly(kernels="fastest")
def test_integer_division_that_has_no_result_does_not_end_the_process(operator):
    lowest = np.iinfo("i4").min
    a, b = np.array([7, 0, lowest, lowest, -9], "i4"), np.array([0, 0, -1, 0, 2], "i4")
    found = (yield binary(operator, a, b, "i4"), {"x": a, "z": b})["y"]
    assert found.tolist() == ([0, 0, lowest, 0, -4] if operator == "Div" else [0, 0, 0, 0, 1])


@pytest.mark.parametrize("exponent", ["i4", "i8", "f4"])
@pytest.mark.parametrize("base", ["i4", "i8", "f4"])
@jointly(kernels="fastest")
def test_powers_have_the_type_of_their_base(base, exponent):
    a, b = pairs(np.array([1, 2, 3, -2, 5, 9], base), np.array([0, 1, 2, 3, 4], exponent))
    yield from agree(binary("Pow", a, b, base), x=a, z=b)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5])
@jointly(kernels="fastest")
def test_powers_of_integers_with_a_known_exponent(exponent):
    x = np.array([0, 1, -3, 12], "i8")
    types = {"x": TensorProto.INT64, "y": TensorProto.INT64}
    network = model([node("Pow", "x", "e")], {"x": (4,)}, ["y"], {"e": np.int64(exponent)}, types)
    np.testing.assert_array_equal((yield network, {"x": x})["y"], x**exponent)


@jointly(kernels="fastest")
def test_equal_booleans():
    a, b = pairs(np.array([False, True]), np.array([False, True]))
    yield from agree(binary("Equal", a, b, "bool"), x=a, z=b)


@pytest.mark.parametrize("bounds", [(-0.5, 2), (3, 2), (NAN, 2), (0, NAN), (-INF, 2), (INF, 2), (0, -INF), (0, INF)], ids=str)
@pytest.mark.parametrize("is_computed", [False, True])
@jointly(kernels="fastest")
def test_clip(bounds, is_computed):
    """ONNX: the upper bound has the last word. A NaN bound is none, and NaN stays NaN, as in ONNX Runtime."""
    low, high = map(np.float32, bounds)
    weights = {} if is_computed else {"low": low, "high": high}
    inputs = {"x": FLOATS.shape} | ({"low": (), "high": ()} if is_computed else {})
    network = model([node("Clip", "x", "low", "high")], inputs, ["y"], weights)
    found = (yield network, {"x": FLOATS} | ({"low": low, "high": high} if is_computed else {}))["y"]
    want = np.where(low > FLOATS, low, FLOATS)
    np.testing.assert_array_equal(found, np.where(want > high, high, want))


@pytest.mark.parametrize(("low", "high"), [(-2, 3), (5, 1), (None, 3), (-2, None)])
@jointly(kernels="fastest")
def test_clip_of_integers(low, high):
    x = np.array(INTEGERS, "i8")
    given = {"low": low, "high": high}
    network = model(
        [node("Clip", "x", *("" if value is None else name for name, value in given.items()))], {"x": x.shape}, ["y"],
        {name: np.int64(value) for name, value in given.items() if value is not None},
        {"x": TensorProto.INT64, "y": TensorProto.INT64},
    )  # fmt: skip
    yield from agree(network, x=x)


@pytest.mark.parametrize("opset", [6, 7])
@jointly(kernels="fastest")
def test_slopes_of_old_prelu(opset):
    """A slope belongs to a channel before opset 7, and is broadcast since."""
    slope = np.float32([0.1, 0.2, 0.3])
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 3)).astype("f4")
    network = model([node("PRelu", "x", "slope")], {"x": x.shape}, ["y"], {"slope": slope}, opset=opset)
    found = (yield network, {"x": x})["y"]
    by_channel = slope[:, None, None] if opset < 7 else slope
    np.testing.assert_allclose(found, np.where(x < 0, by_channel * x, x), rtol=1e-6)
