"""The forms of a network between which plans choose: their kernels, with whole layers or in bands of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexcomp import plan
from flexcomp.device import DeviceProfile
from flexcomp.program import Layer, Value

from . import preparing
from .fetching import fetch_seconds
from .in_place import lives_of_places, shared_places
from .lowered import operand_bytes
from .value_uses import planned_values
from .variants import Choice, Network


@dataclass(frozen=True)
class Costs:
    """The costs for planning a network; times in seconds, in the order of `Network.layers`."""

    seconds: tuple[float, ...]  # as by `layer_seconds`, and to fetch rows
    slice_s: tuple[float, ...]  # that each further slice adds
    storage: plan.Storage
    prepare_s: float = 0.0  # of a core, for a byte of prepared weights
    fresh_s: float = 0.0  # and to make a byte of memory exist
    made_as: tuple[int, ...] = ()  # per layer the first whose weights are prepared alike; itself if this is the first


@dataclass(frozen=True)
class Form:
    """One way to compute the network."""

    layers: tuple[int, ...]  # indices into Network.layers, in the order of computing
    values: tuple[int, ...]  # indices into Network.values, those in use
    buffers: tuple[int, ...]  # for each value its buffer of the problem, alone or with others
    problem: plan.Problem  # its layers in the order above
    piece: int = 0  # bytes; the last buffer of the problem has room for pieces that are read before preparing


@dataclass(frozen=True)
class Planning:
    """A network in all its forms: first with whole layers, one form per choice of alternatives, then in bands of rows."""

    network: Network
    costs: Costs
    whole: tuple[Form, ...]  # the smallest kernels first
    banded: tuple[Form, ...] = ()  # the smallest memory first; only those that need less than the whole ones
    fixed_order: bool = False  # a rung takes the last form that can be planned, not the fastest plan

    @property
    def forms(self) -> tuple[Form, ...]:
        """All forms, the one with the smallest memory first."""
        return (*self.banded, *self.whole)

    def on(self, storage: plan.Storage) -> Planning:
        """The same, to be loaded from `storage` by the same cores."""
        storage = replace(storage, core_contention=self.costs.storage.core_contention)
        fetched = [[fetch_seconds(layer, one) for layer in self.network.layers] for one in (self.costs.storage, storage)]
        seconds = tuple(s - old + new for s, old, new in zip(self.costs.seconds, *fetched, strict=True))
        costs = replace(self.costs, storage=storage, seconds=seconds)

        def moved(form: Form) -> Form:
            layers = tuple(planned_layer(self.network.layers[index], index, costs) for index in form.layers)
            return replace(form, problem=replace(form.problem, storage=storage, layers=layers))

        return replace(
            self,
            costs=costs,
            whole=tuple(map(moved, self.whole)),
            banded=tuple(map(moved, self.banded)),
        )


def planning_of(network: Network, choices: Sequence[Choice], costs: Costs, fixed_order: bool = False) -> Planning:
    """The forms of the given choices."""
    forms = tuple(form_of(network, network.indices(choice), costs) for choice in choices)
    return Planning(network, costs, forms, fixed_order=fixed_order)


def costs_of(network: Network, profile: DeviceProfile, threads: int) -> Costs:
    """The costs of a network's layers by a device profile."""
    slices = tuple(profile.slice_seconds(layer, threads) for layer in network.layers)
    storage = replace(profile.storage, core_contention=profile.core_contention(threads))
    fetched = (fetch_seconds(layer, storage) for layer in network.layers)
    seconds = (time + fetch for time, fetch in zip(layer_seconds(network, profile, threads), fetched, strict=True))
    return Costs(tuple(seconds), slices, storage, profile.prepare_s, profile.fresh_s, network.made_as)


def layer_seconds(network: Network, profile: DeviceProfile, threads: int) -> list[float]:
    """The time of every layer, alternative and band, measured or else predicted, in the order of `network.layers`."""
    work = [*network.base.work, *(other.work for other in (*network.alternatives, *network.bands))]
    predicted = [
        profile.layer_seconds(layer, operations, operand_bytes(layer), threads)
        for layer, operations in zip(network.layers, work, strict=True)
    ]
    measured = [*network.base.seconds, *(alternative.seconds for alternative in network.alternatives)]
    # A band does the same as its layer, on fewer rows.
    measured += [
        None if (whole := measured[band.whole]) is None else time * whole / predicted[band.whole]
        for band, time in zip(network.bands, predicted[len(measured) :], strict=True)
    ]
    return [time if known is None else known for time, known in zip(predicted, measured, strict=True)]


def form_of(network: Network, indices: Sequence[int], costs: Costs) -> Form:
    """The form that computes these layers."""
    every = network.layers
    layers = [every[index] for index in indices]
    lives = network.base.lifetimes(layers)
    values = network.values
    place = shared_places(values, layers, lives, network.base.wanted)
    buffers = lives_of_places(lives, place)
    position = {value: index for index, value in enumerate(buffers)}
    piece = preparing.piece_nbytes(layers)
    read = (plan.Buffer("weights to be prepared", preparing.room_nbytes(piece), 0, len(layers)),) if piece else ()
    problem = plan.Problem(
        tuple(planned_layer(layer, index, costs) for layer, index in zip(layers, indices, strict=True)),
        (*(_buffer(values[value], *live, value in network.base.staying) for value, live in buffers.items()), *read),
        costs.storage,
        planned_values(network.base, layers, values, {v: position[place[v]] for v in lives}),
    )
    return Form(tuple(indices), tuple(lives), tuple(position[place[value]] for value in lives), problem, piece)


def _buffer(value: Value, start: int, end: int, stays: bool) -> plan.Buffer:
    return plan.Buffer(value.name, value.nbytes, start, end, stays)


def planned_layer(layer: Layer, index: int, costs: Costs) -> plan.Layer:
    """The planner's view of `layer`, which is `Network.layers[index]`."""
    weights = layer.weights
    packed = plan.Weights(weights.offset, weights.blocks, weights.block_nbytes) if weights else None
    if weights and weights.preparation:
        packed = replace(
            packed,
            offset=0,
            form=costs.made_as[index] + 1,
            read=weights.stored_nbytes / weights.nbytes,
            prepare_s=costs.prepare_s,
            stored=preparing.stored_of(layer),
        )
    return plan.Layer(layer.name, layer.scratch_nbytes, packed, costs.seconds[index], costs.slice_s[index])
