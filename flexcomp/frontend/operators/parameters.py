"""Attributes that have two values, and inputs whose values decide shapes, which must be known when the network is built."""

from __future__ import annotations

import onnx
from tvm import relax

from flexcomp.frontend.operators.node import Node

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
# Operator → the inputs that decide shapes.
DECIDING: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1, 2),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS},
}
# Attributes that say yes or no.
_FLAGS = (
    "align_corners", "antialias", "ceil_mode", "center_point_box", "count_include_pad", "detect_negative", "detect_positive",
    "exclude_outside", "exclusive", "fmod", "is_causal", "keepdims", "largest", "layout", "linear_before_reset",
    "noop_with_empty_axes", "reverse", "saturate", "select_last_index", "sorted", "storage_order", "transA", "transB", "upper",
)  # fmt: skip


def require_flags(node: Node) -> None:
    """Raise UnsupportedModelError for an attribute that is neither 0 nor 1 and has to be."""
    for name in _FLAGS:
        if node.attrs.get(name, 0) not in (0, 1):
            raise node.refuse(f"its attribute {name} is {node.attrs[name]}: make it 0 or 1")


def require_parameters(node: Node) -> None:
    """Raise UnsupportedModelError for an input that decides the shape of a result and is computed from the network's inputs."""
    for i in DECIDING.get(node.kind, ()):
        given = node.input(i)
        if given is not None and node.value(i) is None:
            formal = onnx.defs.get_schema(node.kind, node.opset).inputs[i].name
            source = f"the network's input {given.name!r}" if _is_parameter(node, given) else "computed"
            raise node.refuse(f"its input {formal!r} is {source}, and shapes must be known: make it a constant of the model")


def _is_parameter(node: Node, given: relax.Expr) -> bool:
    return isinstance(given, relax.Var) and node.bb.lookup_binding(given) is None
