"""Rows of an image with its padding, for kernels that read a packed copy of their input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .spec import ConvSpec


def with_padding(spec: ConvSpec) -> ConvSpec:
    """The convolution of a packed input, which has its padding, and no pixels that nothing reads."""
    height, width = (
        (out - 1) * stride + (kernel - 1) * dilation + 1
        for out, stride, kernel, dilation in zip(spec.out_shape[1:3], spec.stride, spec.kernel, spec.dilation, strict=True)
    )
    return replace(spec, padding=(0, 0, 0, 0), height=height, width=width)


def pack_rows(
    given: ConvSpec,
    seen: ConvSpec,
    image,
    rows: tuple,
    place,
    copy: Callable[[tirx.Expr, tirx.Expr, int], None],
    fill: Callable[[tirx.Expr, int], None],
) -> None:
    """Write rows (first, count) of the packed image `seen` to element `place` and after it.

    `copy(source, target, count)` emits so many elements of the input, `fill(target, count)` so many of padding.
    """
    channels, left = seen.in_channels, given.padding[1]
    inside = min(given.width, seen.width - left)
    first, count = rows
    with T.serial(count) as index:
        row = T.bind(first + index - given.padding[0])
        target = T.bind(place + index * (seen.width * channels))
        with T.If(tirx.all(row >= 0, row < given.height)):
            with T.Then():
                fill(target, left * channels)
                source = T.bind((image * given.height + row) * (given.width * channels))
                copy(source, target + left * channels, inside * channels)
                fill(target + (left + inside) * channels, (seen.width - left - inside) * channels)
            with T.Else():
                fill(target, seen.width * channels)
