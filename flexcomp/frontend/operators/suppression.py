"""Non-maximum suppression with as many rows as shapes tell."""

from __future__ import annotations

import logging
import math

from tvm import relax

from flexcomp.frontend.operators.node import Converter, Node, shape_of
from flexcomp.passes.attributes import kernel_attributes
from flexcomp.schedules.operators import suppression
from flexcomp.schedules.operators.suppression import SuppressionSpec

logger = logging.getLogger(__name__)

_DEFAULTS = {"max_output_boxes_per_class": 0, "iou_threshold": 0.0, "score_threshold": -math.inf}


def _non_max_suppression(node: Node) -> relax.Expr:
    """ONNX's result has a row for each selected box, and shapes are fixed here.

    The result has as many rows as the model declares for it, or as there can be; rows after the last box hold -1.
    """
    boxes, scores = node.inputs[:2]
    settings = []
    for i, (name, default) in enumerate(_DEFAULTS.items()):
        known = node.value(i + 2)
        if known is None and node.input(i + 2) is not None:
            raise node.refuse(f"its {name} is computed: make it a constant of the model")
        if known is not None and known.size != 1:
            raise node.refuse(f"its {name} has {known.size} elements: give it one")
        settings.append(default if known is None else known.item())
    if len(shape_of(scores)) != 3 or shape_of(boxes) != (shape_of(scores)[0], shape_of(scores)[2], 4):
        raise node.refuse(f"its boxes {list(shape_of(boxes))} do not fit its scores {list(shape_of(scores))}")
    images, classes, count = shape_of(scores)
    most = min(max(int(settings[0]), 0), count)
    rows = node.declared[0] if node.declared and node.declared[0] is not None else images * classes * most
    if rows == 0:
        raise node.refuse("it selects no boxes: give it max_output_boxes_per_class, which is 0 by default")
    spec = SuppressionSpec(
        images, classes, count, most, rows, float(settings[1]), float(settings[2]),
        bool(node.attrs.get("center_point_box", 0)),
    )  # fmt: skip
    logger.warning(
        "node %r (NonMaxSuppression): its result has %d rows, whatever is selected; those after the last box hold -1",
        node.name, rows,
    )  # fmt: skip
    work = images * classes * (most + 1) * count * 4
    function = suppression.kernel(spec).with_attrs(kernel_attributes("non_max_suppression", "scalar", str(spec), work))
    found = node.emit(
        relax.call_tir(
            node.bb.add_func(function, "suppression"),
            [boxes, scores],
            [relax.TensorType((rows, 3), "int64"), relax.TensorType((count,), "float32")],
        )
    )
    return node.emit(relax.TupleGetItem(found, 0))


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
