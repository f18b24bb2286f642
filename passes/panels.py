"""Panels of weights, put together by operators on the weight side."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from tvm import ir, relax
from tvm.relax import op

from ..schedules.tiles.blocks import blocks_of
from ..schedules.tiles.first_taps import FirstTaps
from ..schedules.tiles.panel import Panel
from .ir import dtype, operator, shape

Emit = Callable[[relax.Call], relax.Var]
_LACKING = "lacking"
_IN_BLOCKS = "in_blocks"
_ROUNDED = "integers_in_blocks"


def assemble(
    emit: Emit, panel: Panel, bias: ir.Expr, taps: ir.Expr, vectors: Sequence[ir.Expr], least: int = 0
) -> relax.Var:
    """The panel of its rows: a bias and channel vectors float32[blocks, 1, block], weights float32[blocks, taps, block].

    `least` is the least input, where inputs are packed.
    """
    if panel.narrow:
        head = emit(op.concat([bias, *vectors], axis=1))
        if panel.together > 1:
            packed = f"pack_together.{panel.kept}.{panel.together}.{least - panel.lowest}"
            return on_weights(emit, packed, panel.dtype, panel.shape, head, taps)
        return on_weights(emit, f"pack.{panel.kept}", panel.dtype, panel.shape, head, taps)
    parts = [bias, taps, *vectors]
    padding = panel.rows - 1 - panel.taps - panel.vectors
    if padding:
        parts.append(emit(op.zeros((panel.blocks, padding, panel.block), "float32")))
    return emit(op.concat(parts, axis=1))


def on_weights(emit: Emit, function: str, dtype: str, wanted: tuple[int, ...], *args: ir.Expr) -> relax.Var:
    """A function of schedules/tiles/narrow_panel.py, which runs on the weight side only."""
    return emit(op.call_pure_packed(f"flexcomp.{function}", *args, ty_args=relax.TensorType(wanted, dtype)))


def with_first_taps(emit: Emit, weight: ir.Expr, first_taps: FirstTaps) -> relax.Var:
    """The same weights, marked: zeros of taps that output channels lack multiply nothing."""
    numbers = ir.StringImm(json.dumps(astuple(first_taps)))
    return on_weights(emit, _LACKING, dtype(weight), shape(weight), weight, numbers)


def lacking(value: ir.Expr | None) -> list[int]:
    """The fields of FirstTaps that weights are marked with; none if they are not."""
    is_marked = operator(value) == "call_pure_packed" and value.args[0].global_symbol == f"flexcomp.{_LACKING}"
    return json.loads(value.args[2].value) if is_marked else []


def in_blocks(emit: Emit, integers: ir.Expr, scales: ir.Expr, zeros: ir.Expr | None, size: int) -> relax.Var:
    """float32[channels, inputs]: integers [channels, inputs] of 8 bits, less zero points, times scales, both of which are
    [channels, blocks], of `size` inputs each."""
    given = [integers, scales, *([] if zeros is None else [zeros])]
    return on_weights(emit, f"{_IN_BLOCKS}.{size}", "float32", shape(integers), *given)


@dataclass(frozen=True)
class OfBlocks:
    """The operands of `in_blocks`."""

    integers: ir.Expr
    scales: ir.Expr
    zeros: ir.Expr | None
    size: int


def of_blocks(value: ir.Expr | None) -> OfBlocks | None:
    """The operands, if this is a call of `in_blocks`."""
    if operator(value) != "call_pure_packed":
        return None
    _, name, *numbers = value.args[0].global_symbol.split(".")
    if name != _IN_BLOCKS:
        return None
    integers, scales, *zeros = value.args[1:]
    return OfBlocks(integers, scales, zeros[0] if zeros else None, int(numbers[0]))


def rounded_to_blocks(emit: Emit, weight: ir.Expr, kept: str) -> OfBlocks:
    """float32 weights [channels, inputs], rounded to integers in the blocks `kept`."""
    form = blocks_of(kept)
    assert form is not None, f"{kept} has no blocks"
    channels, inputs = shape(weight)
    integers = on_weights(emit, f"{_ROUNDED}.{kept}", "int8", (channels, inputs), weight)
    scales = on_weights(emit, f"scales_of_blocks.{kept}", "float32", (channels, form.count(inputs)), weight)
    return OfBlocks(integers, scales, None, form.size)


def before_rounding(value: ir.Expr | None) -> ir.Expr | None:
    """The weights, if this is a call for the integers that they are rounded to."""
    is_rounding = operator(value) == "call_pure_packed" and value.args[0].global_symbol.split(".")[1] == _ROUNDED
    return value.args[1] if is_rounding else None


def of_transposed_blocks(made_by: Callable[[ir.Expr], ir.Expr | None], weight: ir.Expr) -> OfBlocks | None:
    """The operands, if `weight` is a transposed result of `in_blocks`. `made_by` has the values of variables."""
    value = made_by(weight)
    return of_blocks(made_by(value.args[0])) if operator(value) == "permute_dims" else None
