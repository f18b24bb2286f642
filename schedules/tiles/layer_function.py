"""The signature that kernels of layers with weights have in common: (x, tensors…, panel, first, count, y, scratch…)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .blocks_reader import BlocksReader
from .emit import flat
from .panel import Panel
from .panel_reader import PanelReader
from .spec import ConvSpec


@dataclass(frozen=True)
class Operands:
    """The operands of a kernel: every buffer in one dimension, and the blocks of the step."""

    x: tirx.Buffer  # the input, [batch, height, width, in_channels], or rows in 8 bits
    tensors: list[tirx.Buffer]  # of the epilogue, [batch, out_height, out_width, out_channels] each
    panel: PanelReader  # of blocks [first, first + count)
    first: tirx.Expr  # int32
    count: tirx.Expr  # int32
    y: tirx.Buffer  # the target: spec.y_shape
    scratch: list[tirx.Buffer]
    valid: tirx.Expr | None = None  # int32: pixels of the output that are wanted, if the kernel is told


def layer_function(
    spec: ConvSpec,
    panel: Panel,
    emit: Callable[[Operands], None],
    scratch: Sequence[tuple[int, ...]] = (),
    *,
    in_place: bool = False,
    told: bool = False,
) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, scratch…), whose body `emit` emits.

    x is spec.x_dtype[spec.x_shape], y and the tensors spec.dtype[batch, out_height, out_width,
    out_channels]; panel holds `count` blocks, the first of which is block `first` of the layer; `scratch` are shapes of float32.
    If the result has a place in a tensor, y is that tensor, and elements outside of the place are left alone.
    With `in_place` y may be one of the tensors: nothing tells LLVM that buffers are distinct. After y comes int64, if `told`: how
    many pixels are valid.
    """
    assert not (spec.place and spec.tensors), "tensors of an epilogue lie where the result does"
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            if not in_place:
                T.func_attr({"tirx.noalias": True})
            x = T.arg("x", T.buffer(spec.x_shape, spec.x_dtype))
            tensors = [T.arg(f"t{i}", T.buffer(spec.out_shape, spec.dtype)) for i in range(spec.tensors)]
            weights = T.arg("panel", T.buffer(panel.shape, panel.dtype))
            first = T.arg("first", T.int64())
            count = T.arg("count", T.int64())
            y = T.arg("y", T.buffer(spec.y_shape, spec.dtype))
            valid = T.arg("valid", T.int64()) if told else None
            room = [T.arg(f"s{i}", T.buffer(shape, "float32")) for i, shape in enumerate(scratch)]
            operands = Operands(
                x=flat(x, math.prod(spec.x_shape), spec.x_dtype),
                panel=reader(panel, flat(weights, math.prod(panel.shape), panel.dtype), spec.dtype),
                y=flat(y, math.prod(spec.y_shape), spec.dtype),
                tensors=[flat(t, math.prod(spec.out_shape), spec.dtype) for t in tensors],
                scratch=[flat(s, math.prod(shape)) for s, shape in zip(room, scratch, strict=True)],
                first=T.Cast("int32", first),
                count=T.Cast("int32", count),
                valid=None if valid is None else T.bind(_clamped(valid, math.prod(spec.out_shape[:-1]))),
            )
            emit(operands)
    return builder.get()


def reader(panel: Panel, buffer: tirx.Buffer, dtype: str = "float32") -> PanelReader:
    """The reader of a panel's blocks, for products of a type; those of bfloat16 that are not in pairs are of float32."""
    form = panel.in_blocks
    dtype = "float32" if dtype == "bfloat16" else dtype
    return BlocksReader(panel, form, buffer) if form else PanelReader(panel, buffer, dtype)


def _clamped(valid: tirx.Var, pixels: int) -> tirx.Expr:
    within = tirx.max(tirx.min(valid, tirx.const(pixels, "int64")), tirx.const(0, "int64"))
    return tirx.Cast("int32", within)
