"""Widen: Relax modules of 16-bit floats compute in float32."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from flexcomp.passes import Widen

from .networks import calls

op = relax.op


def module(dtype: str, *, cast: bool = False) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), dtype))
    w = relax.Var("w", relax.TensorType((8, 8), dtype))
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(op.nn.relu(builder.emit(op.matmul(x, w, out_dtype=dtype))))
            if cast:
                y = builder.emit(op.astype(builder.emit(op.astype(y, "float16")), dtype))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_everything_between_the_borders_is_wide(dtype):
    before = module(dtype)
    text = before.script()
    after = Widen()(before)
    assert before.script() == text, "the given module is left alone"
    relax.analysis.well_formed(after)
    assert sorted(calls(after)) == sorted(["relax.astype", "relax.astype", "relax.matmul", "relax.nn.relu", "relax.astype"])
    main = after["main"]
    assert [str(p.ty.dtype) for p in main.params] == [dtype, dtype] and str(main.ret_ty.dtype) == dtype
    for block in main.body.blocks:
        for binding in block.bindings:
            narrow = str(binding.var.ty.dtype) != "float32"
            assert not narrow or binding.value.op.name == "relax.astype"


def test_what_is_wide_stays():
    before = module("float32")
    tvm.ir.assert_structural_equal(Widen()(before), before)


def test_conversions_stay():
    after = Widen()(module("float32", cast=True))
    assert calls(after) == ["relax.matmul", "relax.nn.relu", "relax.astype", "relax.astype"]
