"""Weights as kernels take them: operators that transform, interleave and pack them into panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from ..schedules.integer.ways import runs_of as integer_runs
from ..schedules.registry import Candidate
from ..schedules.strassen.ways import HalvesTransform
from ..schedules.tiles.panel import Panel
from ..schedules.tiles.spec import ConvSpec
from ..schedules.winograd.transforms import WeightTransform
from . import attributes as names
from .ir import shape
from .layers import LayerReading, operator_of
from .panels import assemble, on_weights

Emit = Callable[[relax.Expr], relax.Var]


def pack(
    emit: Emit, args: Sequence[relax.Expr], layer: relax.Function, reading: LayerReading, candidate: Candidate
) -> relax.Var:
    """The panel of a layer's weights among its arguments, with bias and vectors."""
    panel = candidate.panel
    weight = args[reading.weight]
    if operator_of(layer) == "matmul":
        weight = emit(op.permute_dims(weight, (1, 0)))
    kept = str(layer.attrs.get(names.DTYPE, "float32")).removeprefix(names.VALUES_OF)
    if not panel.narrow and kept != "float32":
        weight = on_weights(emit, f"round.{kept}", "float32", shape(weight), weight)
    if candidate.weight_transform is not None:
        weight = _transform(emit, weight, candidate.weight_transform)
    channels = panel.groups * panel.group_channels
    if panel.together > 1:
        weight = _in_runs(emit, weight, reading.spec, panel)
    lanes = relax.const(panel.channels().reshape(-1).astype(np.int64))

    def blocks(value: relax.Expr, count: int) -> relax.Expr:
        flat = emit(op.reshape(value, (channels, count)))
        return emit(op.reshape(emit(op.take(flat, lanes, axis=0)), (panel.blocks, panel.block, count)))

    def rows(value: relax.Expr, count: int) -> relax.Expr:
        return emit(op.permute_dims(blocks(value, count), (0, 2, 1)))

    def vector(index: int | None) -> relax.Expr:
        if index is None:
            return emit(op.zeros((panel.blocks, 1, panel.block), "float32"))
        value = args[index]
        if math.prod(shape(value)) == 1:
            value = emit(op.broadcast_to(emit(op.reshape(value, (1,))), (channels,)))
        return rows(value, 1)

    if candidate.block_transform is None:
        taps = rows(weight, panel.taps)
    else:
        per_channel = math.prod(shape(weight)) // channels
        taps = _combine(emit, blocks(weight, per_channel), candidate.block_transform, panel.taps)
    vectors = [vector(i) for i in reading.vectors]
    return assemble(emit, panel, vector(reading.bias), taps, vectors, int(layer.attrs.get(names.INTEGERS, 0)))


def _in_runs(emit: Emit, weight: relax.Expr, spec: ConvSpec, panel: Panel) -> relax.Var:
    """Weights with zeros after every run of products that lie together."""
    runs, run = integer_runs(spec, panel.together)
    split = emit(op.reshape(weight, (spec.out_channels, runs, spec.taps // runs)))
    if spec.taps < panel.taps:
        missing = emit(op.zeros((spec.out_channels, runs, run - spec.taps // runs), "float32"))
        split = emit(op.concat([split, missing], axis=2))
    return split


def _combine(emit: Emit, weight: relax.Expr, transform: HalvesTransform, taps: int) -> relax.Var:
    """float32[blocks, taps, block] of weights float32[blocks, block, in]: sums of their quarters."""
    blocks, whole, _ = shape(weight)
    combinations = relax.const(transform.matrix, "float64")
    exact = emit(op.astype(weight, "float64"))
    for _ in range(transform.levels):
        count, block, channels = shape(exact)
        exact = emit(op.reshape(exact, (count, 2, block // 2, 2, channels // 2)))
        exact = emit(op.reshape(emit(op.permute_dims(exact, (0, 3, 1, 2, 4))), (count, 4, channels * block // 4)))
        combined = emit(op.matmul(combinations, exact))
        exact = emit(op.reshape(combined, (count * len(transform.matrix), block // 2, channels // 2)))
    combined = emit(op.astype(emit(op.permute_dims(exact, (0, 2, 1))), "float32"))
    return emit(op.reshape(combined, (blocks, taps, whole)))


def _transform(emit: Emit, weight: relax.Expr, transform: WeightTransform) -> relax.Var:
    """G w Gᵀ of OHWI weights, as float32[out, a, a, in]: first along the kernel's rows, then along its columns.

    Of a kernel of one row or one column float32[out, 1, a, in]: along that.
    """
    g = relax.const(transform.matrix, "float64")
    a, taps = transform.matrix.shape
    if transform.stride > 1:
        weight = _in_pairs(emit, weight, transform)
    out, _, _, channels = shape(weight)
    exact = emit(op.astype(weight, "float64"))
    if not all(transform.axes):
        line = emit(op.matmul(g, emit(op.reshape(exact, (out, taps, channels)))))
        return emit(op.astype(emit(op.reshape(line, (out, 1, a, channels))), "float32"))
    exact = emit(op.reshape(exact, (out, taps, taps * channels)))
    rows = emit(op.reshape(emit(op.matmul(g, exact)), (out * a, taps, channels)))
    both = emit(op.reshape(emit(op.matmul(g, rows)), (out, a, a, channels)))
    return emit(op.astype(both, "float32"))


def _in_pairs(emit: Emit, weight: relax.Expr, transform: WeightTransform) -> relax.Var:
    """OHWI weights of pairs of pixels: float32[out, r, r, 4 · in], with zeros where there is no tap."""
    out, height, width, channels = shape(weight)
    for axis, (before, after) in enumerate(transform.padding((height, width)), start=1):
        missing = list(shape(weight))
        parts = [weight]
        for count, place in ((before, 0), (after, 1)):
            if count:
                missing[axis] = count
                parts.insert(place * len(parts), emit(op.zeros(tuple(missing), "float32")))
        weight = emit(op.concat(parts, axis=axis)) if len(parts) > 1 else weight
    r, stride = transform.r, transform.stride
    split = emit(op.reshape(weight, (out, r, stride, r, stride, channels)))
    return emit(op.reshape(emit(op.permute_dims(split, (0, 1, 3, 2, 4, 5))), (out, r, r, stride**2 * channels)))
