"""Layer normalisations, and sums before them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from flexcomp.frontend.definition import MICROSOFT, Define, Definition
from flexcomp.frontend.domains import DEFAULT

_MISPLACED = "SimplifiedLayerNormalization"  # which ONNX Runtime has in ONNX's own domain


def adopt_norms(model: onnx.ModelProto) -> None:
    """Move ONNX Runtime's operators out of ONNX's domain, which has none of their names. Changes `model`."""
    found = [node for node in model.graph.node if node.domain in DEFAULT and node.op_type == _MISPLACED]
    for node in found:
        node.domain = MICROSOFT
    if found and not any(opset.domain == MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def normalised(
    made: Definition, data: str, scale: str, bias: str, outputs: tuple[str, str, str], epsilon: float, centred: bool
) -> None:
    """Write a norm over the last axis: its values, and where they are named the mean and one over the deviation."""
    result, mean_name, inverse_name = outputs
    if centred:
        data = made.emit("Sub", [data, made.reduced("ReduceMean", data, [-1], out=mean_name or None)])
    variance = made.reduced("ReduceMean", made.emit("Mul", [data, data]), [-1])
    deviation = made.emit("Sqrt", [made.emit("Add", [variance, made.constant(np.float32(epsilon))])])
    if inverse_name:
        made.emit("Reciprocal", [deviation], inverse_name)
    unit = made.emit("Div", [data, deviation])
    scaled = made.emit("Mul", [unit, scale], None if bias else result)
    if bias:
        made.emit("Add", [scaled, bias], result)


def _after_sum(made: Definition, bias: str, shift: str, centred: bool) -> None:
    """Of input + skip + bias, which is the fourth result."""
    total = made.output(3)
    parts = [made.input(1), *filter(None, [bias])]
    data = made.input(0)
    for i, part in enumerate(parts):
        data = made.emit("Add", [data, part], total or None if i == len(parts) - 1 else None)
    outputs = made.output(0), made.output(1), made.output(2)
    normalised(made, data, made.input(2), shift, outputs, made.take("epsilon", 1e-12), centred)


def _skip(made: Definition) -> None:
    """SkipLayerNormalization(input, skip, gamma, beta, bias)."""
    _after_sum(made, bias=made.input(4), shift=made.input(3), centred=True)


def _skip_simplified(made: Definition) -> None:
    """SkipSimplifiedLayerNormalization(input, skip, gamma, bias)."""
    _after_sum(made, bias=made.input(3), shift="", centred=False)


def _simplified(made: Definition) -> None:
    """SimplifiedLayerNormalization(X, scale): by the root of the mean of squares."""
    if made.take("axis", -1) != -1:
        raise made.refuse("its axis is not the last one, counted from the end: export it with axis=-1")
    outputs = made.output(0), "", made.output(1)
    normalised(made, made.input(0), made.input(1), "", outputs, made.take("epsilon", 1e-5), centred=False)


DEFINITIONS: dict[str, Define] = {
    _MISPLACED: _simplified,
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
}
