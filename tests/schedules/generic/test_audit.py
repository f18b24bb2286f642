"""Scratch as arguments, and what kernels still ask of the runtime."""

import numpy as np
import pytest
import tvm
from tvm import te

from flexcomp.schedules.generic import audit, scratch

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})


def reversed_sum(extent):
    """out[i] = w[i] + w[extent - 1 - i] with w = 2 a, an intermediate of `extent` floats."""
    a = te.placeholder((extent,), name="a")
    w = te.compute((extent,), lambda i: a[i] * 2.0, name="w")
    out = te.compute((extent,), lambda i: w[i] + w[extent - 1 - i], name="out")
    return te.create_prim_func([a, out])


def test_lift_turns_intermediates_into_arguments():
    func, lifted = scratch.lift(reversed_sum(1024))
    assert lifted == (scratch.Scratch((1024,), "float32"),)
    assert lifted[0].nbytes == 4096
    assert len(func.params) == 3
    kernel = tvm.tirx.build(tvm.IRModule({"f": func.with_attr("global_symbol", "f")}), target=TARGET)
    a = np.arange(1024, dtype="float32")
    out, w = (tvm.runtime.tensor(np.zeros(1024, "float32")) for _ in range(2))
    kernel["f"](tvm.runtime.tensor(a), out, w)
    assert np.array_equal(out.numpy(), 2 * (a + a[::-1]))
    assert np.array_equal(w.numpy(), 2 * a)


def test_lift_leaves_functions_without_intermediates():
    a = te.placeholder((8,), name="a")
    func = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0)])
    lifted, none = scratch.lift(func)
    assert none == () and lifted.same_as(func)


@pytest.mark.parametrize(("extent", "expected"), [(255, 0), (256, 1024), (1000, 4032)])
def test_hidden_bytes(extent, expected):
    func = reversed_sum(extent)
    assert audit.hidden_bytes(func, TARGET) == expected
    assert audit.hidden_bytes(scratch.lift(func)[0], TARGET) == 0


def test_check_names_the_buffer():
    audit.check(reversed_sum(16 * 1024), TARGET)
    with pytest.raises(AssertionError) as caught:
        audit.check(reversed_sum(16 * 1024 + 16), TARGET)
    assert str(caught.value) == (
        "a kernel requests 65600 bytes of workspace per thread, the runtime has 65536; "
        "the largest buffer is float32[16400]: pass it as scratch instead"
    )
