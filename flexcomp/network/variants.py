"""Several kernels for one layer: a network lowered for small, for fast and for other kernels, and the choices between them.

All lowerings hold the same layers on the same values. Layers with equal kernels are one; otherwise
the faster one is an alternative, with its own packed weights, that a rung of the ladder may use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tvm import tirx
from tvm_ffi import structural_equal

from flexcomp.deferred import Array
from flexcomp.passes.attributes import with_scratch
from flexcomp.program import Layer, Value, Weights, nodes
from flexcomp.schedules.row_bands import RowKernel, Rows

from . import preparing
from .fetching import fetching
from .lowered import Lowered

Choice = frozenset[int]  # indices of alternatives, at most one for each layer

# An alternative that saves less than this part of a layer's work is not worth its storage.
_WORTHWHILE = 0.97
# Bytes in a second form that store="auto" may add, as a part of the file.
_SECOND_FORMS = 0.25


@dataclass(frozen=True)
class Alternative:
    """Another kernel for a layer, with its own packed weights."""

    base: int  # its layer
    layer: Layer
    work: float  # as Lowered.work
    seconds: float | None = None  # as Lowered.seconds
    rows: RowKernel | None = None  # as Lowered.rows


@dataclass(frozen=True)
class Band:
    """A layer's work on some rows of its output."""

    base: int  # the layer
    rows: Rows
    layer: Layer
    work: float  # as Lowered.work
    whole: int  # of all layers and alternatives the one whose rows this computes
    instead_of: int | None = None  # the band of the same rows by the layer's own kernel, if this has another


@dataclass(frozen=True)
class BandKernel:
    """The kernel of a band, not made yet: many are looked at, and few of them have to be compiled."""

    rows: RowKernel

    @property
    def identity(self) -> str:
        """Its inputs; equal only for equal kernels."""
        return self.rows.encode()

    @cached_property
    def code(self) -> tirx.PrimFunc:
        """The made kernel."""
        return with_scratch(self.rows.build(), self.rows.scratch)


@dataclass(frozen=True)
class Network:
    """A lowered network with alternatives for some of its layers, and with bands of some."""

    base: Lowered
    alternatives: tuple[Alternative, ...]  # those of one layer in the order of the lowerings
    weights: tuple[tuple[str, Array, int], ...]  # of all layers and alternatives: name, array, offset
    weights_nbytes: int
    kernels: Mapping[str, tirx.PrimFunc]
    bands: tuple[Band, ...] = ()
    band_values: tuple[Value, ...] = ()  # between the layers of a band
    band_kernels: Mapping[str, RowKernel] = field(default_factory=dict)  # by symbol

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, then all alternatives, then all bands."""
        return (*self.base.layers, *(other.layer for other in (*self.alternatives, *self.bands)))

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values of all layers."""
        return (*self.base.values, *self.band_values)

    def base_of(self, index: int) -> int:
        """The layer that `layers[index]` is, or is an alternative for, or a band of."""
        count = len(self.base.layers)
        return index if index < count else (*self.alternatives, *self.bands)[index - count].base

    @property
    def nodes(self) -> dict[str, str]:
        """The ONNX nodes of `layers`, by name, where known."""
        return {name: self.base.nodes[base] for name, base in self.origins.items() if base in self.base.nodes}

    @property
    def origins(self) -> dict[str, str]:
        """The layer of `base` that each of `layers` computes, whole or in a band, by name."""
        names = [layer.name for layer in self.base.layers]
        origin = [*names, *(names[other.base] for other in (*self.alternatives, *self.bands))]
        return {layer.name: base for layer, base in zip(self.layers, origin, strict=True)}

    def titled(self, layer: str) -> str:
        """The name of a layer in a sentence: with its ONNX node."""
        return nodes.titled(layer, self.nodes.get(layer))

    def rivals(self) -> dict[int, list[int]]:
        """By the index of a layer, or of a band by its own kernel, those of others that compute the same by other kernels."""
        count = len(self.base.layers)
        result: dict[int, list[int]] = {}
        for index, alternative in enumerate(self.alternatives, count):
            result.setdefault(alternative.base, []).append(index)
        first = count + len(self.alternatives)
        for index, band in enumerate(self.bands, first):
            if band.instead_of is not None:
                result.setdefault(first + band.instead_of, []).append(index)
        return result

    @property
    def made_as(self) -> tuple[int, ...]:
        """Per layer the first one whose weights an equal kernel prepares of the same stored bytes; itself if there is none."""
        first: dict[tuple, list[int]] = {}
        result = []
        for index, layer in enumerate(self.layers):
            weights = layer.weights
            if weights is None or weights.preparation is None:
                result.append(index)
                continue
            made, blocks = weights.preparation, (weights.blocks, weights.block_nbytes, layer.panel.type)
            alike = first.setdefault((weights.offset, made.stored, made.channels, *blocks), [])
            kernel = self.kernels[made.kernel]
            same = (one for one in alike if structural_equal(self.kernels[self.layers[one].weights.preparation.kernel], kernel))
            result.append(next(same, index))
            if result[-1] == index:
                alike.append(index)
        return tuple(result)

    def kernels_of(self, layers: Iterable[Layer]) -> dict[str, tirx.PrimFunc | BandKernel]:
        """The kernels that layers call, and those that prepare their weights, by symbol."""
        symbols = dict.fromkeys(layer.kernel for layer in layers)
        symbols |= dict.fromkeys(
            layer.weights.preparation.kernel for layer in layers if layer.weights and layer.weights.preparation
        )
        return {symbol: self.kernel(symbol) for symbol in symbols}

    def kernel(self, symbol: str) -> tirx.PrimFunc | BandKernel:
        """A kernel's code, or the way to make that."""
        band = self.band_kernels.get(symbol)
        return BandKernel(band) if band else self.kernels[symbol]

    def indices(self, choice: Choice) -> list[int]:
        """For every layer its index in `layers`, with the alternatives that are chosen."""
        count = len(self.base.layers)
        result = list(range(count))
        for index in choice:
            result[self.alternatives[index].base] = count + index
        return result


def merge(
    lowerings: Iterable[Lowered],
    store: str = "prepared",
    expensive: Callable[[Weights], bool] = lambda weights: False,
    worthwhile: float = _WORTHWHILE,
    width: int | None = None,
) -> Network:
    """One network of several lowerings, of which the first has the smallest kernels; those of the others get new names.

    An alternative is kept if its time, or its work if not measured, is less than the part `worthwhile` of
    the layer's own. By `store` weights of alternatives lie in the file ("prepared"), or are prepared from the layer's own during
    loading, and there are no alternatives with others ("once"); "auto" is the latter, but where weights cannot be
    prepared, or are `expensive`, they lie in the file while there is room, a part of the bytes of all layers' own.
    Tables of which few rows are looked up are read by the row, by kernels with vectors of `width` floats, and the layers that
    hold them are alternatives; not if there is no `width`.
    """
    lowerings = iter(lowerings)
    small = next(lowerings)
    weights, end = list(small.weights), small.weights_nbytes
    most = (1 + _SECOND_FORMS) * end
    kernels = dict(small.kernels)
    alternatives: list[Alternative] = []
    known = {(index, layer.implementation) for index, layer in enumerate(small.layers)}
    names = {layer.name for layer in small.layers}
    own_layers = list(small.layers)
    for index, layer in enumerate(small.layers if width else ()):
        if (found := fetching(layer, kernels, width)) is not None:
            own_layers[index], kernel = found
            kernels[own_layers[index].kernel] = kernel
            held = replace(layer, name=_name(layer, names))
            names.add(held.name)
            alternatives.append(Alternative(index, held, small.work[index], small.seconds[index], small.rows[index]))
    for number, lowered in enumerate(lowerings, 1):
        assert small.values == lowered.values and len(small.layers) == len(lowered.layers), "they differ in structure"
        arrays = {offset: array for _, array, offset in lowered.weights}
        placed: dict[int, int] = {}  # where weights of this lowering that lie in the file, too, begin there
        for index, (layer, work) in enumerate(zip(lowered.layers, lowered.work, strict=True)):
            if (index, layer.implementation) in known:
                continue
            seconds, own_seconds = lowered.seconds[index], small.seconds[index]
            part = work / small.work[index] if None in (seconds, own_seconds) else seconds / own_seconds
            if part > worthwhile:
                continue
            known.add((index, layer.implementation))
            symbol, name = f"{layer.kernel}_{number}", _name(layer, names)
            assert layer.weights is not None, f"{layer.name}: only layers with weights have alternatives"
            kernel, own = lowered.kernels[layer.kernel], small.layers[index]
            moved = None
            if store != "prepared":
                moved = preparing.weights_of(layer, kernel, own, small.kernels[own.kernel], kernels)
            there = layer.weights.offset in placed
            fits = there or store == "prepared" or (store == "auto" and end + layer.weights.nbytes <= most)
            if fits and (moved is None or (moved.preparation is not None and expensive(moved))):
                if not there:
                    weights.append((f"{name}.panel", arrays[layer.weights.offset], end))
                    placed[layer.weights.offset] = end
                    end += layer.weights.nbytes
                moved = replace(layer.weights, offset=placed[layer.weights.offset])
            if moved is None:
                continue
            names.add(name)
            kernels[symbol] = kernel
            moved_layer = replace(layer, name=name, kernel=symbol, weights=moved)
            alternatives.append(Alternative(index, moved_layer, work, seconds, lowered.rows[index]))
    small = replace(small, layers=own_layers, kernels=kernels) if small.layers != own_layers else small
    return Network(small, tuple(alternatives), tuple(weights), end, kernels)


def _name(layer: Layer, taken: set[str]) -> str:
    """conv2d.3 → conv2d.3.winograd, with the part of the kernel's name that tells this one from others."""
    words = layer.implementation.split()
    names = (f"{layer.name}.{'.'.join(words[:count])}" for count in range(1, len(words) + 1))
    return next(name for name in names if name not in taken)
