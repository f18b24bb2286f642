"""Generic kernels stay inside their tensors, and what the machine leaves open is defined."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from flexcomp.device.target import resolve_target
from flexcomp.schedules.generic import guard
from flexcomp.schedules.generic import schedule as generic

TARGET = resolve_target("native")


def compiled(make, *inputs: np.ndarray):
    """The one kernel of a Relax expression, as the generic scheduler makes it; returns its result."""
    params = [relax.Var(f"p{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(inputs)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(make(*params))
        builder.emit_func_output(result)
    mod = builder.get()
    out_type = mod["main"].ret_ty
    for change in ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR"):
        mod = getattr(relax.transform, change)()(mod)
    (func,) = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    scheduled = generic.schedule(func, TARGET)
    module = tvm.tirx.build(tvm.IRModule({"f": scheduled.func.with_attr("global_symbol", "f")}), target=TARGET.tvm_target)
    out = tvm.runtime.empty(tuple(int(e) for e in out_type.shape.values), str(out_type.dtype))
    module["f"](*map(tvm.runtime.tensor, inputs), out, *(tvm.runtime.empty(s.shape, s.dtype) for s in scheduled.scratch))
    return out.numpy()


TABLE = np.arange(24, dtype="f4").reshape(6, 4)
WILD = np.array([3, 2**40, -(2**63), 6, -1, 2**63 - 1])
NEAR = [3, 5, 0, 5, 0, 5]


def test_a_gather_stays_inside():
    found = compiled(lambda x, i: op.take(x, i, axis=0, mode="fast"), TABLE, WILD)
    np.testing.assert_array_equal(found, TABLE[NEAR])


def test_a_scatter_stays_inside():
    updates = np.full((6, 4), 7, "f4")
    found = compiled(lambda x, i, u: op.scatter_nd(x, i, u), TABLE, WILD.reshape(6, 1), updates)
    assert set(found[[0, 3, 5]].ravel()) == {7} and np.array_equal(found[[1, 2, 4]], TABLE[[1, 2, 4]])


def test_vectors_of_rows_stay_vectors():
    """Only what depends on a value is clamped."""
    params = [relax.Var("x", relax.TensorType((6, 64), "float32")), relax.Var("i", relax.TensorType((3,), "int64"))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(op.take(*params, axis=0, mode="fast"))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    (func,) = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    text = guard.clamp_indices(func).script()
    assert text.count("T.max(T.min(") == 1 and "T.vectorized" in generic.schedule(func, TARGET).func.script()


@pytest.mark.parametrize("source", ["f4", "f8"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "int64"])
def test_floats_become_the_nearest_integer_there_is(source, target):
    limits = np.iinfo(target)
    values = np.array([1.75, -1.75, 0.0, np.inf, -np.inf, 1e30, -1e30, np.nan, 100.0] * 5, source)
    found = compiled(lambda x: op.astype(x, target), values).reshape(5, -1)
    assert (found == found[0]).all()
    near = found[0].astype("f8")
    below = max(0, limits.min) if limits.min == 0 else -1
    assert list(near[[0, 1, 2, 7, 8]]) == [1, below, 0, 0, 100]
    for at, limit in ((3, limits.max), (4, limits.min), (5, limits.max), (6, limits.min)):
        assert abs(near[at] - limit) <= abs(limit) * 2.0**-22


def test_unsigned_divisions_by_zero():
    a, b = np.array([7, 9, 0], "u4"), np.array([0, 2, 0], "u4")
    assert list(compiled(op.floor_divide, a, b)) == [0, 4, 0]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_no_division_ends_the_process(dtype):
    least = np.iinfo(dtype).min
    a = np.array([7, -7, least, least, 9, 0], dtype)
    b = np.array([0, 0, -1, 0, -1, 0], dtype)
    assert list(compiled(op.floor_divide, a, b)) == [0, 0, least, 0, -9, 0]
    assert list(compiled(op.floor_mod, a, b)) == [0, 0, 0, 0, 0, 0]
