"""Kernels on tensors of float16 give what they give on the same numbers in float32, rounded once."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from flexcomp.schedules.operators import rowwise
from flexcomp.schedules.operators.half_storage import with_half_storage
from flexcomp.schedules.operators.rowwise import RowSpec
from tests.schedules.kernels import call, library


def test_a_norm_of_narrow_rows():
    kernel = rowwise.kernel(RowSpec("layer_norm", (5, 21), epsilon=1e-5, has_scale=True, has_bias=True), 8)
    both = library({"wide": kernel, "half": with_half_storage(kernel, [0, 3], "float16")})
    rng = np.random.default_rng(0)
    x, scale, bias = rng.standard_normal((5, 21)).astype("f2"), rng.random(21, "f4"), rng.random(21, "f4")
    wanted = call(both["wide"], x.astype("f4"), scale, bias, out=(5, 21))
    found = call(both["half"], x, scale, bias, out=(5, 21), dtype="float16")
    np.testing.assert_array_equal(found, wanted.astype("f2"))


def test_a_kernel_that_needs_an_address_is_left_alone():
    @T.prim_func
    def kernel(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in range(64):
            T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch", T.address_of(x[i]), 0, 3, 1))
            y[i] = x[i]

    assert with_half_storage(kernel, [0], "float16") is None
