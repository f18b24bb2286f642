"""The parts of a network that rungs use: the layers, alternatives and bands that some rung computes, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexcomp.program import Layer, Port, Rung, State, Value, ValueArg

from .variants import Network


def used(
    network: Network, rungs: Sequence[Rung]
) -> tuple[tuple[Layer, ...], tuple[Value, ...], tuple[Port, ...], tuple[State, ...], tuple[Rung, ...]]:
    """Layers, values, ports (inputs, then outputs), states and the rungs, all numbered anew.

    Every alternative and every band stands after its layer.
    """
    computed = {one.layer for rung in rungs for one in (*rung.steps, *rung.cold)}
    layers = sorted(computed, key=lambda i: (network.base_of(i), i))
    layer_at = {layer: i for i, layer in enumerate(layers)}
    ports = (*network.base.inputs, *network.base.outputs)
    looked_at = {arg.value for i in layers for arg in network.layers[i].args if isinstance(arg, ValueArg)}
    values = sorted(network.base.given | network.base.wanted | looked_at)
    value_at = {value: i for i, value in enumerate(values)}

    def moved(layer: Layer) -> Layer:
        args = (
            replace(arg, value=value_at[arg.value]) if isinstance(arg, ValueArg) else arg for arg in layer.args
        )
        return replace(layer, args=tuple(args))

    return (
        tuple(moved(network.layers[i]) for i in layers),
        tuple(network.values[i] for i in values),
        tuple(replace(port, value=value_at[port.value]) for port in ports),
        tuple(replace(one, value=value_at[one.value], result=value_at[one.result]) for one in network.base.states),
        tuple(
            replace(
                rung,
                value_at=tuple(rung.value_at[i] for i in values),
                steps=tuple(replace(step, layer=layer_at[step.layer]) for step in rung.steps),
                loads=tuple(
                    replace(load, prepared=replace(load.prepared, layer=layer_at[load.prepared.layer])) if load.prepared else load
                    for load in rung.loads
                ),
                cold=tuple(replace(one, layer=layer_at[one.layer]) for one in rung.cold),
            )
            for rung in rungs
        ),
    )
