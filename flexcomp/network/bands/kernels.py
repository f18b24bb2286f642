"""Bands of rows by other kernels than the smallest: the same rows by a layer's alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flexcomp.program import Arg, Layer, ScratchArg, TensorType, ValueArg
from flexcomp.schedules.row_bands import RowKernel

from ..lowered import Lowered, align
from ..variants import Alternative, Band

# A kernel that saves less than this part of a band's work is not worth its weights and scratch.
_WORTHWHILE = 0.97


def other_kernels(
    lowered: Lowered, alternatives: Sequence[Alternative], bands: Sequence[Band]
) -> Iterator[tuple[Band, RowKernel]]:
    """For every band those of the same rows by the alternatives that can, with the kernel that computes them.

    They read and write the same as the band, and have weights and scratch of their own.
    """
    symbols: dict[tuple[str, RowKernel], str] = {}
    for at, band in enumerate(bands):
        for index, other in enumerate(alternatives):
            if other.base != band.base or other.rows is None:
                continue
            kernel = other.rows.band(band.rows)
            work = other.work * kernel.flops / other.layer.flops if kernel.work is None else kernel.work
            if work > _WORTHWHILE * band.work:
                continue
            symbol = symbols.setdefault((other.layer.kernel, kernel), f"{other.layer.kernel}_rows_{len(symbols)}")
            name = other.layer.name + band.layer.name.removeprefix(lowered.layers[band.base].name)
            layer = _on_rows(replace(other.layer, name=name, kernel=symbol), band.layer, kernel)
            yield Band(band.base, band.rows, layer, work, len(lowered.layers) + index, at), kernel


def with_scratch_of(kernel: RowKernel, args: Sequence[Arg]) -> tuple[tuple[Arg, ...], int]:
    """A layer's operands with the scratch of another kernel, and the bytes of that."""
    scratch = iter(TensorType(shape, "float32") for shape in kernel.scratch)
    changed, end = [], 0
    for arg in args:
        if isinstance(arg, ScratchArg):
            arg = ScratchArg(end, next(scratch))
            end += align(arg.type.nbytes)
        changed.append(arg)
    return tuple(changed), end


def _on_rows(layer: Layer, band: Layer, kernel: RowKernel) -> Layer:
    """A layer with the values of one of its bands, and the scratch of the kernel."""
    values = iter(arg for arg in band.args if isinstance(arg, ValueArg))
    args, end = with_scratch_of(kernel, [next(values) if isinstance(arg, ValueArg) else arg for arg in layer.args])
    return replace(layer, description=band.description, args=args, scratch_nbytes=end, flops=band.flops)
