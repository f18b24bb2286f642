"""Which values become float16, and where they are converted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import relax

from flexcomp.passes import FuseLayers, NarrowActivations
from flexcomp.passes.attributes import VALUES_OF
from flexcomp.passes.choose_kernels import layer_spec
from flexcomp.passes.ir import bindings, dtype, operator
from flexcomp.passes.layers import is_layer
from flexcomp.schedules.tiles.tile import VectorUnit

NEON = VectorUnit(4, 32, by_lane=True)
HALF = replace(NEON, half="float16")
IMAGE, FILTERS = (1, 8, 8, 16), (16, 3, 3, 16)


def network(build, weights: int = 1):
    """main(x, weights…); `build(emit, x, weights)` gives its result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(IMAGE, "float32"))
    given = [relax.Var(f"w{i}", relax.TensorType(FILTERS, "float32")) for i in range(weights)]
    with builder.function("main", [x, *given], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, x, given))
        builder.emit_func_output(result)
    return builder.get()


def conv(x, w):
    return relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")


def steps(mod) -> list[tuple[str, str]]:
    """The operators of main, and the types of their results."""
    return [(operator(b.value) or "layer", dtype(b.var)) for b in bindings(mod["main"])]


def narrowed(apply, mod, unit=HALF, kept="float16"):
    return apply(NarrowActivations(unit), FuseLayers(lambda names, weight: kept)(mod))


def test_layers_keep_what_is_between_them_narrow(apply):
    def build(emit, x, w):
        y = emit(relax.op.nn.relu(emit(conv(x, w[0]))))
        return conv(emit(relax.op.nn.max_pool2d(y, layout="NHWC")), w[1])

    mod = narrowed(apply, network(build, weights=2))
    half, single = "float16", "float32"
    assert steps(mod) == [("astype", half), ("layer", half), ("max_pool2d", half), ("layer", half), ("astype", single)]
    layers = [layer_spec(func) for func in mod.functions.values() if is_layer(func)]
    assert [spec.dtype for spec in layers] == [half, half]
    assert {spec.epilogue for spec in layers} == {("acc",), ("relu", ("acc",))}


def test_an_epilogue_takes_narrow_tensors(apply):
    mod = narrowed(apply, network(lambda emit, x, w: relax.op.add(emit(conv(y := emit(conv(x, w[0])), w[1])), y), weights=2))
    assert [name for name, _ in steps(mod)] == ["astype", "layer", "layer", "astype"]
    assert sorted(layer_spec(func).tensors for func in mod.functions.values() if is_layer(func)) == [0, 1]


def test_what_one_wide_operator_reads_stays_wide(apply):
    def build(emit, x, w):
        y = emit(relax.op.sin(emit(relax.op.nn.softmax(emit(conv(x, w[0]))))))
        return conv(y, w[1])

    wide = [("layer", "float16"), ("astype", "float32"), ("softmax", "float32"), ("sin", "float32"), ("astype", "float16")]
    assert steps(narrowed(apply, network(build, weights=2)))[1:6] == wide


def test_what_is_computed_of_inputs_alone_stays_as_it_is(apply):
    def build(emit, x, w):
        y = emit(relax.op.exp(x))
        return relax.op.add(emit(relax.op.sum(emit(conv(y, w[0])), axis=[3], keepdims=True)), emit(relax.op.tanh(y)))

    found = steps(narrowed(apply, network(build)))
    assert found[0] == ("exp", "float32") and ("tanh", "float32") in found
    assert [name for name, _ in found].count("astype") == 2  # of the layer's operand and result


def test_a_layer_kept_in_float32_has_wide_results(apply):
    """Though a narrow operand goes in, and an operator that takes narrow ones reads them."""
    kinds = iter(["float16", "float32", "float16"])

    def build(emit, x, w):
        y = emit(relax.op.nn.relu(emit(conv(emit(conv(x, w[0])), w[1]))))
        return conv(emit(relax.op.nn.max_pool2d(y, layout="NHWC")), w[2])

    mod = apply(NarrowActivations(HALF), FuseLayers(lambda names, weight: next(kinds))(network(build, weights=3)))
    single = "float32"
    wide = [("astype", single), ("layer", single), ("max_pool2d", single), ("astype", "float16"), ("layer", "float16")]
    assert steps(mod)[2:7] == wide


def test_rounding_is_where_types_would_change(apply):
    """In float32, between conversions there and back: operands of layers, results of layers, not those of moving operators."""

    def build(emit, x, w):
        parts = emit(relax.op.split(emit(conv(x, w[0])), 2, axis=1))
        joined = emit(relax.op.concat([emit(relax.TupleGetItem(parts, 1)), emit(relax.TupleGetItem(parts, 0))], axis=1))
        return emit(relax.op.sin(emit(conv(joined, w[1]))))

    given = FuseLayers(lambda names, weight: VALUES_OF + "float16")(network(build, weights=2))
    mod = apply(NarrowActivations(HALF, rounded=True), given)
    there_and_back = ["astype", "astype"]
    summed = ["layer", *there_and_back, "subtract", "multiply", "add"]  # more error, as sums have it
    names = [operator(b.value) or "layer" for b in bindings(mod["main"]) if not isinstance(b.value, relax.TupleGetItem)]
    assert names == [*there_and_back, *summed, "split", "concat", *summed, "sin"]
    layers = [layer_spec(func) for func in mod.functions.values() if is_layer(func)]
    assert {(spec.dtype, spec.weights) for spec in layers} == {("float32", "float32")}
    unchanged = apply(NarrowActivations(HALF, rounded=True), FuseLayers()(network(build, weights=2)))
    assert "astype" not in [operator(b.value) for b in bindings(unchanged["main"])]


@pytest.mark.parametrize(("unit", "kept"), [(NEON, "float16"), (HALF, "float32"), (HALF, "int8")])
def test_nothing_changes_elsewhere(apply, unit, kept):
    mod = narrowed(apply, network(lambda emit, x, w: conv(x, w[0])), unit, kept)
    assert steps(mod) == [("layer", "float32")]
