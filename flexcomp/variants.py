"""Several kernels for one layer: a network lowered for small and for fast kernels, and the choices between them.

Both lowerings hold the same layers on the same values. Where their kernels agree they are one layer; where they
do not, the faster one is an alternative, with weights packed for it, that a rung of the ladder may use instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx

from . import plan
from .device import DeviceProfile
from .lower import Lowered, operand_bytes
from .program import Layer

# How many different sets of alternatives the planner is offered, besides none and all.
_CHOICES = 4
# An alternative that saves less than this part of a layer's work is not worth its storage.
_WORTHWHILE = 0.97


@dataclass(frozen=True)
class Network:
    """A lowered network with faster alternatives for some of its layers."""

    base: Lowered
    alternatives: Mapping[int, tuple[Layer, float]]  # by layer: the alternative and its work
    weights: tuple[tuple[str, np.ndarray, int], ...]  # of all layers and alternatives: name, array, offset
    weights_nbytes: int
    kernels: Mapping[str, tirx.PrimFunc]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, then all alternatives."""
        return (*self.base.layers, *(layer for layer, _ in self.alternatives.values()))

    def base_of(self, index: int) -> int:
        """The layer that `layers[index]` is, or is an alternative for."""
        count = len(self.base.layers)
        return index if index < count else list(self.alternatives)[index - count]

    def indices(self, choice: frozenset[int]) -> list[int]:
        """For every layer its index in `layers`, with the alternatives of the layers in `choice`."""
        position = {layer: len(self.base.layers) + i for i, layer in enumerate(self.alternatives)}
        return [position[i] if i in choice else i for i in range(len(self.base.layers))]


def alone(lowered: Lowered) -> Network:
    """A network without alternatives."""
    return Network(lowered, {}, tuple(lowered.weights), lowered.weights_nbytes, lowered.kernels)


def merge(small: Lowered, fast: Lowered) -> Network:
    """One network of two lowerings of it. Kernels of the second get names of their own."""
    assert small.values == fast.values and len(small.layers) == len(fast.layers), "the lowerings differ in structure"
    weights, end = list(small.weights), small.weights_nbytes
    kernels = dict(small.kernels)
    arrays = {offset: (name, array) for name, array, offset in fast.weights}
    alternatives: dict[int, tuple[Layer, float]] = {}
    for index, (one, other) in enumerate(zip(small.layers, fast.layers, strict=True)):
        if one.implementation == other.implementation or fast.work[index] > _WORTHWHILE * small.work[index]:
            continue
        symbol = f"{other.kernel}_fast"
        kernels[symbol] = fast.kernels[other.kernel]
        name = f"{other.name}.{other.implementation.split()[0]}"
        assert other.weights is not None, f"{other.name}: only layers with weights have alternatives"
        weights.append((f"{name}.panel", arrays[other.weights.offset][1], end))
        moved = replace(other.weights, offset=end)
        end += moved.nbytes
        alternatives[index] = (replace(other, name=name, kernel=symbol, weights=moved), fast.work[index])
    return Network(small, alternatives, tuple(weights), end, kernels)


@dataclass(frozen=True)
class Planning:
    """A network as planning problems, one per choice of alternatives, the smallest kernels first."""

    network: Network
    choices: tuple[frozenset[int], ...]
    problems: tuple[plan.Problem, ...]


def planning(network: Network, profile: DeviceProfile, threads: int) -> Planning:
    """The problems among which the planner chooses on every rung.

    Alternatives are taken in the order of seconds saved per additional byte of weights: a choice is the first
    few of them, from none (where loading is the bottleneck) to all (where memory is plenty).
    """
    base = network.base
    seconds = [
        profile.seconds(work, operand_bytes(layer), threads) for layer, work in zip(base.layers, base.work, strict=True)
    ]
    faster = {
        index: profile.seconds(work, operand_bytes(layer), threads)
        for index, (layer, work) in network.alternatives.items()
    }

    def worth(index: int) -> float:
        alternative, _ = network.alternatives[index]
        more = alternative.weights.nbytes - base.layers[index].weights.nbytes
        saved = seconds[index] - faster[index]
        return saved / more if more > 0 else float("inf")

    order = sorted((i for i in faster if faster[i] < seconds[i]), key=lambda i: (-worth(i), i))
    counts = sorted({round(len(order) * part / (_CHOICES + 1)) for part in range(_CHOICES + 2)})
    choices = tuple(frozenset(order[:count]) for count in counts)
    problems = tuple(_problem(network, choice, seconds, faster, profile) for choice in choices)
    return Planning(network, choices, problems)


def _problem(
    network: Network, choice: frozenset[int], seconds: list[float], faster: Mapping[int, float], profile: DeviceProfile
) -> plan.Problem:
    base = network.base
    layers = []
    for index, own in enumerate(base.layers):
        layer = network.alternatives[index][0] if index in choice else own
        weights = layer.weights
        packed = plan.Weights(weights.offset, weights.blocks, weights.block_nbytes) if weights else None
        time = faster[index] if index in choice else seconds[index]
        layers.append(plan.Layer(own.name, layer.scratch_nbytes, packed, time))
    tensors = tuple(
        plan.Tensor(value.name, value.nbytes, start, end)
        for value, (start, end) in zip(base.values, base.lifetimes(), strict=True)
    )
    return plan.Problem(tuple(layers), tensors, plan.Storage(profile.storage_bytes_per_s, profile.load_overhead_s))
