"""The parts of a network that rungs use: the layers, alternatives and bands that some rung computes, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexcomp.program import Layer, Port, Prepare, Rung, State, Step, Tapes, Value, ValueArg

from .variants import Network


def used(
    network: Network, rungs: Sequence[Rung]
) -> tuple[tuple[Layer, ...], tuple[Value, ...], tuple[Port, ...], tuple[State, ...], tuple[Rung, ...]]:
    """Layers, values, ports (inputs, then outputs), states and the rungs, all numbered anew.

    Every alternative and every band stands after its layer.
    """
    computed = {one.layer for rung in rungs for one in (*rung.steps, *(step for _, step in rung.tapes.first_steps))}
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

    def numbered(step: Step) -> Step:
        return replace(step, layer=layer_at[step.layer])

    def tapes(of: Tapes) -> Tapes:
        operations = (
            replace(one, layer=layer_at[one.layer]) if isinstance(one, Prepare) else one for one in of.operations
        )
        first_steps = ((number, numbered(step)) for number, step in of.first_steps)
        return replace(of, operations=tuple(operations), first_steps=tuple(first_steps))

    return (
        tuple(moved(network.layers[i]) for i in layers),
        tuple(network.values[i] for i in values),
        tuple(replace(port, value=value_at[port.value]) for port in ports),
        tuple(replace(one, value=value_at[one.value], result=value_at[one.result]) for one in network.base.states),
        tuple(
            replace(
                rung,
                value_at=tuple(rung.value_at[i] for i in values),
                steps=tuple(map(numbered, rung.steps)),
                tapes=tapes(rung.tapes),
            )
            for rung in rungs
        ),
    )
