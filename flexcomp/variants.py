"""Several kernels for one layer: a network lowered for small and for fast kernels, and the choices between them.

All lowerings hold the same layers on the same values. Where their kernels agree they are one layer; where they
do not, the faster one is an alternative, with weights packed for it, that a rung of the ladder may use instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx

from . import plan
from .device import DeviceProfile
from .lower import Lowered, operand_bytes
from .program import Layer

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


@dataclass(frozen=True)
class Network:
    """A lowered network with alternatives for some of its layers."""

    base: Lowered
    alternatives: tuple[Alternative, ...]  # those of one layer in the order of the lowerings they come from
    weights: tuple[tuple[str, np.ndarray, int], ...]  # of all layers and alternatives: name, array, offset
    weights_nbytes: int
    kernels: Mapping[str, tirx.PrimFunc]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, then all alternatives."""
        return (*self.base.layers, *(alternative.layer for alternative in self.alternatives))

    def base_of(self, index: int) -> int:
        """The layer that `layers[index]` is, or is an alternative for."""
        count = len(self.base.layers)
        return index if index < count else self.alternatives[index - count].base

    def indices(self, choice: Choice) -> list[int]:
        """For every layer its index in `layers`, with the alternatives that are chosen."""
        count = len(self.base.layers)
        result = list(range(count))
        for index in choice:
            result[self.alternatives[index].base] = count + index
        return result


def alone(lowered: Lowered) -> Network:
    """A network without alternatives."""
    return Network(lowered, (), tuple(lowered.weights), lowered.weights_nbytes, lowered.kernels)


def merge(small: Lowered, *others: Lowered, worthwhile: float = _WORTHWHILE) -> Network:
    """One network of several lowerings of it. Kernels of all but the first get names of their own.

    An alternative is kept if its work is less than the part `worthwhile` of the layer's own.
    """
    weights, end = list(small.weights), small.weights_nbytes
    kernels = dict(small.kernels)
    alternatives: list[Alternative] = []
    known = {(index, layer.implementation) for index, layer in enumerate(small.layers)}
    for number, lowered in enumerate(others, 1):
        assert small.values == lowered.values and len(small.layers) == len(lowered.layers), "they differ in structure"
        arrays = {offset: array for _, array, offset in lowered.weights}
        for index, (layer, work) in enumerate(zip(lowered.layers, lowered.work, strict=True)):
            if (index, layer.implementation) in known or work > worthwhile * small.work[index]:
                continue
            known.add((index, layer.implementation))
            symbol, name = f"{layer.kernel}_{number}", f"{layer.name}.{layer.implementation.split()[0]}"
            kernels[symbol] = lowered.kernels[layer.kernel]
            assert layer.weights is not None, f"{layer.name}: only layers with weights have alternatives"
            weights.append((f"{name}.panel", arrays[layer.weights.offset], end))
            moved = replace(layer.weights, offset=end)
            end += moved.nbytes
            alternatives.append(Alternative(index, replace(layer, name=name, kernel=symbol, weights=moved), work))
    return Network(small, tuple(alternatives), tuple(weights), end, kernels)


@dataclass(frozen=True)
class Planning:
    """A network as planning problems, one per choice of alternatives, the smallest kernels first."""

    network: Network
    choices: tuple[Choice, ...]
    problems: tuple[plan.Problem, ...]
    fixed_order: bool = False  # a rung takes the last problem that can be planned, not the fastest plan


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
    """The problems of the given choices; `seconds` as by `layer_seconds`."""
    problems = tuple(_problem(network, network.indices(choice), seconds, profile) for choice in choices)
    return Planning(network, tuple(choices), problems, fixed_order)


def layer_seconds(network: Network, profile: DeviceProfile, threads: int) -> list[float]:
    """The predicted time of every layer and every alternative, in the order of `network.layers`."""
    work = [*network.base.work, *(alternative.work for alternative in network.alternatives)]
    return [
        profile.seconds(operations, operand_bytes(layer), threads)
        for layer, operations in zip(network.layers, work, strict=True)
    ]


def _problem(
    network: Network, indices: Sequence[int], seconds: Sequence[float], profile: DeviceProfile
) -> plan.Problem:
    base, all_layers = network.base, network.layers
    layers = []
    for own, index in zip(base.layers, indices, strict=True):
        weights = all_layers[index].weights
        packed = plan.Weights(weights.offset, weights.blocks, weights.block_nbytes) if weights else None
        layers.append(plan.Layer(own.name, all_layers[index].scratch_nbytes, packed, seconds[index]))
    tensors = tuple(
        plan.Tensor(value.name, value.nbytes, start, end)
        for value, (start, end) in zip(base.values, base.lifetimes(), strict=True)
    )
    return plan.Problem(tuple(layers), tensors, plan.Storage(profile.storage_bytes_per_s, profile.load_overhead_s))
