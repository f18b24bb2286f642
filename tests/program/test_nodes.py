"""The record of ONNX nodes in a library."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import ArtifactError
from flexcomp.program import nodes
from tests.report.programs import two_layers


def named(*names: str | None):
    program = two_layers()
    return replace(program, metadata=nodes.record(names))


def test_the_record_is_read_as_it_was_written():
    assert nodes.read(named("/a/Conv", None)) == ("/a/Conv", None)
    assert nodes.read(named("x", "x")) == ("x", "x")
    assert nodes.read(two_layers()) == (None, None)  # libraries of before, and Relax modules


@pytest.mark.parametrize("text", ["[]", '{"names": ["a"], "layers": [0]}', '{"names": ["a"], "layers": [0, 1]}', "{", "[" * 10**5,
                                  '{"names": ["a"], "layers": [0.0, 0]}', '{"names": ["a"], "layers": [true, 0]}'])  # fmt: skip
def test_a_record_that_does_not_fit_is_refused(text):
    with pytest.raises(ArtifactError, match="ONNX nodes is malformed"):
        nodes.read(replace(two_layers(), metadata={nodes.KEY: text}))


def chain(*operators: tuple[str, str], source: str = "x") -> onnx.ModelProto:
    """x → operators, each with the name given → y."""
    ends = [source, *(f"t{i}" for i in range(len(operators) - 1)), "y"]
    made = [
        helper.make_node(op, [source], [target], name=name)
        for (op, name), source, target in zip(operators, ends, ends[1:], strict=False)
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 8)) for name in (source, "y"))
    graph = helper.make_graph(made, "chain", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_fused_operators_are_named_after_the_first_node_and_outputs_after_theirs():
    """Sinh becomes many operators; they are fused with the Abs before it, and Softmax is the output's."""
    program = flexcomp.build(chain(("Sin", "one"), ("Cos", "two"), ("Softmax", "three"), ("Abs", "four"))).program
    assert nodes.read(program) == ("one", "three", "four")
    program = flexcomp.build(chain(("Softmax", "one"), ("Sinh", "two"), ("Softmax", "three"))).program
    assert nodes.read(program) == ("one", "two", "three")


def test_names_change_no_kernel():
    """Not its symbol, not a byte of its code: caches know kernels by what they compute."""
    operators = ("Sin", "Cos", "Softmax", "Sinh", "Abs")
    code = []
    for prefix in ("a", "/a/much.longer name: 1@2-é\ue000."):  # and every character of a name stays
        model = chain(*((op, f"{prefix}{i}") for i, op in enumerate(operators)), source=f"{prefix}:in")
        artifact = flexcomp.build(model, cache=False)
        code.append((artifact.kernels, [layer.kernel for layer in artifact.program.layers]))
        assert nodes.read(artifact.program)[0] == f"{prefix}0"
    assert code[0] == code[1]


def test_a_budget_that_is_too_small_names_the_node():
    with pytest.raises(flexcomp.BudgetError, match=r"set by layer softmax\.0 \(node /head/Softmax\): "):
        flexcomp.build(chain(("Softmax", "/head/Softmax")), budget=1000)
