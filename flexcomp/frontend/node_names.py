"""The name of a Relax variable tells, through all passes, which ONNX node computes the variable."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import tvm
from tvm import relax

from flexcomp.passes.ir import bindings
from flexcomp.passes.rebuild import MainRewriter

_MARK = "@"
# TVM writes _ for . in names. A character that nobody uses, and what it stands for.
_ESCAPED = {"\ue000": "\ue000e", ".": "\ue000d"}


def variable_name(node: str, op_name: str) -> str:
    """The name of a variable that holds the result of a node."""
    name = f"{node}{_MARK}{op_name}"
    for character, stands_in in _ESCAPED.items():
        name = name.replace(character, stands_in)
    return name


def _parts(variable: str) -> tuple[str, str] | None:
    for character, stands_in in reversed(_ESCAPED.items()):
        variable = variable.replace(stands_in, character)
    node, mark, op_name = variable.rpartition(_MARK)
    return (node, op_name.rstrip("0123456789")) if mark else None  # digits were added to make names unique


def node_name(variable: str) -> str | None:
    """The name of the ONNX node whose result, or a part of it, a Relax variable holds; None if its name tells no node."""
    parts = _parts(variable)
    return parts[0] if parts else None


def node_of(variable: str) -> str | None:
    """The node in words, for error messages, with its operator."""
    parts = _parts(variable)
    return f"node {parts[0]!r} ({parts[1]})" if parts else None


def output_names(graph: onnx.GraphProto) -> list[str | None]:
    """For each of a graph's outputs the name of a variable that holds the output; None if no node computes it."""
    made = {name: variable_name(node.name, node.op_type) for node in graph.node for name in node.output}
    return [made.get(output.name) for output in graph.output]


def output_nodes(graph: onnx.GraphProto) -> dict[str, str]:
    """The nodes that compute a graph's outputs, by output. Outputs have variables of their own, whose names tell no node."""
    outputs = {output.name for output in graph.output}
    return {name: node.name for node in graph.node for name in node.output if name in outputs}


def name_all(mod: tvm.IRModule, outputs: Sequence[str | None] = ()) -> tvm.IRModule:
    """A module in which all that the importer makes of a node is named after it; `outputs` are the names of what is returned.

    lv = exp(x)             →   a@Sinh = exp(x)
    a@Sinh = f(lv)              a@Sinh1 = f(a@Sinh)
    """
    return _Namer(mod, outputs).rewrite()


class _Namer(MainRewriter):
    def __init__(self, mod: tvm.IRModule, outputs: Sequence[str | None]) -> None:
        super().__init__(mod)
        self.names: dict[relax.Var, str] = {}
        returned = self.main.body.body
        parts = list(returned.fields) if isinstance(returned, relax.Tuple) else [returned]
        given = {part: name for part, name in zip(parts, outputs, strict=False) if name is not None}
        last = ""
        for binding in reversed(list(bindings(self.main))):  # nodes come one by one, and the last binding of each is named
            own = given.get(binding.var, binding.var.name)
            last = own if node_name(own) is not None else last
            self.names[binding.var] = last or binding.var.name

    def name_of(self, var: relax.Var) -> str:
        return self.names[var]
