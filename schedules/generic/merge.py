"""Merges stages before loops are made of them again.

    inline            an elementwise producer is computed where its elements are read
    fuse epilogues    an elementwise consumer of a reduction is computed from the accumulator

Remaining intermediate tensors become scratch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from ..nests.stages import Axis, Stage, called_operators, contains, is_zero, loads, replace_loads, simplify, substitute

# Producers with one of these are recomputed only where that is no extra work.
_EXPENSIVE_CALLS = frozenset(
    f"tirx.{name}"
    for name in (
        *("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "tanh", "sigmoid"),
        *("erf", "pow", "sin", "cos", "tan", "sqrt", "rsqrt"),
    )
)
# Copies of a producer's expression at most: beyond, its result is stored.
_MAX_READERS = 4
_CONDITIONAL = "prim.if_then_else"


def merge(stages: list[Stage], intermediates: Iterable[tirx.Buffer]) -> list[Stage]:
    """Inline producers and fuse epilogues until neither applies; order is kept.

    Producers with one reader come first, the last ones before their own producers: so a value that a reader needs
    twice is seen twice in one place, and bound there, rather than copied along two ways.
    """
    intermediates = list(reversed(list(intermediates)))
    while True:
        merged = stages
        for buffer in intermediates:
            merged = _merge_at(merged, buffer, most_readers=1)
        if len(merged) == len(stages):
            for buffer in reversed(intermediates):
                merged = _merge_at(merged, buffer, most_readers=_MAX_READERS)
                if len(merged) < len(stages):
                    break
            else:
                return merged
        stages = merged


def _merge_at(stages: list[Stage], buffer: tirx.Buffer, most_readers: int) -> list[Stage]:
    producers = [stage for stage in stages if stage.buffer.same_as(buffer)]
    if len(producers) != 1:
        return stages
    (producer,) = producers
    readers = [stage for stage in stages if _reads(stage, buffer)]
    if not readers:
        return [stage for stage in stages if stage is not producer]
    if len(readers) > most_readers:
        return stages
    if producer.reduction is None:
        if not _covers(producer) or not all(_may_inline(producer, reader) for reader in readers):
            return stages
        merged = {id(reader): _inline(producer, reader) for reader in readers}
    else:
        fused = _fuse_epilogue(producer, readers[0]) if len(readers) == 1 else None
        if fused is None:
            return stages
        merged = {id(readers[0]): fused}
    return [merged.get(id(stage), stage) for stage in stages if stage is not producer]


def _reads(stage: Stage, buffer: tirx.Buffer) -> bool:
    return any(load.source.same_as(buffer) for expr in stage.expressions for load in loads(expr))


def _axis_of_index(stage: Stage) -> list[Axis | None] | None:
    """Per index of the store, its axis, None for a constant 0; None if an index is anything else."""
    result: list[Axis | None] = []
    for index in stage.indices:
        axis = next((axis for axis in stage.axes if axis.var.same_as(index)), None)
        if axis is None and not is_zero(index):
            return None
        result.append(axis)
    return result


def _covers(stage: Stage) -> bool:
    """Whether every element of the buffer is stored once, by the iteration of its own coordinates."""
    axes = _axis_of_index(stage)
    if axes is None:
        return False
    used = [axis.var for axis in axes if axis is not None]
    extents = [1 if axis is None else axis.extent for axis in axes]
    unused = [axis for axis in stage.axes if axis.var not in used and axis.extent > 1]
    return len(set(used)) == len(used) and not unused and extents == [int(e) for e in stage.buffer.shape]


def _may_inline(producer: Stage, reader: Stage) -> bool:
    """Whether computing the producer's elements where the reader needs them is no more than twice the work.

    Cheap elementwise values may be computed more often, but not within a reduction if those hold conditions or
    change the order of elements: the reduction's loops would inherit both.
    """
    reads = sum(load.source.same_as(producer.buffer) for expr in reader.expressions for load in loads(expr))
    repeats = reads * reader.iterations / producer.points
    if repeats <= 2:
        return True
    calls = called_operators(producer.value)
    if calls & _EXPENSIVE_CALLS or contains(producer.value, tirx.Div):
        return False
    if reader.reduction is None:
        return True
    if _CONDITIONAL in calls or contains(producer.value, tirx.Select):
        return False
    innermost = producer.indices[-1] if producer.indices else None
    return all(
        not load.indices or tvm_ffi.structural_equal(load.indices[-1], innermost) or is_zero(load.indices[-1])
        for load in loads(producer.value)
    )


def _inline(producer: Stage, reader: Stage) -> Stage:
    axes = _axis_of_index(producer)

    def value_of(load: ir.TensorLoad) -> ir.Expr:
        values = {axis.var: index for axis, index in zip(axes, load.indices, strict=True) if axis is not None}
        values |= {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in producer.axes if axis.var not in values}
        return substitute(producer.value, values)

    def inlined(expr: ir.Expr) -> ir.Expr:
        own = [load for load in loads(expr) if load.source.same_as(producer.buffer)]
        # A value read twice is bound once, lest expressions double with every producer. Not next to conditions:
        # these may guard the very load.
        if len(own) > 1 and _CONDITIONAL not in called_operators(expr) | called_operators(producer.value):
            first = own[0]
            if all(tvm_ffi.structural_equal(load, first) for load in own):
                value = value_of(first)
                if contains(value, (ir.Call, tirx.Div)) or len(loads(value)) > 1:
                    is_bool = producer.buffer.dtype == "bool"  # which TVM cannot bind where it compares vectors
                    shared = tirx.Var("shared", "int32" if is_bool else producer.buffer.dtype)
                    read = shared != 0 if is_bool else shared
                    body = replace_loads(expr, lambda load: read if load.source.same_as(own[0].source) else load)
                    return tirx.Let(shared, tirx.Select(value, 1, 0) if is_bool else value, body)
        return replace_loads(expr, lambda load: value_of(load) if load.source.same_as(producer.buffer) else load)

    return reader.map(inlined)


def _fuse_epilogue(producer: Stage, reader: Stage) -> Stage | None:
    """The reduction with the reader's value computed from its accumulator, None unless both run over the same."""
    if reader.reduction is not None or reader.points != producer.points or not _covers(producer):
        return None
    own = [load for load in loads(reader.value) if load.source.same_as(producer.buffer)]
    first = own[0]
    if any(not tvm_ffi.structural_equal(load, first) for load in own):
        return None
    values: dict[tirx.Var, ir.Expr] = {}
    taken: list[tirx.Var] = []
    for axis, index in zip(_axis_of_index(producer), first.indices, strict=True):
        index = simplify(index, reader.axes)
        if axis is None:
            continue
        match = next((a for a in reader.axes if a.var.same_as(index) and a.extent == axis.extent), None)
        if match is None and not (axis.extent == 1 and is_zero(index)):
            return None
        if match is not None:
            taken.append(match.var)
        values[axis.var] = index
    if len(set(taken)) != len(taken):
        return None
    values |= {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in producer.axes if axis.var not in values}
    result = substitute(producer.value, values)

    def value_of(load: ir.TensorLoad) -> ir.Expr:
        return result if load.source.same_as(producer.buffer) else load

    reduction = replace(producer.reduction, update=substitute(producer.reduction.update, values))
    return replace(reader, value=replace_loads(reader.value, value_of), reduction=reduction)
