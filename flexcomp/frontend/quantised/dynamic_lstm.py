"""DynamicQuantizeLSTM of com.microsoft: an LSTM of a quantised input, with a state that is quantised in every step."""

from __future__ import annotations

import numpy as np
from onnx import helper

from flexcomp.frontend.definition import Definition
from flexcomp.frontend.operators.recurrent import QUANTISED_STATE


def define(made: Definition) -> None:
    """DynamicQuantizeLSTM: weights [directions, inputs, gates · hidden]; X is quantised by its own range, the state in each step.

    ONNX Runtime takes the range of as many rows as a thread has: that of all is that of one thread.
    """
    if made.input(4):
        raise made.refuse("with sequence_lens the range of X depends on them; export it without, or as an LSTM")
    data, scale, zero = (f"{made.name}/{part}" for part in ("quantised", "scale", "zero_point"))
    made.nodes.append(helper.make_node("DynamicQuantizeLinear", [made.input(0)], [data, scale, zero], f"{made.name}/quantise"))
    real = made.dequantised(data, scale, zero)
    weights = [_weights_of_all_directions(made, *given) for given in ((1, 8, 9), (2, 10, 11))]
    inputs = [real, *weights, *(made.input(i) for i in range(3, 8))]
    while not inputs[-1]:
        inputs.pop()
    attributes = {**made.attributes, QUANTISED_STATE: 1}
    made.nodes.append(helper.make_node("LSTM", inputs, made.node.output, made.name, **attributes))


def _weights_of_all_directions(made: Definition, weight: int, scale: int, zero: int) -> str:
    """W or R as numbers, in an LSTM's shape; one scale and zero point for a direction, or one for each of its columns."""
    known = [made.value(i) for i in (weight, scale, zero)]
    if any(one is None for one in known):
        raise made.refuse("its weights, scales and zero points must be constants of the model: export it with them")
    values, scales, zeros = known
    if scales.shape != zeros.shape or scales.ndim not in (1, 2) or scales.shape[0] != values.shape[0]:
        raise made.refuse(f"scales of {scales.shape} and zero points of {zeros.shape} do not fit weights of {values.shape}")
    directions, inputs, columns = values.shape
    rows = values.transpose(0, 2, 1).reshape(-1, inputs)
    given = [rows, *(np.repeat(one.reshape(-1), directions * columns // one.size) for one in (scales, zeros))]
    real = made.dequantised(*map(made.constant, given), axis=0)
    return made.emit("Reshape", [real, made.constant(np.int64([directions, columns, inputs]))])
