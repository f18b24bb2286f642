"""Which ONNX node a Relax variable comes from: its name tells, through all passes."""

from __future__ import annotations

import onnx
import tvm
from tvm import relax

from flexcomp.passes.ir import bindings
from flexcomp.passes.rebuild import MainRewriter

_MARK = "@"


def variable_name(node: str, op_name: str) -> str:
    """The name of a variable that holds what a node computes."""
    return f"{node}{_MARK}{op_name}"


def node_name(variable: str) -> str | None:
    """The name of the ONNX node whose result, or a part of it, a Relax variable holds; None if its name does not tell."""
    node, mark, _ = variable.rpartition(_MARK)
    return node if mark else None


def node_of(variable: str) -> str | None:
    """The same in words for error messages, with the operator."""
    node, mark, op_name = variable.rpartition(_MARK)
    return f"node {node!r} ({op_name.rstrip('0123456789')})" if mark else None  # digits were added to make names unique


def output_nodes(graph: onnx.GraphProto) -> dict[str, str]:
    """The nodes that compute a graph's outputs, by output: these have variables of their own, whose names do not tell."""
    outputs = {output.name for output in graph.output}
    return {name: node.name for node in graph.node for name in node.output if name in outputs}


def name_all(mod: tvm.IRModule) -> tvm.IRModule:
    """A module in which all that the importer makes of a node is named after it.

    lv = exp(x)             →   a@Sinh = exp(x)
    a@Sinh = f(lv)              a@Sinh1 = f(a@Sinh)
    """
    return _Namer(mod).rewrite()


class _Namer(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.names: dict[relax.Var, str] = {}
        last = ""
        for binding in reversed(list(bindings(self.main))):  # nodes come one by one, and the last binding of each is named
            last = binding.var.name if node_name(binding.var.name) is not None else last
            self.names[binding.var] = last or binding.var.name

    def name_of(self, var: relax.Var) -> str:
        return self.names[var]
