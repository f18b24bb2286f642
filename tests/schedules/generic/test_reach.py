"""Indices that follow from loops and attributes stay inside: proved, or clamped."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from flexcomp.schedules.generic import guard

N = 6


def clamped(shape, value, source=(N,)) -> str:
    """The guarded function that computes `value(x, i, …)` of a source."""
    x = te.placeholder(source, name="x")
    func = te.create_prim_func([x, te.compute(shape, lambda *i: value(x, *i), name="y")])
    return guard.clamp_indices(func)


def is_clamped(*args) -> bool:
    x = clamped(*args).script()
    return "T.min(" in x or "T.max(" in x


CASES = {
    "plain": ((N,), lambda x, i: x[i], False),
    "past_the_end": ((N,), lambda x, i: x[i + 1], True),
    "before_the_start": ((N,), lambda x, i: x[i - 1], True),
    "backwards": ((N,), lambda x, i: x[N - 1 - i], False),
    "guarded": ((N + 4,), lambda x, i: te.if_then_else(te.all(i >= 2, i < N + 2), x[i - 2], 0.0), False),
    "guarded_too_late": ((N + 4,), lambda x, i: te.if_then_else(te.all(i >= 1, i < N + 2), x[i - 2], 0.0), True),
    "guarded_the_other_way": ((N + 1,), lambda x, i: te.if_then_else(i == N, 0.0, x[i]), False),
    "selected": ((N + 4,), lambda x, i: tirx.Select(te.all(i >= 2, i < N + 2), x[i - 2], tirx.const(0.0, "float32")), True),
    "reflected": ((N + 5,), lambda x, i: x[te.if_then_else(i < N, i, 2 * (N - 1) - i)], False),
    "reflected_too_far": ((2 * N,), lambda x, i: x[te.if_then_else(i < N, i, 2 * (N - 1) - i)], True),
    "every_third": ((4, 3), lambda x, i, j: te.if_then_else(i * 2 + j < N, x[i * 2 + j], 0.0), False),
    "remainder": ((40,), lambda x, i: x[(i * 7 + 3) % N], False),
    "remainder_of_less": ((40,), lambda x, i: x[(i - 3) % N], False),
    "condition_on_another_loop": ((N, 2), lambda x, i, j: te.if_then_else(i + j < N, x[i + j], 0.0), False),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_clamped(name):
    shape, value, expected = CASES[name]
    assert is_clamped(shape, value) == expected


def test_a_clamped_kernel_reads_the_nearest():
    func = clamped((N + 4,), lambda x, i: x[i - 2]).with_attr("global_symbol", "f")
    kernel = tvm.tirx.build(tvm.IRModule({"f": func}), target=tvm.target.Target({"kind": "llvm"}))
    x, y = np.arange(N, dtype="f4"), tvm.runtime.empty((N + 4,), "float32")
    kernel["f"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), [0, 0, 0, 1, 2, 3, 4, 5, 5, 5])
