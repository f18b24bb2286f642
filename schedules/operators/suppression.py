"""Non-maximum suppression: of boxes that overlap, the one with the highest score.

For every image and class:

    scores above the threshold are copied; the others, and NaN, become -inf
    as often as boxes are wanted, while there is one left:
        the box with the highest score is written; of equal ones the first
        this box, and all that overlap it more than allowed, become -inf

Rows after the last box hold -1 in all places. Boxes that do not fit are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


@dataclass(frozen=True)
class SuppressionSpec:
    """Boxes float32[images, boxes, 4] and scores float32[images, classes, boxes] to int64[rows, 3]: image, class, box."""

    images: int
    classes: int
    boxes: int
    most: int  # boxes of one class and image that are selected
    rows: int
    overlap: float  # intersection over union above which a box is suppressed
    score: float  # that a box must have more than
    is_centred: bool  # boxes are x, y of their centre, width, height; otherwise y, x of two opposite corners

    def __str__(self) -> str:
        return f"{self.rows} of {self.images}×{self.classes}×{self.boxes} boxes"


def kernel(spec: SuppressionSpec) -> tirx.PrimFunc:
    """The PrimFunc (boxes, scores, selected int64[rows, 3], left float32[boxes]); `left` is scratch."""
    lowest = tirx.const(float("-inf"), "float32")
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        boxes = T.arg("boxes", T.buffer((spec.images, spec.boxes, 4), "float32"))
        scores = T.arg("scores", T.buffer((spec.images, spec.classes, spec.boxes), "float32"))
        selected = T.arg("selected", T.buffer((spec.rows, 3), "int64"))
        left = T.arg("left", T.buffer((spec.boxes,), "float32"))
        boxes = T.decl_buffer((spec.images * spec.boxes * 4,), "float32", data=boxes.data)
        scores = T.decl_buffer((spec.images * spec.classes * spec.boxes,), "float32", data=scores.data)
        selected = T.decl_buffer((spec.rows * 3,), "int64", data=selected.data)
        row = T.alloc_buffer((1,), "int32", scope="global")  # the next to write
        best = T.alloc_buffer((1,), "int32", scope="global")
        highest = T.alloc_buffer((1,), "float32", scope="global")
        T.buffer_store(row, 0, [0])
        with T.serial(0, spec.images * spec.classes) as task:
            image = T.bind(task // spec.classes)
            with T.serial(0, spec.boxes) as i:
                score = T.bind(scores[task * spec.boxes + i])
                T.buffer_store(left, tirx.Select(score > tirx.const(spec.score, "float32"), score, lowest), [i])
            T.buffer_store(best, 0, [0])
            with T.serial(0, spec.most) as _, T.If(best[0] >= 0), T.Then():
                T.buffer_store(best, -1, [0])
                T.buffer_store(highest, lowest, [0])
                with T.serial(0, spec.boxes) as i, T.If(left[i] > highest[0]), T.Then():
                    T.buffer_store(highest, left[i], [0])
                    T.buffer_store(best, i, [0])
                with T.If(tirx.all(best[0] >= 0, row[0] < spec.rows)), T.Then():
                    for place, value in enumerate((image, task % spec.classes, best[0])):
                        T.buffer_store(selected, tirx.Cast("int64", value), [row[0] * 3 + place])
                    T.buffer_store(row, row[0] + 1, [0])
                    T.buffer_store(left, lowest, [best[0]])
                    _suppress(spec, boxes, left, T.bind((image * spec.boxes + best[0]) * 4), image)
        with T.serial(0, spec.rows * 3) as place, T.If(place >= row[0] * 3), T.Then():
            T.buffer_store(selected, tirx.const(-1, "int64"), [place])
    return builder.get()


def _suppress(spec: SuppressionSpec, boxes: tirx.Buffer, left: tirx.Buffer, chosen: ir.Expr, image: ir.Expr) -> None:
    """Take boxes that overlap the chosen one out of those that are left."""
    own = [T.bind(value) for value in _corners(spec, boxes, chosen)]
    own_area = T.bind((own[2] - own[0]) * (own[3] - own[1]))
    zero = tirx.const(0.0, "float32")
    with T.serial(0, spec.boxes) as i:
        other = [T.bind(value) for value in _corners(spec, boxes, (image * spec.boxes + i) * 4)]
        area = T.bind((other[2] - other[0]) * (other[3] - other[1]))
        sides = [tirx.min(own[2 + a], other[2 + a]) - tirx.max(own[a], other[a]) for a in range(2)]
        common = T.bind(tirx.max(sides[0], zero) * tirx.max(sides[1], zero))
        share = T.bind(common / (own_area + area - common))
        overlaps = tirx.all(common > zero, own_area > zero, area > zero, share > tirx.const(spec.overlap, "float32"))
        T.buffer_store(left, tirx.Select(overlaps, tirx.const(-math.inf, "float32"), left[i]), [i])


def _corners(spec: SuppressionSpec, boxes: tirx.Buffer, at: ir.Expr) -> tuple[ir.Expr, ...]:
    """The smaller and the larger coordinates: a, b, a, b."""
    a, b, c, d = (boxes[at + i] for i in range(4))
    if not spec.is_centred:
        return tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)
    half = tirx.const(0.5, "float32")
    return a - c * half, b - d * half, a + c * half, b + d * half
