"""Inputs and attributes that decide shapes: they must be known, and be of the input."""

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
# Operators whose axis may be one more than there are, or is not asked for.
_BEHIND = (
    "DequantizeLinear", "Flatten", "Hardmax", "LogSoftmax", "OneHot", "QuantizeLinear", "Softmax", "ConcatFromSequence",
)  # fmt: skip


# Operators whose axis is input 1.
_BY_INPUT = ("CumProd", "CumSum")


def require_axis(node: Node) -> None:
    """Raise UnsupportedModelError for an axis that the first input does not have."""
    if node.kind in _BY_INPUT and (axes := node.value(1)) is not None:
        rank = len(node.shape)
        if axes.size != 1 or not -rank <= axes.item() < rank:
            raise node.refuse(f"its axis is {axes.tolist()}, and its input has {rank} axes: correct it")
    given = node.attrs.get("axis")
    if not isinstance(given, int) or not node.inputs or node.data is None or not isinstance(node.data.ty, relax.TensorType):
        return
    rank = len(node.shape)
    if not -rank - 1 <= given <= rank or (node.kind not in _BEHIND and not -max(rank, 1) <= given < max(rank, 1)):
        raise node.refuse(f"its axis is {given}, and its input has {rank} axes: correct it")


def require_parameters(node: Node) -> None:
    """Raise UnsupportedModelError for an input that decides the shape of a result and is computed from the network's inputs."""
    for i in DECIDING.get(node.kind, ()):
        given = node.input(i)
        if given is not None and node.value(i) is None:
            formal = onnx.defs.get_schema(node.kind, node.opset).inputs[i].name
            source = f"the network's input {given.name!r}" if _is_parameter(node, given) else "computed"
            raise node.refuse(f"its input {formal!r} is {source}, and shapes must be known: make it a constant of the model")


def require_factors(node: Node) -> None:
    """Raise UnsupportedModelError for integers that are multiplied with a fraction: ONNX does not say how they are rounded."""
    if node.kind == "Gemm" and "float" not in node.dtype:
        for name in ("alpha", "beta"):
            factor = float(node.attrs.get(name, 1.0))
            if not factor.is_integer():
                raise node.refuse(f"its {name} is {factor:g}, and it multiplies integers: make it a whole number")


def _is_parameter(node: Node, given: relax.Expr) -> bool:
    return isinstance(given, relax.Var) and node.bb.lookup_binding(given) is None
