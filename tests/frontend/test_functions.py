"""Functions and domains: what is inlined, what is expanded, and whose operator a name means."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend.allowance import MOST_NODES, Allowance
from flexcomp.frontend.call_sizes import take_for_calls
from flexcomp.frontend.functions import expand_functions
from flexcomp.frontend.onnx_model import OnnxModel, read_onnx, simplify_onnx


def network(*nodes: onnx.NodeProto, functions=(), opset=18, domains=(), shape=(2, 3)) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


def local_function(opset=18) -> onnx.FunctionProto:
    """Relu, and then Elu with the attribute that the call gives."""
    elu = helper.make_node("Elu", ["t"], ["b"])
    elu.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    nodes = [helper.make_node("Neg", ["a"], ["t"]), elu]
    return helper.make_function("acme", "Relu", ["a"], ["b"], nodes, [helper.make_opsetid("", opset)], ["alpha"])


def run(model: onnx.ModelProto, folder) -> tuple[np.ndarray, np.ndarray]:
    """What flexcomp and ONNX Runtime answer."""
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("f4")
    flexcomp.build(model, threads=1).export_library(folder / "network.so")
    with flexcomp.load(folder / "network.so") as session:
        found = session.run({"x": x})["y"]
    return found, onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("opset", [18, 17, 13])
def test_local_functions_are_inlined_also_those_of_another_opset(opset, tmp_path):
    call = helper.make_node("Relu", ["x"], ["y"], domain="acme", alpha=2.0)
    model = network(call, functions=[local_function(opset)], domains=["acme"])
    found, expected = run(model, tmp_path)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["Relu", "Frobnicate"])
def test_an_operator_of_another_domain_is_refused_by_name_whatever_its_name(kind):
    model = network(helper.make_node(kind, ["x"], ["y"], name="n", domain="acme"), domains=["acme"])
    with pytest.raises(UnsupportedModelError, match=rf"acme\.{kind} \(node 'n'\)"):
        flexcomp.build(model, threads=1)


def test_an_operator_without_a_converter_becomes_what_onnx_defines_it_as(tmp_path):
    model = network(helper.make_node("Celu", ["x"], ["y"], name="n", alpha=0.5))
    found, expected = run(model, tmp_path)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_an_operator_with_a_converter_is_left_alone():
    model = network(helper.make_node("Mish", ["x"], ["y"], name="n"))
    assert [node.op_type for node in expand_functions(model, Allowance()).graph.node] == ["Mish"]


def test_bodies_within_bodies_are_expanded_and_their_nodes_tell_where_they_come_from():
    """SwiGLU is made of Swish, which is made of Sigmoid."""
    model = network(helper.make_node("SwiGLU", ["x", "x"], ["y"], name="n"), opset=28)
    expanded = expand_functions(model, Allowance()).graph.node
    assert {node.op_type for node in expanded} >= {"Sigmoid", "Mul"}
    assert not {"SwiGLU", "Swish"} & {node.op_type for node in expanded}
    assert all(node.name.startswith("n/") for node in expanded)


def test_attention_means_onnx_s_and_not_that_of_com_microsoft():
    q, k, v = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 2, 4, 8)) for n in "qkv")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2, 4, 8))
    graph = helper.make_graph([helper.make_node("Attention", ["q", "k", "v"], ["y"])], "network", [q, k, v], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    assert "Softmax" in {node.op_type for node in simplify_onnx(OnnxModel(model, {}, ""), {}).proto.graph.node}


def doubling(levels: int) -> onnx.ModelProto:
    """Functions, each of which calls the next one twice."""
    functions = []
    for level in range(levels):
        kind, domain = (f"F{level + 1}", "acme") if level < levels - 1 else ("Relu", "")
        nodes = [helper.make_node(kind, [a], [b], domain=domain) for a, b in (("a", "m"), ("m", "b"))]
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("acme", 1)]
        functions.append(helper.make_function("acme", f"F{level}", ["a"], ["b"], nodes, opsets))
    call = helper.make_node("F0", ["x"], ["y"], name="call", domain="acme")
    return network(call, functions=functions, domains=["acme"])


def test_functions_are_counted_before_they_are_written_out():
    assert len(expand_functions(read_onnx(doubling(5)).proto, Allowance()).graph.node) == 32
    with pytest.raises(UnsupportedModelError, match=r"node 'call' \(acme.F0\): functions .* with 2305843009213693950 operators"):
        flexcomp.build(doubling(60), threads=1)


def test_a_function_that_is_called_once_is_no_expansion():
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(MOST_NODES + 1)]
    function = helper.make_function("acme", "Long", ["t0"], [f"t{MOST_NODES + 1}"], nodes, [helper.make_opsetid("", 18)])
    model = network(helper.make_node("Long", ["x"], ["y"], domain="acme"), functions=[function], domains=["acme"])
    take_for_calls(model, allowance := Allowance())
    assert allowance == Allowance()


def test_functions_that_call_each_other_in_a_ring_are_refused():
    functions = [
        helper.make_function("acme", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="acme")], [])
        for name, other in (("F", "G"), ("G", "F"))
    ]
    model = network(helper.make_node("F", ["x"], ["y"], domain="acme"), functions=functions, domains=["acme"])
    with pytest.raises(ModelError, match="calls itself"):
        take_for_calls(model, Allowance())
