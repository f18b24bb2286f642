"""Kernels that allow it read narrow weights, by one look at the IR; tests/custom compares results."""

from tvm import relax
from tvm.script import tirx as T

from flexcomp.passes import NarrowWeights
from flexcomp.passes.attributes import NARROW
from flexcomp.passes.ir import bindings, operator, shape


@T.prim_func
def product(x: T.Buffer((4, 6), "float32"), w: T.Buffer((6, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        y[i, j] = 0.0
        for k in T.serial(6):
            y[i, j] = y[i, j] + x[i, k] * w[k, j]


def network(second_is_weight: bool):
    builder = relax.BlockBuilder()
    x, w = relax.Var("x", relax.TensorType((4, 6), "float32")), relax.Var("w", relax.TensorType((6, 8), "float32"))
    kernel = builder.add_func(product.without_attr("global_symbol").with_attr(NARROW, [1]), "product")
    with builder.function("main", [x, w], attrs={"num_input": 1 if second_is_weight else 2}):
        with builder.dataflow():
            y = builder.emit_output(relax.call_tir(kernel, [x, w], relax.TensorType((4, 8), "float32")))
        builder.emit_func_output(y)
    return builder.get()


def types_of_kernel(mod):
    (call,) = (binding.value for binding in bindings(mod["main"]) if operator(binding.value) == "call_tir")
    assert all(func.attrs is None or NARROW not in func.attrs for func in mod.functions.values())
    assert [shape(operand) for operand in call.args[1].fields[:2]] == [(4, 6), (6, 8)]
    return [str(param.dtype) for param in mod[call.args[0]].params]


def test_the_kernel_takes_the_type_and_scales(apply):
    asked = []
    for kind, expected in (("float16", ["float16"]), ("int8", ["int8", "float32"]), ("float32", ["float32"])):
        def kept(names, weight, kind=kind):
            asked.append(weight.axis)
            return kind

        mod = apply(NarrowWeights(kept), network(second_is_weight=True))
        assert types_of_kernel(mod) == ["float32", *expected, "float32"]
    assert asked == [0, 0, 0]


def test_an_input_of_the_network_is_no_weight(apply):
    mod = apply(NarrowWeights(lambda names, weight: "int8"), network(second_is_weight=False))
    assert types_of_kernel(mod) == ["float32"] * 3
