"""The embeddings at the start of BERT and its kin."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from flexcomp.frontend.contrib.norms import normalised
from flexcomp.frontend.definition import Define, Definition


def _normalised_sum(made: Definition) -> None:
    """EmbedLayerNormalization(input_ids, segment_ids, words, positions, segments, gamma, beta, mask, position_ids).

    Its results: the norm of the sum of embeddings; how many words each row of the mask leaves; the sum.
    """
    ids, segments, mask, places = (made.input(i) for i in (0, 1, 7, 8))
    total = made.emit("Gather", [made.input(2), ids])
    if places:
        positions = made.emit("Gather", [made.input(3), places])
    else:
        length = made.emit("Gather", [made.emit("Shape", [ids]), made.constant(np.int64([1]))])
        start, axis = made.constant(np.int64([0])), made.constant(np.int64([0]))
        positions = made.emit("Slice", [made.input(3), start, length, axis])
    last = made.output(2) or None
    total = made.emit("Add", [total, positions], None if segments else last)
    if segments:
        total = made.emit("Add", [total, made.emit("Gather", [made.input(4), segments])], last)
    normalised(made, total, made.input(5), made.input(6), (made.output(0), "", ""), made.take("epsilon", 1e-12), centred=True)
    if made.output(1):
        counted = mask or made.emit("Mul", [made.emit("Cast", [ids], to=TensorProto.INT32), made.constant(np.int32(0))])
        made.reduced("ReduceSum", made.emit("Cast", [counted], to=TensorProto.INT32), [1], out=made.output(1), keepdims=0)


DEFINITIONS: dict[str, Define] = {"EmbedLayerNormalization": _normalised_sum}
