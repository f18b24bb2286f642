"""Whose an operator is: ONNX's own, which converters are for, or another domain's, which a local function or a custom operator
defines."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from tvm.relax.frontend.onnx import onnx_frontend

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.operators import CONVERTERS
from flexcomp.frontend.operators.attention import is_over_cache

DEFAULT = ("", "ai.onnx")
CUSTOM = "flexcomp.custom"  # of nodes that a custom operator is for, whose names hold their own domain

# Operators whose results are drawn anew in every inference.
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")

# TVM's importer goes by names alone; under this one it has an operator of com.microsoft.
_NAMESAKES = ("Attention",)


def is_converted(node: onnx.NodeProto) -> bool:
    """Whether there is a converter for the node's operator."""
    kind = node.op_type
    if node.domain not in DEFAULT:
        return node.domain == CUSTOM
    if kind == "Attention":  # of others ONNX's definition is as good
        return is_over_cache(node)
    return kind in CONVERTERS or (kind in onnx_frontend._get_convert_map() and kind not in _NAMESAKES and is_onnx(kind))


def is_onnx(kind: str) -> bool:
    """Whether ONNX itself has an operator of this name."""
    return onnx.defs.has(kind)


def title(node: onnx.NodeProto) -> str:
    """The operator as messages name it: with its domain, if that is not ONNX's."""
    return node.op_type if node.domain in (*DEFAULT, CUSTOM) else f"{node.domain}.{node.op_type}"


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or function and of the graphs in their attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_nodes(inner)


def require_own_domain(graph: onnx.GraphProto) -> None:
    """Raise UnsupportedModelError that names the operators of other domains: names may be ONNX's, meanings are not."""
    _refuse(node for node in all_nodes(graph) if node.domain not in (*DEFAULT, CUSTOM))


def require_fixed(graph: onnx.GraphProto) -> None:
    """Raise UnsupportedModelError that names the operators whose results are drawn anew, where they are read.

    Before tools that fold constants see them: one without inputs would be drawn once, when the network is built.
    """
    read = {name for node in all_nodes(graph) for name in node.input} | {output.name for output in graph.output}
    drawn = (node for node in all_nodes(graph) if node.domain in DEFAULT and node.op_type in RANDOM)
    _refuse(node for node in drawn if not read.isdisjoint(node.output))


def require_converters(graph: onnx.GraphProto) -> None:
    """Raise UnsupportedModelError that names the operators which cannot be compiled, each with its first node."""
    _refuse(node for node in all_nodes(graph) if not is_converted(node))


def _refuse(nodes: Iterator[onnx.NodeProto]) -> None:
    first: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        first.setdefault(title(node), node)
    if first:
        listed = ", ".join(f"{op} (node {_name(node)!r})" for op, node in first.items())
        tensors = ", ".join(repr(next(name for name in node.input if name)) for node in first.values() if any(node.input))
        raise UnsupportedModelError(
            f"operators that cannot be compiled: {listed} (`flexcomp help operators` lists those that can); "
            "export the network without them, or cut it before them"
            + (f", by the names of tensors: {tensors}" if tensors else "")
            + ", for example with onnx.utils.extract_model"
        )


def _name(node: onnx.NodeProto) -> str:
    return node.name or next((o for o in node.output if o), "?")
