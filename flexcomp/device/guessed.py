"""Assumptions about a target that nobody measured."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.device.presets import Preset
from flexcomp.device.profile import DeviceProfile, default_profile, rates_profile
from flexcomp.device.target import CompileTarget
from flexcomp.schedules.cuda import Architecture

# Of the multiply-adds that a GPU could do, those that a large product does: 86 to 90 % of the instructions of its loop are some,
# and the beginning and end of a tile take time.
_PART = 0.7
# A board that nobody named: the clock, memory for each multiprocessor, and a bus of sixteen lanes of PCI Express 3 or 4.
_GHZ = 1.4
_MEMORY_BYTES_PER_S = 10e9
_COPY_BYTES_PER_S = 12e9
# From the call that launches a device function to its begin, as steps follow each other; and until a copy or a function that
# waits for an event of another stream begins.
_LAUNCH_S = 4e-6
_EVENT_S = 8e-6


def guessed_profile(target: CompileTarget) -> DeviceProfile:
    """The profile of a target's preset, or else a guess from its instructions."""
    if target.gpu is not None:
        return _of_gpu(target.gpu, target.preset)
    return default_profile(target.vector_width, target.preset)


def _of_gpu(architecture: Architecture, preset: Preset | None) -> DeviceProfile:
    ghz = preset.gpu_ghz if preset else _GHZ
    lanes = architecture.lanes * architecture.multiprocessors
    profile = rates_profile(
        flops_per_s=_PART * 2 * lanes * ghz * 1e9,
        memory_bytes_per_s=preset.memory_bytes_per_s if preset else _MEMORY_BYTES_PER_S * architecture.multiprocessors,
        storage_bytes_per_s=preset.storage_bytes_per_s if preset else DeviceProfile.storage_bytes_per_s,
        load_latency_s=preset.load_latency_s if preset else Preset.load_latency_s,
    )
    copied = 0.0 if architecture.integrated else (preset and preset.copy_bytes_per_s) or _COPY_BYTES_PER_S
    return replace(profile, copy_bytes_per_s=copied, step_overhead_s=_LAUNCH_S, wake_s=_EVENT_S)
