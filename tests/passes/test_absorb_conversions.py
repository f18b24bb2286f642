"""Kernels take the narrow tensors around them; those that know their types do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import relax

from flexcomp.passes import AbsorbConversions, LowerOperators
from flexcomp.passes import attributes as names
from flexcomp.passes.ir import bindings, dtype, operator
from flexcomp.schedules.tiles.tile import VectorUnit

NEON = VectorUnit(4, 32, by_lane=True)
HALF = replace(NEON, half="float16")
SHAPE = (6, 40)


def network(build):
    """main(h), float16; `build(emit, x)` gives the result of its float32."""
    builder = relax.BlockBuilder()
    h = relax.Var("h", relax.TensorType(SHAPE, "float16"))
    with builder.function("main", [h], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, builder.emit(relax.op.astype(h, "float32"))))
        builder.emit_func_output(result)
    return builder.get()


def steps(mod) -> list[tuple[str, str]]:
    return [(operator(b.value), dtype(b.var)) for b in bindings(mod["main"])]


def kernel_of(mod):
    (func,) = (mod[b.value.args[0]] for b in bindings(mod["main"]) if operator(b.value) == "call_tir")
    return func


def absorbed(apply, build, unit=HALF):
    return apply(AbsorbConversions(unit), LowerOperators(HALF)(network(build)))


def half(emit, x):
    return relax.op.astype(x, "float16")


def test_a_kernel_between_conversions(apply):
    mod = absorbed(apply, lambda emit, x: half(emit, emit(relax.op.nn.softmax(x))))
    assert steps(mod) == [("call_tir", "float16")]
    func = kernel_of(mod)
    assert [str(param.dtype) for param in func.params] == ["float16", "float16"]
    assert str(func.attrs[names.DESCRIPTION]) == "softmax 6×40, on float16"


def test_a_result_with_another_reader_stays_wide(apply):
    def build(emit, x):
        y = emit(relax.op.nn.softmax(x))
        return relax.op.add(y, emit(relax.op.astype(emit(half(emit, y)), "float32")))

    mod = absorbed(apply, build)
    assert steps(mod)[0] == ("call_tir", "float32")
    assert [str(param.dtype) for param in kernel_of(mod).params] == ["float16", "float32"]


def test_only_narrow_operands_are(apply):
    """One operand of a norm is narrow, its scale is not."""
    def build(emit, x):
        scale = relax.op.astype(emit(relax.op.sum(x, axis=[0])), "float32")
        return half(emit, emit(relax.op.nn.rms_norm(x, emit(scale), axes=[-1])))

    mod = absorbed(apply, build)
    assert [str(param.dtype) for param in kernel_of(mod).params] == ["float16", "float32", "float16"]


@pytest.mark.parametrize("attribute", [names.ROWS, names.IN_PLACE, names.EXCHANGE, names.C_SOURCE])
def test_kernels_that_know_their_types(apply, attribute):
    before = LowerOperators(HALF)(network(lambda emit, x: half(emit, emit(relax.op.nn.softmax(x)))))
    for gv, func in before.functions_items():
        if gv.name_hint != "main":
            before.update_func(gv, func.with_attr(attribute, "known"))
    unchanged = [("astype", "float32"), ("call_tir", "float32"), ("astype", "float16")]
    assert steps(apply(AbsorbConversions(HALF), before)) == unchanged


def test_machines_without_half_precision(apply):
    mod = absorbed(apply, lambda emit, x: half(emit, emit(relax.op.nn.softmax(x))), NEON)
    assert steps(mod) == [("astype", "float32"), ("call_tir", "float32"), ("astype", "float16")]
