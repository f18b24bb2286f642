"""Kernels that TVM fuses say which operators they compute; layers are called after them."""

from __future__ import annotations

import numpy as np
import onnx
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import flexcomp
from flexcomp.passes import FuseGeneric
from flexcomp.passes.attributes import COMPUTES, OPERATOR

OPAQUE = 8  # TVM's number for what it fuses with nothing


@I.ir_module
class Network:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((8,), "float32")):
        with R.dataflow():
            a = R.exp(x)
            b = R.add(a, x)
            c = R.add(b, y)  # of other shapes: TVM calls it add1
            d = R.atan2(c, b)
            e = R.sum(d, axis=1)
            R.output(e)
        return e


def fused(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc]:
    mod = FuseGeneric()(relax.transform.LegalizeOps()(mod))
    return {gv: func for gv, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}


def test_kernels_say_what_they_compute():
    found = sorted([str(name) for name in func.attrs[COMPUTES]] for func in fused(Network).values())
    assert found == [["exp", "add", "add", "atan2", "sum"]]


def test_kernels_that_have_a_name_keep_it():
    mod = relax.transform.LegalizeOps()(Network)
    own = {OPERATOR: "own", "op_pattern": OPAQUE}
    named = {gv: func.with_attrs(own) if isinstance(func, tirx.PrimFunc) else func for gv, func in mod.functions_items()}
    kept = FuseGeneric()(tvm.IRModule(named))
    alone = [func for func in kept.functions.values() if func.attrs is not None and OPERATOR in func.attrs]
    assert alone and not any(COMPUTES in func.attrs for func in alone)


def test_layers_have_readable_names():
    nodes = [
        onnx.helper.make_node("Sigmoid", ["x"], ["a"]),
        onnx.helper.make_node("Mul", ["a", "x"], ["b"]),
        onnx.helper.make_node("Add", ["b", "w"], ["c"]),
        onnx.helper.make_node("Add", ["c", "x"], ["d"]),
        onnx.helper.make_node("ReduceSum", ["d"], ["e"], keepdims=1),
        onnx.helper.make_node("Sub", ["d", "e"], ["f"]),
        onnx.helper.make_node("Exp", ["f"], ["y"]),
    ]
    port = onnx.helper.make_tensor_value_info
    ends = [port("x", 1, [4, 8])], [port("y", 1, [4, 8])]
    graph = onnx.helper.make_graph(nodes, "net", *ends, [onnx.numpy_helper.from_array(np.ones(8, "f4"), "w")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    layers = flexcomp.build(model, kernels="smallest").program.layers
    assert [(layer.name, layer.description) for layer in layers] == [
        ("sigmoid+3.0", "sigmoid, multiply, add ×2"),
        ("sum.1", "sum"),
        ("subtract+exp.2", "subtract, exp"),
    ]
