"""Predictions for the rungs of a library: the times of their layers, and the latency that no plan falls below."""

from __future__ import annotations

from dataclasses import replace

from flexcomp import plan
from flexcomp.compiler.rungs import layers_of
from flexcomp.device.profile import DeviceProfile
from flexcomp.plan import extent
from flexcomp.profiling.fitting import operand_bytes
from flexcomp.program.prediction import LayerTime, Prediction
from flexcomp.program.program import ALIGN, Program, Rung, ValueArg


def prediction_of(program: Program, profile: DeviceProfile, threads: int) -> Prediction:
    """The times that plans of this program would be judged by."""
    layers = tuple(
        LayerTime(
            profile.layer_seconds(layer, float(layer.flops), operand_bytes(layer), threads),
            profile.slice_seconds(layer, threads),
        )
        for layer in program.layers
    )
    storage = replace(profile.storage, crowded=profile.crowded(threads))
    return Prediction(layers, storage, profile.prepare_s)


def possible_seconds(program: Program, rung: Rung, prediction: Prediction) -> float:
    """`plan.latency_bound` of what the rung computes, in its budget, with predicted times."""
    every = prediction.planned_layers(program)
    layers = tuple(every[index] for index in layers_of(rung))
    tensors = tuple(
        plan.Tensor("", nbytes // ALIGN * ALIGN, at, at + 1) for at, nbytes in enumerate(live_bytes(program, rung))
    )
    return plan.latency_bound(plan.Problem(layers, tensors, prediction.storage), rung.budget)


def live_bytes(program: Program, rung: Rung) -> list[int]:
    """Per layer of a rung, in its order: the bytes of the arena that values take which are needed in it or kept for later."""
    order = layers_of(rung)
    first = {port.value: 0 for port in program.inputs}
    last = {port.value: len(order) - 1 for port in program.outputs}
    for at, index in enumerate(order):
        for arg in program.layers[index].args:
            if isinstance(arg, ValueArg):
                first.setdefault(arg.value, at)
                last[arg.value] = max(at, last.get(arg.value, at))
    places = {value: (rung.value_at[value], program.values[value].nbytes) for value in first}
    return [
        extent(place for value, place in places.items() if first[value] <= at <= last.get(value, 0))
        for at in range(len(order))
    ]
