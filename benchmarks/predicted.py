"""The times by which a profile judges the plans of a library."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.device.profile import DeviceProfile
from flexcomp.profiling.fitting import operand_bytes
from flexcomp.program.prediction import LayerTime, Prediction
from flexcomp.program.program import Program


def prediction_of(program: Program, profile: DeviceProfile, threads: int) -> Prediction:
    """The times that plans of this program would be judged by."""
    layers = tuple(
        LayerTime(
            profile.layer_seconds(layer, float(layer.flops), operand_bytes(layer), threads),
            profile.slice_seconds(layer, threads),
        )
        for layer in program.layers
    )
    storage = replace(profile.storage, core_contention=profile.core_contention(threads))
    return Prediction(layers, storage, profile.prepare_s)
