"""Several kernels for one layer: a network lowered for small and for fast kernels, and the choices between them.

All lowerings hold the same layers on the same values. Where their kernels agree they are one layer; where they
do not, the faster one is an alternative, with weights packed for it, that a rung of the ladder may use instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tvm import tirx

from . import plan
from .contents import contents_of
from .device import DeviceProfile
from .in_place import lives_of_places, shared_places
from .lower import Lowered, operand_bytes
from .program import Layer, Value
from .schedules.row_bands import RowKernel
from .split_rows import Band

Choice = frozenset[int]  # indices of alternatives, at most one for each layer

# How many different sets of alternatives the planner is offered, besides none and all.
_CHOICES = 4
# An alternative that saves less than this part of a layer's work is not worth its storage.
_WORTHWHILE = 0.97


@dataclass(frozen=True)
class Alternative:
    """Another kernel for a layer, with weights packed for it."""

    base: int  # the layer it computes
    layer: Layer
    work: float  # as Lowered.work
    seconds: float | None = None  # as Lowered.seconds


@dataclass(frozen=True)
class Network:
    """A lowered network with alternatives for some of its layers, and with bands of some."""

    base: Lowered
    alternatives: tuple[Alternative, ...]  # those of one layer in the order of the lowerings they come from
    weights: tuple[tuple[str, np.ndarray, int], ...]  # of all layers and alternatives: name, array, offset
    weights_nbytes: int
    kernels: Mapping[str, tirx.PrimFunc]
    in_place: Mapping[str, tuple[int, ...]]  # by symbol, as Lowered.in_place
    bands: tuple[Band, ...] = ()
    band_values: tuple[Value, ...] = ()  # between the layers of a band
    band_kernels: Mapping[str, RowKernel] = field(default_factory=dict)  # by symbol

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, then all alternatives, then all bands."""
        return (*self.base.layers, *(other.layer for other in (*self.alternatives, *self.bands)))

    @property
    def values(self) -> tuple[Value, ...]:
        """All values of all layers."""
        return (*self.base.values, *self.band_values)

    def base_of(self, index: int) -> int:
        """The layer that `layers[index]` is, or is an alternative for, or a band of."""
        count = len(self.base.layers)
        return index if index < count else (*self.alternatives, *self.bands)[index - count].base

    def kernel(self, symbol: str) -> tirx.PrimFunc:
        """A kernel's code; that of bands is made on demand."""
        return self.band_kernels[symbol].build() if symbol in self.band_kernels else self.kernels[symbol]

    def indices(self, choice: Choice) -> list[int]:
        """For every layer its index in `layers`, with the alternatives that are chosen."""
        count = len(self.base.layers)
        result = list(range(count))
        for index in choice:
            result[self.alternatives[index].base] = count + index
        return result


def alone(lowered: Lowered) -> Network:
    """A network without alternatives."""
    return Network(lowered, (), tuple(lowered.weights), lowered.weights_nbytes, lowered.kernels, lowered.in_place)


def merge(small: Lowered, *others: Lowered, worthwhile: float = _WORTHWHILE) -> Network:
    """One network of several lowerings of it. Kernels of all but the first get names of their own.

    An alternative is kept if its time, or its work where it was not measured, is less than the part `worthwhile` of
    the layer's own.
    """
    weights, end = list(small.weights), small.weights_nbytes
    kernels, in_place = dict(small.kernels), dict(small.in_place)
    alternatives: list[Alternative] = []
    known = {(index, layer.implementation) for index, layer in enumerate(small.layers)}
    for number, lowered in enumerate(others, 1):
        assert small.values == lowered.values and len(small.layers) == len(lowered.layers), "they differ in structure"
        arrays = {offset: array for _, array, offset in lowered.weights}
        for index, (layer, work) in enumerate(zip(lowered.layers, lowered.work, strict=True)):
            if (index, layer.implementation) in known:
                continue
            seconds, own_seconds = lowered.seconds[index], small.seconds[index]
            part = work / small.work[index] if None in (seconds, own_seconds) else seconds / own_seconds
            if part > worthwhile:
                continue
            known.add((index, layer.implementation))
            symbol, name = f"{layer.kernel}_{number}", f"{layer.name}.{layer.implementation.split()[0]}"
            kernels[symbol] = lowered.kernels[layer.kernel]
            in_place[symbol] = lowered.in_place.get(layer.kernel, ())
            assert layer.weights is not None, f"{layer.name}: only layers with weights have alternatives"
            weights.append((f"{name}.panel", arrays[layer.weights.offset], end))
            moved = replace(layer.weights, offset=end)
            end += moved.nbytes
            moved_layer = replace(layer, name=name, kernel=symbol, weights=moved)
            alternatives.append(Alternative(index, moved_layer, work, seconds))
    return Network(small, tuple(alternatives), tuple(weights), end, kernels, in_place)


@dataclass(frozen=True)
class Form:
    """One way to compute the network."""

    layers: tuple[int, ...]  # indices into Network.layers, in the order of computing
    values: tuple[int, ...]  # indices into Network.values, those in use
    tensors: tuple[int, ...]  # for each of them the tensor of the problem that it is, alone or with others
    problem: plan.Problem  # its layers in the order above


@dataclass(frozen=True)
class Planning:
    """A network in all its forms: first with whole layers, one form per choice of alternatives, then in bands of rows."""

    network: Network
    whole: tuple[Form, ...]  # the smallest kernels first
    banded: tuple[Form, ...] = ()  # the smallest memory first; only where they need less than the whole ones
    fixed_order: bool = False  # a rung takes the last form that can be planned, not the fastest plan

    @property
    def forms(self) -> tuple[Form, ...]:
        """All forms, the one with the smallest memory first."""
        return (*self.banded, *self.whole)

    def on(self, storage: plan.Storage) -> Planning:
        """The same, to be loaded from `storage`."""

        def moved(form: Form) -> Form:
            return replace(form, problem=replace(form.problem, storage=storage))

        return replace(self, whole=tuple(map(moved, self.whole)), banded=tuple(map(moved, self.banded)))


def planning(network: Network, profile: DeviceProfile, threads: int) -> Planning:
    """The problems among which the planner chooses on every rung.

    Alternatives are taken in the order of seconds saved per additional byte of weights: a choice is the first
    few of them, from none (where loading is the bottleneck) to all (where memory is plenty).
    """
    seconds = layer_seconds(network, profile, threads)
    count = len(network.base.layers)

    def saved(index: int) -> float:
        return seconds[network.alternatives[index].base] - seconds[count + index]

    def worth(index: int) -> float:
        alternative = network.alternatives[index]
        more = alternative.layer.weights.nbytes - network.base.layers[alternative.base].weights.nbytes
        return saved(index) / more if more > 0 else float("inf")

    order = sorted((i for i in range(len(network.alternatives)) if saved(i) > 0), key=lambda i: (-worth(i), i))
    counts = sorted({round(len(order) * part / (_CHOICES + 1)) for part in range(_CHOICES + 2)})
    return planning_of(network, [frozenset(order[:count]) for count in counts], seconds, profile)


def planning_of(
    network: Network,
    choices: Sequence[Choice],
    seconds: Sequence[float],
    profile: DeviceProfile,
    fixed_order: bool = False,
) -> Planning:
    """The forms of the given choices; `seconds` as by `layer_seconds`."""
    forms = tuple(form_of(network, network.indices(choice), seconds, profile) for choice in choices)
    return Planning(network, forms, fixed_order=fixed_order)


def layer_seconds(network: Network, profile: DeviceProfile, threads: int) -> list[float]:
    """The time of every layer, alternative and band, measured or else predicted, in the order of `network.layers`."""
    work = [*network.base.work, *(other.work for other in (*network.alternatives, *network.bands))]
    predicted = [
        profile.layer_seconds(layer, operations, operand_bytes(layer), threads)
        for layer, operations in zip(network.layers, work, strict=True)
    ]
    measured = [*network.base.seconds, *(alternative.seconds for alternative in network.alternatives)]
    # A band does what its layer does, on fewer rows.
    measured += [
        None if (whole := network.base.seconds[band.base]) is None else time * whole / predicted[band.base]
        for band, time in zip(network.bands, predicted[len(measured) :], strict=True)
    ]
    return [time if known is None else known for time, known in zip(predicted, measured, strict=True)]


def form_of(network: Network, indices: Sequence[int], seconds: Sequence[float], profile: DeviceProfile) -> Form:
    """The form that computes these layers; `seconds` as by `layer_seconds`."""
    layers = [network.layers[index] for index in indices]
    lives = network.base.lifetimes(layers)
    values = network.values
    place = shared_places(values, layers, lives, network.in_place, {port.value for port in network.base.outputs})
    tensors = lives_of_places(lives, place)
    position = {value: index for index, value in enumerate(tensors)}
    problem = plan.Problem(
        tuple(_planned(layer, seconds[index], profile) for layer, index in zip(layers, indices, strict=True)),
        tuple(plan.Tensor(values[value].name, values[value].nbytes, *live) for value, live in tensors.items()),
        profile.storage,
        contents_of(network.base, layers, values, network.in_place, {v: position[place[v]] for v in lives}),
    )
    return Form(tuple(indices), tuple(lives), tuple(position[place[value]] for value in lives), problem)


def _planned(layer: Layer, seconds: float, profile: DeviceProfile) -> plan.Layer:
    weights = layer.weights
    packed = plan.Weights(weights.offset, weights.blocks, weights.block_nbytes) if weights else None
    return plan.Layer(layer.name, layer.scratch_nbytes, packed, seconds, profile.slice_seconds(layer))
