"""Weights that are prepared while loading: from which form, in which pieces, with which room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tvm import tirx

from flexcomp import plan
from flexcomp.passes.attributes import CHANNELS, FORM
from flexcomp.program import PAGE, Layer, Preparation, TensorType, Weights
from flexcomp.schedules.preparation import WeightForm, function, preparation

# Bytes that are read before preparing: enough for the storage, and still in a core's cache afterwards.
_PIECE_NBYTES = 512 * 1024
# Pieces there is room for: one is prepared, the next is read.
PIECES = 2


def weights_of(
    layer: Layer, kernel: tirx.PrimFunc, own: Layer, own_kernel: tirx.PrimFunc, kernels: dict[str, tirx.PrimFunc]
) -> Weights | None:
    """The weights of a layer's alternative, made of those of `own`, the layer with its smallest kernel; None if impossible.

    The kernel that makes them is added to `kernels`.
    """
    forms = [(func.attrs or {}).get(FORM) for func in (own_kernel, kernel)]
    if None in forms or own.weights is None:
        return None
    stored, wanted = (WeightForm.decode(str(text)) for text in forms)
    if stored == wanted:
        return own.weights
    way = preparation(stored, wanted)
    if way is None:
        return None
    symbol = f"prepare_{len(kernels)}"
    panel = way.stored
    kernels[symbol] = function(way).with_attr(CHANNELS, [panel.group_channels, panel.block, way.prepared.block])
    made = Preparation(symbol, TensorType(panel.shape, panel.dtype), panel.group_channels)
    return replace(layer.weights, offset=own.weights.offset, preparation=made)


def piece_nbytes(layers: Iterable[Layer]) -> int:
    """Bytes of the largest piece that is read before preparing, in whole pages; 0 without any."""
    prepared = [layer for layer in layers if layer.weights and layer.weights.preparation]
    least = [source(layer, first, 1)[1] for layer in prepared for first in range(layer.weights.blocks)]
    whole = [source(layer, 0, layer.weights.blocks)[1] for layer in prepared]
    return max(*least, min(_PIECE_NBYTES, max(whole))) if prepared else 0


def room_nbytes(piece: int) -> int:
    """Bytes of pieces before preparing, from any multiple of 64 on."""
    return PIECES * piece + PAGE if piece else 0


def stored_of(layer: Layer) -> plan.Stored:
    """The source of a layer's prepared weights."""
    made, panel = layer.weights.preparation, layer.panel.type
    return plan.Stored(layer.weights.offset, made.block_nbytes, made.channels, made.stored.shape[-1], panel.shape[-1])


def source(layer: Layer, first: int, count: int) -> tuple[int, int]:
    """The pages of the data section, (offset, nbytes), that blocks of a layer's prepared weights are made of."""
    return stored_of(layer).pages_of(first, count)


def pieces(layer: Layer, first: int, count: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks, (first, count), that are read in pieces of at most so many bytes."""
    end = first + count
    while first < end:
        some = 1
        while first + some < end and source(layer, first, some + 1)[1] <= most:
            some += 1
        yield first, some
        first += some
