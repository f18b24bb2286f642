"""The expansions against double precision: wide ranges, special values, scalars and vectors."""

import math

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.schedules.tiles import vector_math

COUNT = 1 << 15
LANES = (1, 4, 16)
BOUNDS = {"exp": 1e-7, "sigmoid": 2e-7, "tanh": 3e-7, "erf": 3e-7, "log": 1e-7}
EXACT = {
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "log": np.log,
}


def elementwise(name, function, lanes, dtype="float32"):
    with IRBuilder() as builder, T.prim_func():
        T.func_name(name)
        T.func_attr({"tirx.noalias": True})
        source = T.arg("source", T.buffer((COUNT,), "float32"))
        target = T.arg("target", T.buffer((COUNT,), dtype))
        with T.serial(0, COUNT // lanes) as i:
            index = i if lanes == 1 else T.ramp(i * lanes, 1, lanes)
            T.buffer_store(target, function(source[index]), [index])
    return builder.get()


@pytest.fixture(scope="module")
def library():
    functions = {
        f"{name}_{lanes}": elementwise(f"{name}_{lanes}", getattr(vector_math, name), lanes)
        for name in BOUNDS
        for lanes in LANES
    }
    for name, power in (("square", 2.0), ("cube", 3.0), ("root", 0.5), ("inverse", -1.0), ("other", 1.7)):
        function = elementwise(name, lambda x, p=power: tirx.pow(x, vector_math.constant(p, x)), 4)
        functions[name] = vector_math.expand(function)
    functions["expanded"] = vector_math.expand(elementwise("expanded", lambda x: tirx.exp(tirx.tanh(x)), 16))
    functions["to_integer"] = elementwise("to_integer", lambda x: tirx.Cast("int32", vector_math.exp(x)), 1, "int32")
    return tvm.tirx.build(tvm.IRModule(functions), target=tvm.target.Target("llvm"))


def run(function, x, dtype="float32"):
    result = tvm.runtime.tensor(np.zeros(COUNT, dtype))
    function(tvm.runtime.tensor(x), result)
    return result.numpy()


def arguments(name):
    rng = np.random.default_rng(0)
    quarter = COUNT // 4
    largest = np.finfo("float32").max
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.7, largest, -largest]
    wide = np.minimum(np.exp(rng.normal(size=quarter - len(special)) * 20), largest)
    x = np.concatenate(
        [
            np.linspace(-110, 95, quarter),
            rng.normal(size=quarter),
            rng.normal(size=quarter) * 10,
            wide,
            special,
        ]
    )
    if name == "log":
        x = np.where((x < 0) & np.isfinite(x) & (np.arange(COUNT) > 100), -x, x)
    return x.astype("float32")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", BOUNDS)
def test_accuracy(library, name, lanes):
    x = arguments(name)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype("float64"))
        rounded = exact.astype("float32")
    result = run(library[f"{name}_{lanes}"], x)
    assert np.array_equal(np.isnan(result), np.isnan(rounded))
    assert np.array_equal(result[np.isinf(rounded)], rounded[np.isinf(rounded)])
    tiny = np.finfo("float32").tiny
    normal = np.isfinite(rounded) & (np.abs(exact) > tiny)
    assert np.abs(result[normal] / exact[normal] - 1).max() <= BOUNDS[name]
    small = np.isfinite(rounded) & ~normal
    assert np.abs(result[small] - exact[small]).max(initial=0) <= 5e-39 if name == "sigmoid" else 3e-45


def test_tanh_and_erf_stay_within_one(library):
    for name in ("tanh", "erf"):
        assert np.abs(run(library[f"{name}_16"], np.linspace(-20, 20, COUNT, dtype="float32"))).max() == 1.0


def test_constant_powers(library):
    x = np.linspace(0.1, 9.0, COUNT, dtype="float32")
    for name, power in (("square", 2.0), ("cube", 3.0), ("root", 0.5), ("inverse", -1.0), ("other", 1.7)):
        np.testing.assert_allclose(run(library[name], x), x.astype("float64") ** power, rtol=3e-7)


def test_an_integer_of_an_exponential(library):
    x = np.linspace(-5, 5, COUNT, dtype="float32")
    found = run(library["to_integer"], x, "int32")
    assert (np.abs(found - np.exp(x.astype("float64"))) < 1).all()


def test_expand_leaves_no_call(library):
    x = np.linspace(-5, 5, COUNT, dtype="float32")
    np.testing.assert_allclose(run(library["expanded"], x), np.exp(np.tanh(x.astype("float64"))), rtol=4e-7)
    function = vector_math.expand(elementwise("f", lambda x: tirx.exp(tirx.erf(x)) + tirx.sigmoid(x), 16))
    assert "exp(" not in function.script() and "erf(" not in function.script()
    assert "sigmoid(" not in function.script()
