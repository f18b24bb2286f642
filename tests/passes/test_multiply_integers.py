"""Products of integers whose zero point and scale are computed: integers are multiplied, and results stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from flexcomp.compiler.weights import evaluate
from flexcomp.passes import MultiplyIntegers
from flexcomp.passes.ir import operator, values_of
from flexcomp.passes.weights import function_of
from flexcomp.schedules.tiles.tile import VectorUnit

UNIT = VectorUnit(8, 16, dots="vpdpbusd")


def network(quantised: str, *, is_scaled: bool, flat: bool):
    """q, zero and a scale are inputs; w is a weight."""
    builder = relax.BlockBuilder()
    extents = (2, 3, 20) if flat else (6, 20)
    q, zero, scale, w = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in (
            ("q", extents, quantised), ("zero", (), "float32"), ("scale", (1,), "float32"), ("w", (20, 16), "float32")
        )
    )  # fmt: skip
    with builder.function("main", [q, zero, scale, w], attrs={"num_input": 3}):
        with builder.dataflow():
            value = builder.emit(op.subtract(builder.emit(op.astype(q, "float32")), zero))
            if is_scaled:
                value = builder.emit(op.multiply(value, scale))
            if flat:
                value = builder.emit(op.reshape(value, (6, 20)))
            result = builder.emit_output(op.matmul(value, w))
        builder.emit_func_output(result)
    return builder.get()


def product(mod):
    """The values of main, and the integers that are multiplied."""
    values = values_of(mod["main"])
    (found,) = [v for v in values.values() if operator(v) == "matmul" and v.args[0].ty.shape.values[0] == 6]
    return values, found


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("quantised", ["uint8", "int8"])
def test_results_stay_the_same(quantised, is_scaled, flat):
    mod = network(quantised, is_scaled=is_scaled, flat=flat)
    changed = MultiplyIntegers(UNIT, lambda names, weight: "int8")(mod)
    values, found = product(changed)
    left = found.args[0]
    while operator(values[left]) == "reshape":
        left = values[left].args[0]
    assert operator(values[left]) == "astype"
    rng = np.random.default_rng(5)
    low, high = (0, 255) if quantised == "uint8" else (-128, 127)
    q = rng.integers(low, high + 1, (2, 3, 20) if flat else (6, 20)).astype(quantised)
    w = (rng.integers(-127, 128, (20, 16)) * rng.uniform(0.01, 0.02, 16).astype("f4")).astype("f4")
    given = [q, np.float32(7), np.float32([0.03]), w]
    wanted, got = (evaluate(_of_weights(one), given)[0] for one in (mod, changed))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * abs(wanted).max())


def _of_weights(mod):
    main = mod["main"]
    return function_of(main.with_attr("num_input", 0), values_of(main), main.body.body)


@pytest.mark.parametrize("case", ["no integers", "other weights", "no such processor"])
def test_other_products_are_left_alone(case):
    mod = network("int32" if case == "no integers" else "uint8", is_scaled=True, flat=False)
    unit = VectorUnit(8, 16) if case == "no such processor" else UNIT
    kind = "float16" if case == "other weights" else "int8"
    values, found = product(MultiplyIntegers(unit, lambda names, weight: kind)(mod))
    assert operator(values[found.args[0]]) == "multiply"
