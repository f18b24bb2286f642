"""Cut the iteration space where conditions compare an axis with a constant: every box loses its conditions."""

from __future__ import annotations

import itertools
import math

import tvm_ffi
from tvm import ir, sym, tirx

from .nest import Nest, conditions, constant, new_axis
from .stages import loads, simplify

# Boxes of a partitioned stage; beyond, conditions stay in the loops.
_MAX_BOXES = 64


def _cuts(nest: Nest) -> dict[tirx.Var, set[int]]:
    """Per axis, the positions at which a comparison with a constant changes its outcome."""
    cuts: dict[tirx.Var, set[int]] = {axis.var: set() for axis in nest.axes}

    def visit(node: ir.Expr) -> None:
        if loads(node) or not node.a.ty.dtype.startswith("int"):
            return
        difference = simplify(node.a - node.b, nest.axes)
        found = sym.detect_linear_equation(difference, [axis.var for axis in nest.axes])
        if not found or not all(isinstance(factor, tirx.IntImm) for factor in found):
            return
        involved = [(axis, int(factor)) for axis, factor in zip(nest.axes, found, strict=False) if int(factor)]
        if len(involved) != 1:
            return
        (axis, factor), offset = involved[0], int(found[-1])
        root, below = -offset, math.floor(-offset / factor)
        above = -((-root) // factor)  # ceiling of root / factor
        if isinstance(node, (tirx.EQ, tirx.NE)):
            points = {above, below + 1}
        elif isinstance(node, (tirx.LT, tirx.GE)) == (factor > 0):
            points = {above}
        else:
            points = {below + 1}
        cuts[axis.var] |= {point for point in points if 0 < point < axis.extent}

    comparisons = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
    for condition in conditions(nest.value):
        tvm_ffi.structural_walk(condition, [(comparisons, visit)])
    return cuts


def partition(nest: Nest) -> tuple[list[Nest], int]:
    """Boxes of the iteration space in which conditions are decided; how many leading axes are whole in all."""
    cuts = _cuts(nest)
    if math.prod(len(points) + 1 for points in cuts.values()) > _MAX_BOXES or not any(cuts.values()):
        return [nest], 0
    uncut = next(i for i, axis in enumerate(nest.axes) if cuts[axis.var])
    intervals = []
    for axis in nest.axes[uncut:]:
        points = [0, *sorted(cuts[axis.var]), axis.extent]
        intervals.append(list(itertools.pairwise(points)))
    boxes = []
    for box in itertools.product(*intervals):
        axes = list(nest.axes[:uncut])
        values: dict[tirx.Var, ir.Expr] = {}
        for axis, (start, stop) in zip(nest.axes[uncut:], box, strict=True):
            if stop - start == axis.extent:
                axes.append(axis)
                continue
            part = new_axis(stop - start, axis)
            axes.append(part)
            values[axis.var] = part.var + constant(start, axis.var) if start else part.var
        boxes.append(nest.substitute(values, axes))
    return boxes, uncut
