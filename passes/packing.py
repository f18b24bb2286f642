"""Weights as kernels take them: operators that transform, interleave and pack them into panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from ..schedules.integer.ways import runs_of as integer_runs
from ..schedules.registry import Candidate
from ..schedules.tiles.blocks import blocks_of
from ..schedules.tiles.panel import Panel
from ..schedules.tiles.spec import ConvSpec
from ..schedules.transform import Emit
from . import attributes as names
from .ir import shape
from .layers import LayerReading, operator_of
from .panels import assemble, of_transposed_blocks, on_weights, rounded_to_blocks


def pack(
    emit: Emit,
    args: Sequence[relax.Expr],
    layer: relax.Function,
    reading: LayerReading,
    candidate: Candidate,
    made_by: Callable[[relax.Var], relax.Expr | None],
) -> relax.Var:
    """The panel of a layer's weights among its arguments, with bias and vectors. `made_by` has the values of variables."""
    panel = candidate.panel
    weight = args[reading.weight]
    own = of_transposed_blocks(made_by, weight)  # which have the values of their type
    parts = own if panel.in_blocks else None
    if parts is None and operator_of(layer) == "matmul":
        weight = emit(op.permute_dims(weight, (1, 0)))
    if panel.in_blocks and parts is None:
        parts = rounded_to_blocks(emit, weight, panel.kept)
    kept = str(layer.attrs.get(names.DTYPE, "float32")).removeprefix(names.VALUES_OF)
    if not panel.narrow and kept != "float32" and not (own and blocks_of(kept)):
        weight = on_weights(emit, f"round.{kept}", "float32", shape(weight), weight)
    transform = candidate.transform
    if transform is not None and not transform.of_blocks:
        weight = transform.pack(emit, weight)
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

    if parts is not None:
        head = emit(op.concat([vector(reading.bias), *map(vector, reading.vectors)], axis=1))
        integers = [parts.integers, parts.scales, *([] if parts.zeros is None else [parts.zeros])]
        packed = [rows(one, shape(one)[1]) for one in integers]
        return on_weights(emit, f"pack_blocks.{panel.kept}", panel.dtype, panel.shape, head, *packed)
    if transform is not None and transform.of_blocks:
        taps = transform.pack(emit, blocks(weight, math.prod(shape(weight)) // channels))
    else:
        taps = rows(weight, panel.taps)
    vectors = [vector(i) for i in reading.vectors]
    return assemble(emit, panel, vector(reading.bias), taps, vectors, int(layer.attrs.get(names.INTEGERS, 0)))


def _in_runs(emit: Emit, weight: relax.Expr, spec: ConvSpec, panel: Panel) -> relax.Var:
    """Weights with zeros after every run of products that lie together: integers of a kernel row, or channels of a tap."""
    runs = integer_runs(spec, panel.together)[0] if panel.packs else math.prod(spec.kernel)
    run = panel.taps // runs
    split = emit(op.reshape(weight, (spec.out_channels, runs, spec.taps // runs)))
    if spec.taps < panel.taps:
        missing = emit(op.zeros((spec.out_channels, runs, run - spec.taps // runs), "float32"))
        split = emit(op.concat([split, missing], axis=2))
    return split
